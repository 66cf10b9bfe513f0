"""Granite Speech: Shaw's rows in blocks of tokens that see each other."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import with_values
from relpos.hf._adapter import Adapter, Plan
from relpos.hf._interface import NAME
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, draw, prove


class _Attention:
    """GraniteSpeechConformerAttention.forward on relpos: an interval of keys in the place of
    blocks of a batch, so that the last block needs no padding."""

    def forward(self, hidden_states: Tensor, attention_dists: Tensor) -> Tensor:
        states = self.pre_norm(hidden_states)
        query, pairs = by_head(states, self.dim_head, self.to_q, self.to_kv)
        key, value = pairs.chunk(2, dim=1)
        first = torch.arange(states.shape[1], device=states.device)
        first = first - first % self.context_size
        out, _ = attended(
            query,
            key,
            value,
            None,
            key_range=(first, (first + self.context_size).clamp(max=states.shape[1])),
            position=with_values(self._relpos_position, [self.rel_pos_emb.weight]),
            scale=self.scale,
            weights=False,
        )
        return self.dropout(self.to_out(out))


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    position = relpos.Shaw(
        module.context_size,
        module.dim_head,
        values=False,
        distance="query-key",
        rows=2 * module.max_pos_emb + 1,
    )
    what = f"rows of distances within blocks of {module.context_size} in the kernel"
    plan = Plan(what, _Attention, {"_relpos_position": position})
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    """Of several blocks, the last one filled and not, with what the model says of distances."""
    distances = owner.attention_dists
    if distances.is_meta:  # its numbers are still to come
        at = torch.arange(module.context_size)
        distances = at[:, None] - at + module.max_pos_emb
    size = module.context_size
    for length in (1, size - 1, size, 2 * size + 3):
        states = draw(2, max(length, 1), module.to_q.in_features)
        given = {"hidden_states": states, "attention_dists": distances}
        yield Compared(given, given)


ADAPTERS = [
    Adapter(("GraniteSpeechConformerAttention", "GraniteSpeechPlusConformerAttention"), _plan)
]
