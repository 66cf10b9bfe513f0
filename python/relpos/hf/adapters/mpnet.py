"""MPNet: T5's buckets, one table for the encoder."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME, attend
from relpos.hf._lazy import Bias, Mask
from relpos.hf._trial import Compared, copied, draw, masks, padded, prove, twin

_BUCKETS, _REACH = 32, 128  # what the encoder uses, whatever its config says


class _Attention:
    """MPNetSelfAttention.forward on relpos; position_bias is what _lazy_bias makes."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Mask | Tensor | None = None,
        position_bias: Bias | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        heads = (self.num_attention_heads, self.attention_head_size)
        query, key, value = (
            project(hidden_states).unflatten(-1, heads).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        out = attend(
            query,
            key,
            value,
            attention_mask,
            position=None if position_bias is None else position_bias.make(),
            dropout=self.dropout.p if self.training else 0.0,
            weights=output_attentions,
        )
        out, *weights = out if output_attentions else (out,)
        return self.o(out.transpose(1, 2).flatten(2)), *weights


def _lazy_bias(encoder: nn.Module, position: Any, x: Tensor, *_: Any, **__: Any) -> Bias:
    """Replaces compute_position_bias."""
    return Bias(functools.partial(_bound, encoder, position))


def _bound(encoder: nn.Module, position: Any) -> Given:
    return with_values(position, [encoder.relative_attention_bias.weight])


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    encoder = owner.encoder
    rows, heads = encoder.relative_attention_bias.weight.shape
    if rows != _BUCKETS:
        raise Unfused(
            f"its table has {rows} rows, of which the model reads {_BUCKETS}", attention=False
        )
    position = relpos.T5Bias(heads, buckets=_BUCKETS, max_distance=_REACH)
    far = 4 * _REACH
    theirs = copied(encoder, children=False).relative_position_bucket(
        torch.arange(-far, far + 1)[None]
    )
    if not torch.equal(position.indices(1, 2 * far + 1, far), theirs):
        raise Unfused("its buckets are not those of relpos.T5Bias", attention=False)
    lazy = functools.partial(_lazy_bias, encoder, position)
    plan = Plan(
        f"T5 bias, {_BUCKETS} buckets, read in the kernel",
        _Attention,
        also=((encoder, {"compute_position_bias": lazy}),),
    )
    prove(module, plan, _calls(module, encoder, position), implementation=NAME)
    return plan


def _calls(module: nn.Module, encoder: nn.Module, position: Any) -> Iterator[Compared]:
    from transformers import masking_utils

    own = copied(encoder, children=False)
    own.relative_attention_bias = twin(encoder.relative_attention_bias)
    for length in (1, 2, 3, 17, 34, 65, 300):
        states, tokens = draw(2, length, module.q.in_features), padded(2, length)
        dense, mask = masks(length, length, masking_utils.bidirectional_mask_function, tokens)
        theirs, ours = own.compute_position_bias(states), _lazy_bias(own, position, states)
        yield Compared(
            {"hidden_states": states, "attention_mask": dense, "position_bias": theirs},
            {"hidden_states": states, "attention_mask": mask, "position_bias": ours},
        )


ADAPTERS = [Adapter(("MPNetSelfAttention",), _plan)]
