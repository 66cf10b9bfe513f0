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
    biases: nn.Module, attention_mask: Tensor | None = None, bbox: Tensor | None = None
) -> Bias:
    """Replaces the forward of relative_bias."""
    kinds = [_EDGES.get(type(each).__name__) for each in biases.biases]
    pairs = [
        edges and _classes(each, bbox[:, :, edges].mean(dim=-1))
        for each, edges in zip(biases.biases, kinds, strict=True)
    ]
    return Bias(functools.partial(_terms, biases, pairs))


def _terms(biases: nn.Module, pairs: list[relpos.PairClasses | None]) -> list[Any]:
    return [
        terms.DistanceBias(table, Buckets.t5(rows, each.max_distance))
        if classes is None
        else terms.PairBias(table, classes)
        for each, classes in zip(biases.biases, pairs, strict=True)
        for table, rows in [
            (each.relative_attention_bias.weight.t(), each.relative_attention_num_buckets)
        ]
    ]


def _classes(bias: nn.Module, at: Tensor) -> relpos.PairClasses:
    """The bucket of each pair of places [B, L], a byte for all heads and layers.

    The model counts whole hundredths of a difference of floating-point numbers: of tokens that are
    a whole number of hundredths apart, rounding decides which. So no whole number for each token
    gives the same buckets by differences, unless it is so fine that a table would have 2^30 rows.
    """
    buckets = Buckets.t5(bias.relative_attention_num_buckets, bias.max_distance)
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
    for each in getattr(biases, "biases", [None]):
        _check(each)
    lazy = {"forward": functools.partial(_lazy_bias, biases)}
    what = "T5's buckets of distances in the text and on the page, read in the kernel"
    found = dataclasses.replace(found, what=what, also=((biases, lazy),))
    prove(module, found, _calls(module, owner, biases), implementation=NAME)
    return found


def _check(bias: nn.Module | None) -> None:
    kind = type(bias).__name__
    if (kind != _IN_TEXT and kind not in _EDGES) or bias.relative_attention_num_buckets > 256:
        raise Unfused(f"its relative_bias has {kind}", attention=False)
    if bias.prefix_bucket or bias.augmentation or not bias.bidirectional:
        raise Unfused(
            "its relative_bias has prefix_bucket or augmentation, or is not bidirectional",
            attention=False,
        )


def _calls(module: nn.Module, owner: nn.Module, biases: nn.Module) -> Iterator[Compared]:
    from transformers import masking_utils

    own = twin(biases)
    every = lengths(module.d_model)
    for length in every[-1:] if repeated(module, owner) else every:
        states, tokens = draw(2, length, module.d_model), padded(2, length)
        numbers = torch.arange(2 * length * 4).view(2, length, 4) * 377 % 1001
        boxes = numbers / 1000
        dense, mask = masks(length, length, masking_utils.bidirectional_mask_function, tokens)
        yield Compared(
            {"hidden_states": states, "mask": dense, "position_bias": own(tokens, boxes)},
            {
                "hidden_states": states,
                "mask": mask,
                "position_bias": _lazy_bias(own, tokens, boxes),
            },
        )


ADAPTERS = [Adapter(("UdopAttention",), _plan)]
