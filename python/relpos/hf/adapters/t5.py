"""The T5 family: one table of buckets for a stack of layers, or one in each layer (UMT5)."""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position import Given, SchemePosition
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._lazy import Bias


class _BucketBias:
    """compute_bias without its tensor; layers without a table add nothing to the scores."""

    # Without a table the model would build zeros [1, H, Lq, Lk]; compute_bias avoids that.
    has_relative_attention_bias = property(lambda self: True)

    def compute_bias(
        self,
        query_length: int,
        key_length: int,
        device: Any = None,
        past_seen_tokens: int | Tensor = 0,
    ) -> Bias:
        if self._relpos_position is None:
            return Bias()
        return Bias(functools.partial(_bound, self), past_seen_tokens)


def _bound(module: nn.Module) -> Given:
    return Given(module._relpos_position._text, [module.relative_attention_bias.weight])


def buckets(module: nn.Module, bidirectional: bool) -> SchemePosition:
    """The scheme of a module's table. Raises Unfused if its buckets are not those of T5."""
    count, reach = module.relative_attention_num_buckets, module.relative_attention_max_distance
    try:
        position = relpos.T5Bias(
            module.n_heads, buckets=count, max_distance=reach, bidirectional=bidirectional
        )
    except ValueError as error:
        raise Unfused(str(error), attention=True) from None
    future = reach if bidirectional else 0
    ours = position.indices(1, reach + 1 + future, reach)
    distances = torch.arange(-reach, future + 1)[None]
    if not torch.equal(ours, _their_buckets(module, distances, bidirectional)):
        raise Unfused(
            f"its {count} buckets up to distance {reach} are not those of relpos.T5Bias",
            attention=True,
        )
    return position


def _their_buckets(module: nn.Module, distances: Tensor, bidirectional: bool) -> Tensor:
    find = module._relative_position_bucket
    if len(inspect.signature(find).parameters) == 1:  # UMT5's reads the module
        return find(distances)
    count, reach = module.relative_attention_num_buckets, module.relative_attention_max_distance
    return find(distances, bidirectional=bidirectional, num_buckets=count, max_distance=reach)


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    if not isinstance(getattr(module, "relative_attention_bias", None), nn.Embedding):
        what = "no table of its own: the first layer's T5 bias, or none (cross-attention)"
        return Plan(what, _BucketBias, {"_relpos_position": None})
    position = buckets(module, not module.is_decoder)
    what = f"T5 bias, {module.relative_attention_num_buckets} buckets, read in the kernel"
    return Plan(what, _BucketBias, {"_relpos_position": position})


ADAPTERS = [
    Adapter(
        (
            "T5Attention",
            "MT5Attention",
            "UMT5Attention",
            "LongT5Attention",
            "SwitchTransformersAttention",
            "Pop2PianoAttention",
        ),
        _plan,
    )
]
