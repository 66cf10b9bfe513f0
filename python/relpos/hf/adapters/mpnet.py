"""MPNet: T5's buckets, one table for the encoder."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position import Given
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import attend
from relpos.hf._lazy import Bias, Mask

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
    return Given(position._text, [encoder.relative_attention_bias.weight])


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    encoder = owner.encoder
    rows, heads = encoder.relative_attention_bias.weight.shape
    if rows != _BUCKETS:
        raise Unfused(
            f"its table has {rows} rows, of which the model reads {_BUCKETS}", attention=False
        )
    position = relpos.T5Bias(heads, buckets=_BUCKETS, max_distance=_REACH)
    distances = torch.arange(-_REACH, _REACH + 1)[None]
    theirs = encoder.relative_position_bucket(distances)
    if not torch.equal(position.indices(1, 2 * _REACH + 1, _REACH), theirs):
        raise Unfused("its buckets are not those of relpos.T5Bias", attention=False)
    lazy = functools.partial(_lazy_bias, encoder, position)
    return Plan(
        f"T5 bias, {_BUCKETS} buckets, read in the kernel",
        _Attention,
        also=((encoder, {"compute_position_bias": lazy}),),
    )


ADAPTERS = [Adapter(("MPNetSelfAttention",), _plan)]
