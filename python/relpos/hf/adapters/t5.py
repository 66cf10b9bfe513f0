"""The T5 family: one table of buckets for a stack of layers, or one in each layer (UMT5)."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos._position.position import SchemePosition
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias
from relpos.hf._trial import Compared, draw, filled, masks, prove, sizes, twin


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
    return with_values(module._relpos_position, [module.relative_attention_bias.weight])


def buckets(module: nn.Module, bidirectional: bool) -> SchemePosition:
    """The scheme of a module's table. Raises Unfused if its buckets are not those of T5."""
    count, reach = module.relative_attention_num_buckets, module.relative_attention_max_distance
    try:
        position = relpos.T5Bias(
            module.n_heads, buckets=count, max_distance=reach, bidirectional=bidirectional
        )
    except ValueError as error:
        raise Unfused(str(error), attention=True) from None
    far = 4 * reach
    ours = position.indices(1, 2 * far + 1, far)
    distances = torch.arange(-far, far + 1)[None]
    if not torch.equal(ours, _their_buckets(twin(module), distances, bidirectional)):
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


def plan(module: nn.Module, owner: nn.Module) -> Plan:
    position = None
    what = "no table of its own: the first layer's T5 bias, or none (cross-attention)"
    if isinstance(getattr(module, "relative_attention_bias", None), nn.Embedding):
        try:
            position = buckets(module, not _decodes(module))
        except Unfused:
            prove(module, None, _calls(module, owner), implementation=NAME)
            raise
        what = f"T5 bias, {module.relative_attention_num_buckets} buckets, read in the kernel"
    made = Plan(what, _BucketBias, {"_relpos_position": position})
    prove(module, made, _calls(module, owner), implementation=NAME)
    return made


def _decodes(module: nn.Module) -> bool:
    """Whether its keys end with the query; a text model of Pix2Struct is always a decoder."""
    return getattr(module, "is_decoder", True)


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    """Self-attention; a module without a table may be one that reads an encoder, too."""
    from transformers import masking_utils

    names = inspect.signature(type(module).forward).parameters
    mask_name = "mask" if "mask" in names else "attention_mask"
    source = "key_value_states" if "key_value_states" in names else "encoder_hidden_states"
    both = masking_utils.bidirectional_mask_function
    own = masking_utils.causal_mask_function if _decodes(module) else both
    with_table = isinstance(getattr(module, "relative_attention_bias", None), nn.Embedding)
    width = module.d_model if hasattr(module, "d_model") else module.hidden_size
    for queries, before in (*sizes(module, owner), (2, 300)):
        if before and not _decodes(module):
            continue
        keys = before + queries
        given = {"hidden_states": draw(2, queries, width)}
        dense, mask = masks(queries, keys, own)
        theirs, ours = (
            {
                **given,
                "past_key_values": filled(
                    module, module.n_heads, before, module.key_value_proj_dim
                ),
            }
            for _ in range(2)
        )
        yield Compared({**theirs, mask_name: dense}, {**ours, mask_name: mask})
        if not with_table and before:
            given[source] = draw(2, keys, width)
            dense, mask = masks(queries, keys, both)
            yield Compared({**given, mask_name: dense}, {**given, mask_name: mask})


ADAPTERS = [
    Adapter(
        (
            "T5Attention",
            "MT5Attention",
            "UMT5Attention",
            "LongT5Attention",
            "SwitchTransformersAttention",
            "Pop2PianoAttention",
            "Pix2StructTextAttention",
        ),
        plan,
    )
]
