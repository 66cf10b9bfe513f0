"""SpeechT5: Shaw's rows in the encoder, no positions in the decoder's attention."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias, Mask
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, copied, draw, filled, masks, padded, prove, sizes, twin


class _Attention:
    """SpeechT5Attention.forward on relpos; position_bias is what _lazy_rows makes."""

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Mask | Tensor | None = None,
        position_bias: Bias | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        (query,) = by_head(hidden_states, self.head_dim, self.q_proj)
        key, value = self._relpos_keys(hidden_states, key_value_states, past_key_values)
        out, weights = attended(
            query,
            key,
            value,
            attention_mask,
            position=None if position_bias is None else position_bias.make(),
            dropout=self.dropout if self.training else 0.0,
            scale=self.scaling,
            weights=bool(output_attentions),
        )
        return self.out_proj(out), weights

    def _relpos_keys(self, states: Tensor, source: Tensor | None, cache: Any) -> tuple:
        """Keys and values, of `source` where it is given; those of a source stay in the cache."""
        of_two = hasattr(cache, "cross_attention_cache")
        own = cache if not of_two else cache.self_attention_cache
        if source is not None and of_two:
            own = cache.cross_attention_cache
            if cache.is_updated.get(self.layer_idx):
                return own.layers[self.layer_idx].keys, own.layers[self.layer_idx].values
            cache.is_updated[self.layer_idx] = True
        states = states if source is None else source
        key, value = by_head(states, self.head_dim, self.k_proj, self.v_proj)
        return (key, value) if own is None else own.update(key, value, self.layer_idx)


def _lazy_rows(encoding: nn.Module, position: Any, states: Tensor) -> Bias:
    """Replaces the forward of SpeechT5RelativePositionalEncoding."""
    return Bias(functools.partial(_bound, encoding, position))


def _bound(encoding: nn.Module, position: Any) -> Given:
    return with_values(position, [encoding.pe_k.weight])


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    encoding = getattr(owner, "embed_positions", None)
    encoding = encoding if hasattr(encoding, "pe_k") else None
    plan = Plan("no positions of its own", _Attention)
    position = None
    if encoding is not None:
        position = _position(encoding)
        lazy = functools.partial(_lazy_rows, encoding, position)
        what = "rows of clipped distances read in the kernel"
        plan = Plan(what, _Attention, also=((encoding, {"forward": lazy}),))
    prove(module, plan, _calls(module, owner, encoding, position), implementation=NAME)
    return plan


def _position(encoding: nn.Module) -> Any:
    """The scheme of the encoder's table, whose farthest past distance has no row."""
    most = encoding.max_length
    position = relpos.Shaw(
        most, encoding.dim, values=False, distance="query-key", left=most - 1, right=most
    )
    own = copied(encoding)
    rows = torch.arange(2.0 * most)[:, None]
    own.pe_k = nn.Embedding.from_pretrained(rows)
    length = most + 3
    theirs = own(torch.zeros(1, length, 1))[..., 0]
    if not torch.equal(position.indices(length, length), theirs.to(torch.int64)):
        raise Unfused("its rows are not those of relpos.Shaw", attention=False)
    return position


def _calls(
    module: nn.Module, owner: nn.Module, encoding: nn.Module | None, position: Any
) -> Iterator[Compared]:
    """Self-attention, with a cache and over another sequence where the module may have them."""
    from transformers import masking_utils

    both = masking_utils.bidirectional_mask_function
    own = masking_utils.causal_mask_function if module.is_decoder else both
    for queries, before in sizes(module, owner):
        if before and not module.is_decoder:
            continue
        keys = before + queries
        tokens = padded(2, keys)
        given = {"hidden_states": draw(2, queries, module.embed_dim)}
        dense, mask = masks(queries, keys, own, tokens)
        theirs, ours = (
            {**given, "past_key_values": filled(module, module.num_heads, before, module.head_dim)}
            for _ in range(2)
        )
        if encoding is not None:
            table = twin(encoding)
            theirs["position_bias"] = table(draw(1, queries, 1))
            ours["position_bias"] = _lazy_rows(table, position, draw(1, queries, 1))
        theirs["attention_mask"] = dense.expand(2, 1, queries, keys)
        ours["attention_mask"] = mask
        yield Compared(theirs, ours, tokens.cumsum(1)[:, before:] > 0)
        if module.is_decoder and before:
            given["key_value_states"] = draw(2, keys, module.embed_dim)
            dense, mask = masks(queries, keys, both, tokens)
            theirs = {**given, "attention_mask": dense.expand(2, 1, queries, keys)}
            yield Compared(theirs, {**given, "attention_mask": mask})


ADAPTERS = [Adapter(("SpeechT5Attention",), _plan)]
