"""UDOP: in its encoder T5's buckets of three distances, those in the text, across the page and down
it; its decoder is T5's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos import terms
from relpos._position.buckets import Buckets
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias
from relpos.hf._trial import Compared, draw, lengths, masks, padded, prove, repeated, twin
from relpos.hf.adapters.t5 import plan

_EDGES = {"RelativePositionBiasHorizontal": [0, 2], "RelativePositionBiasVertical": [1, 3]}
_IN_TEXT = "RelativePositionBias1D"
_ROWS = 64  # of pairs that are counted at once


def _lazy_bias(
    biases: nn.Module,
    buckets: list[Buckets],
    attention_mask: Tensor | None = None,
    bbox: Tensor | None = None,
) -> Bias:
    """Replaces the forward of relative_bias."""
    by = [
        _classes(each, found, bbox) if type(each).__name__ in _EDGES else found
        for each, found in zip(biases.biases, buckets, strict=True)
    ]
    return Bias(functools.partial(_terms, biases, by))


def _terms(biases: nn.Module, by: list[Buckets | relpos.PairClasses]) -> list[Any]:
    tables = [each.relative_attention_bias.weight.t() for each in biases.biases]
    return [
        (terms.DistanceBias if isinstance(found, Buckets) else terms.PairBias)(table, found)
        for table, found in zip(tables, by, strict=True)
    ]


def _classes(bias: nn.Module, buckets: Buckets, bbox: Tensor) -> relpos.PairClasses:
    """The bucket of each pair of tokens, a byte for all heads and layers.

    The model counts whole hundredths of a difference of floating-point numbers: of tokens that are
    a whole number of hundredths apart, rounding decides which. So no whole number for each token
    gives the same buckets by differences, unless it is so fine that a table would have 2^30 rows.
    """
    at = bbox[:, :, _EDGES[type(bias).__name__]].mean(dim=-1)
    rows, length = at.shape
    found = torch.empty(rows, length, length, dtype=torch.uint8, device=at.device)
    for start in range(0, length, _ROWS):
        now = slice(start, start + _ROWS)
        apart = (at[:, None] - at[:, now, None]).float() * bias.scaling_factor
        found[:, now] = buckets(apart.to(torch.long))
    return relpos.PairClasses(found)


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    found = plan(module, owner)
    if owner.is_decoder:
        return found
    biases = getattr(owner, "relative_bias", None)
    buckets = [_buckets(each) for each in getattr(biases, "biases", [None])]
    lazy = {"forward": functools.partial(_lazy_bias, biases, buckets)}
    what = "T5's buckets of distances in the text and on the page, read in the kernel"
    found = dataclasses.replace(found, what=what, also=((biases, lazy),))
    prove(module, found, _calls(module, owner, biases, buckets), implementation=NAME)
    return found


def _buckets(bias: nn.Module | None) -> Buckets:
    kind = type(bias).__name__
    if (kind != _IN_TEXT and kind not in _EDGES) or bias.relative_attention_num_buckets > 256:
        raise Unfused(f"its relative_bias has {kind}", attention=False)
    if bias.prefix_bucket or bias.augmentation or not bias.bidirectional:
        raise Unfused(
            "its relative_bias has prefix_bucket or augmentation, or is not bidirectional",
            attention=False,
        )
    return Buckets.t5(bias.relative_attention_num_buckets, bias.max_distance)


def _calls(
    module: nn.Module, owner: nn.Module, biases: nn.Module, buckets: list[Buckets]
) -> Iterator[Compared]:
    from transformers import masking_utils

    own = twin(biases)
    every = lengths(module.d_model)
    for length in every[-1:] if repeated(module, owner) else every:
        states, tokens = draw(2, length, module.d_model), padded(2, length)
        numbers = torch.arange(2 * length * 4).view(2, length, 4) * 377 % 1001
        boxes = numbers / 1000
        dense, mask = masks(length, length, masking_utils.bidirectional_mask_function, tokens)
        theirs, ours = own(tokens, boxes), _lazy_bias(own, buckets, tokens, boxes)
        given = {"hidden_states": states}
        yield Compared(
            {**given, "mask": dense, "position_bias": theirs},
            {**given, "mask": mask, "position_bias": ours},
        )


ADAPTERS = [Adapter(("UdopAttention",), _plan)]
