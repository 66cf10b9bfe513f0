"""What kernels read of a call's options: structures of tensors on its device."""

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.lower import Lowered
from relpos.gpu.masks.dense import Hidden, add_mask, hide_class, hide_unseen, pairs_of
from relpos.gpu.masks.padding import Padding, hide_padding
from relpos.gpu.masks.tiles import KEYS, Tiles, hide_by_tiles, write_cells_of_tiles
from relpos.gpu.pairs.dropout import Dropout
from relpos.gpu.problem import Spans
from relpos.gpu.terms.sinks import Sink

Masks = tuple[tuple[Any, ...], tuple[Callable[..., Any], ...]]


def spans_of(spans: Tensor | None) -> Spans | None:
    if spans is None:
        return None
    several = spans.dim() == 3 and len(spans) > 1
    # Of queries there are none yet; Triton 3.6 takes no None in a structure of a structure.
    return Spans(spans, 2 * spans.shape[-2] if several else 0, spans, 0)


def masks_of(run: Any) -> Masks:
    """The masks of a call, and their functions."""
    lowered, sizes = run.lowered, (run.batch, run.heads, run.queries, run.keys)
    found: list[tuple[Any, Callable[..., Any]]] = []
    if lowered.padding is not None:
        hidden = lowered.padding.view(torch.uint8)
        found.append((Padding(hidden, *hidden.stride()), hide_padding))
    if lowered.mask is not None:
        mask = pairs_of(lowered.mask.expand(sizes))
        found.append((mask, hide_unseen if lowered.mask.dtype == torch.bool else add_mask))
    for delta in lowered.hidden:
        found.append((Hidden(delta.read(lowered), delta.hidden), hide_class))
    if lowered.tiles is not None:
        found.append((tiles_of(run, *lowered.tiles), hide_by_tiles))
    return tuple(mask for mask, _ in found), tuple(function for _, function in found)


def tiles_of(run: Any, ranges: Tensor, entries: Tensor, words: Tensor) -> Tiles:
    """Of a relpos.TileMask."""
    batch, heads, blocks, _ = ranges.shape
    tiles = triton.cdiv(run.keys, KEYS)
    cells = run.workspace(batch, heads, blocks, tiles, dtype=torch.int32)
    if cells.numel():
        run.launch(
            write_cells_of_tiles,
            (batch * heads * blocks, triton.cdiv(tiles, 256)),
            None,
            cells=cells,
            ranges=ranges.contiguous(),
            entries=entries.contiguous(),
            rows=words.shape[1],
            tiles=tiles,
            steps=len(entries).bit_length(),
            BLOCK=256,
        )
    row = cells.stride(0) if batch > 1 else 0
    head = cells.stride(1) if heads > 1 else 0
    return Tiles(cells, words.contiguous(), row, head, tiles, words.shape[1], run.lowered.first)


def sink_of(values: Tensor, multiplier: float) -> Sink:
    """Of [H] or [B, H, Lq]."""
    strides = values.stride() if values.dim() == 3 else (0, values.stride(0), 0)
    return Sink(values, *strides, multiplier)


def dropout_of(lowered: Lowered, device: torch.device) -> Dropout | None:
    p = lowered.dropout_p
    if p == 0.0:
        return None
    threshold = min(math.floor(p * 2.0**32 + 0.5), 2**32 - 1)
    numbers = (int(lowered.seed), threshold)  # filled in, since a copy waits for the device
    drawn = torch.stack([torch.full((), n, dtype=torch.int64, device=device) for n in numbers])
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return Dropout(drawn, scale, lowered.first)
