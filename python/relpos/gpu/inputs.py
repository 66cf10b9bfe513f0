"""What kernels read of a call's options: structures of tensors on its device."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relpos.gpu.dropout import Dropout
from relpos.gpu.lower import Lowered
from relpos.gpu.masks.dense import DenseMask, add_mask, hide_unseen
from relpos.gpu.masks.padding import Padding, hide_padding
from relpos.gpu.problem import Spans
from relpos.gpu.terms.sinks import Sink

Masks = tuple[tuple[Any, ...], tuple[Callable[..., Any], ...]]


def spans_of(spans: Tensor | None) -> Spans | None:
    if spans is None:
        return None
    several = spans.dim() == 3 and len(spans) > 1
    return Spans(spans, 2 * spans.shape[-2] if several else 0, None, 0)


def masks_of(lowered: Lowered, query: Tensor, key: Tensor) -> Masks:
    """The masks of a call, and their functions."""
    found = []
    if lowered.padding is not None:
        hidden = lowered.padding.view(torch.uint8)
        found.append((Padding(hidden, *hidden.stride()), hide_padding))
    if lowered.mask is not None:
        mask = dense_of(lowered.mask.expand(*query.shape[:3], key.shape[2]))
        found.append((mask, hide_unseen if lowered.mask.dtype == torch.bool else add_mask))
    return tuple(mask for mask, _ in found), tuple(function for _, function in found)


def dense_of(mask: Tensor) -> DenseMask:
    """Of a mask [B, H, Lq, Lk]."""
    values = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    strides = zip(mask.shape, mask.stride(), strict=True)
    return DenseMask(values, *(stride if size > 1 else 0 for size, stride in strides))


def sink_of(values: Tensor, multiplier: float) -> Sink:
    """Of [H] or [B, H, Lq]."""
    strides = values.stride() if values.dim() == 3 else (0, values.stride(0), 0)
    return Sink(values, *strides, multiplier)


def dropout_of(lowered: Lowered, device: torch.device) -> Dropout | None:
    p = lowered.dropout_p
    if p == 0.0:
        return None
    threshold = min(math.floor(p * 2.0**32 + 0.5), 2**32 - 1)
    drawn = torch.tensor([int(lowered.seed), threshold], dtype=torch.int64)
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return Dropout(drawn.to(device), scale, lowered.first)
