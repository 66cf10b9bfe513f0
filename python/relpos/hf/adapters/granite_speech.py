"""Granite Speech: Shaw's rows in blocks of tokens that see each other."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import with_values
from relpos.hf._adapter import Adapter, Plan
from relpos.hf._interface import NAME
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, draw, padded, prove


class _Attention:
    """GraniteSpeechConformerAttention.forward on relpos: an interval of keys in the place of
    blocks of a batch, so that the last block needs no padding."""

    def forward(self, hidden_states: Tensor, attention_dists: Tensor) -> Tensor:
        states = self.pre_norm(hidden_states)
        query, pairs = by_head(states, self.dim_head, self.to_q, self.to_kv)
        key, value = pairs.chunk(2, dim=1)
        out, _ = attended(
            query,
            key,
            value,
            None,
            key_range=_blocks(states, self.context_size),
            position=with_values(self._relpos_position, [self.rel_pos_emb.weight]),
            scale=self.scale,
            weights=False,
        )
        return self.dropout(self.to_out(out))


class _Attention5:
    """GraniteSpeech5EncoderAttention.forward on relpos. attention_mask: bool [B, L]."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        out, _weights = attended(
            query,
            key,
            value,
            None,
            key_range=_blocks(hidden_states, self.context_size),
            key_padding_mask=None if attention_mask is None else ~attention_mask,
            position=with_values(self._relpos_position, [self.rel_pos_emb.weight]),
            dropout=self.attention_dropout if self.training else 0.0,
            scale=self.scaling,
        )
        return self.o_proj(out), None


def _blocks(states: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The keys of each query's block."""
    first = torch.arange(states.shape[1], device=states.device)
    first = first - first % size
    return first, (first + size).clamp(max=states.shape[1])


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    plan = _made(module, _Attention, module.dim_head, module.max_pos_emb)
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _plan5(module: nn.Module, owner: nn.Module) -> Plan:
    plan = _made(module, _Attention5, module.head_dim, module.rel_pos_emb.num_embeddings // 2)
    prove(module, plan, _calls5(module), implementation=NAME)
    return plan


def _made(module: nn.Module, mixin: type, head_dim: int, most: int) -> Plan:
    size = module.context_size
    position = relpos.Shaw(size, head_dim, values=False, distance="query-key", rows=2 * most + 1)
    what = f"rows of distances within blocks of {size} in the kernel"
    return Plan(what, mixin, {"_relpos_position": position})


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    """Of several blocks, the last one filled and not, with what the model says of distances."""
    distances = owner.attention_dists
    if distances.is_meta:  # its numbers are still to come
        distances = _distances(module.context_size, module.max_pos_emb)
    size = module.context_size
    for length in (1, size - 1, size, 2 * size + 3):
        states = draw(2, max(length, 1), module.to_q.in_features)
        given = {"hidden_states": states, "attention_dists": distances}
        yield Compared(given, given)


def _calls5(module: nn.Module) -> Iterator[Compared]:
    """The same, also padded; a query of padding counts where its block has other tokens."""
    distances = _distances(module.context_size, module.rel_pos_emb.num_embeddings // 2)
    size = module.context_size
    for length in (1, size - 1, size, 2 * size + 3):
        length = max(length, 1)
        given = {"hidden_states": draw(2, length, module.q_proj.in_features)}
        given["position_embeddings"] = distances
        yield Compared(given, given)
        tokens = padded(2, length)
        tokens[0] = tokens[0].flip(0)
        blocks = nn.functional.pad(tokens, (0, -length % size)).unflatten(1, (-1, size)).any(-1)
        given = given | {"attention_mask": tokens}
        yield Compared(given, given, blocks.repeat_interleave(size, 1)[:, :length])


def _distances(size: int, most: int) -> Tensor:
    at = torch.arange(size)
    return at[:, None] - at + most


ADAPTERS = [
    Adapter(("GraniteSpeechConformerAttention", "GraniteSpeechPlusConformerAttention"), _plan),
    Adapter(("GraniteSpeech5EncoderAttention",), _plan5),
]
