"""The launches of sums over the scores' gradients, or the weights, that are written pair by pair:
where tokens stand anywhere, and where coordinates or classes of pairs choose from a table."""

from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.masks.dense import Pairs
from relpos.gpu.problem import Places
from relpos.gpu.sums.bands import Bands, gather_bands
from relpos.gpu.sums.class_sums import gather_classes
from relpos.gpu.sums.pair_sums import fold_pairs, sum_pairs, write_ends

FOLDED = {"BLOCK": 32, "ROWS": 32}
ENDED = {"BLOCK": 64, "ROWS": 16}
GATHERED = {"BLOCK": 32, "ROWS": 32}
BY_CLASS = {"ROWS": 4, "CELLS": 32, "BLOCK": 32}
MOST_PAIRS = 2**24  # of a chunk of queries, whose gradients are in memory at one time


def add_pairs(
    run: Any,
    edges: Tensor,
    window: tuple[int, int],
    found: Tensor,
    given: dict[str, Any],
    places: Places,
    ends: Tensor | None = None,
) -> None:
    """Of the runs that begin at `edges`, from the first to the last distance of `window`; ends
    [B, H, Lq, 2], where given: zeros, in place of which the sums of the distances up to the first
    and from the last on are written."""
    ordered, order = places.k.sort(dim=-1, stable=True)
    order = order.int()
    width = found.shape[1]
    spans, alike = run.problem.spans, places.q_row == places.k_row == 0
    if alike and run.batch > 1 and spans is not None and spans.key_row:
        spans = None  # the sums of all batch rows have the keys of each
    for chunk, rows in _chunks(run, given, alike, run.keys):
        if ends is not None:
            write_ends_of(run, ends, places, window, rows * run.heads, chunk)
        run.launch(
            fold_pairs,
            (triton.cdiv(width, FOLDED["BLOCK"]), run.heads),
            None,
            by_distance=found,
            places=places,
            spans=spans,
            ordered=ordered,
            order=order,
            queries=run.queries,
            keys=run.keys,
            batch=rows,
            edges=edges,
            width=width,
            steps=run.keys.bit_length(),
            fresh=int(chunk["row"] == chunk["first"] == 0),
            **chunk,
            **FOLDED,
        )


def add_classes(run: Any, lo: int, found: Tensor, given: dict[str, Any], classes: Pairs) -> None:
    """To found float64 [H, W], of the classes lo, lo + 1, ..."""
    if not run.keys:
        return
    width = found.shape[1]
    for chunk, rows in _chunks(run, given, classes.batch == 0, max(run.keys, width)):
        band = run.workspace(rows, run.heads, chunk["count"], width)
        gather_by_class(run, band, classes, lo, rows * run.heads, chunk)
        found += band.sum((0, 2), dtype=torch.float64)


def _chunks(
    run: Any, given: dict[str, Any], alike: bool, width: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """The gradients pair by pair of a chunk of queries, and of some batch rows, after the other,
    and how many rows; where all are alike the sum of all, as of one. width: numbers of each query
    in a chunk."""
    side, together = run.tile(sum_pairs).queries, run.batch if alike else 1
    rows = run.batch // together
    tiles = max(1, MOST_PAIRS // (run.heads * width * side))
    count = min(run.queries, tiles * side)
    several = max(1, min(rows, tiles * side // count))
    pairs = run.workspace(several, run.heads, count, run.keys)
    for row in range(0, rows, several):
        for first in range(0, run.queries, count):
            chunk = {
                "pairs": pairs,
                "heads": run.heads,
                "row": row,
                "first": first,
                "count": min(count, run.queries - first),
            }
            these = min(several, rows - row)
            run.pairs(
                sum_pairs,
                lambda tile, blocks=these * run.heads, count=chunk["count"]: (
                    blocks * triton.cdiv(count, tile.queries) * triton.cdiv(run.keys, tile.keys)
                ),
                batch=together,
                **given,
                **chunk,
            )
            yield chunk, these


def write_ends_of(
    run: Any,
    ends: Tensor,
    places: Places,
    window: tuple[int, int],
    blocks: int,
    chunk: dict[str, Any],
) -> None:
    """ends [B, H, Lq, 2] of a chunk of pairs (write_ends), of so many blocks of a head each."""
    run.launch(
        write_ends,
        (blocks * triton.cdiv(chunk["count"], ENDED["ROWS"]),),
        None,
        ends=ends,
        places=places,
        queries=run.queries,
        keys=run.keys,
        lo=window[0],
        hi=window[1],
        **chunk,
        **ENDED,
    )


def gather(run: Any, bands: Bands, pairs: Any, places: Places) -> None:
    of_keys = bands.sign < 0
    sides = [(places.q, places.q_row, run.keys), (places.k, places.k_row, 1)]
    (own, own_row, row_step), (other, other_row, other_step) = sides[:: bands.sign]
    ordered, order = other.sort(dim=-1, stable=True)
    run.launch(
        gather_bands,
        (
            run.batch * run.heads * triton.cdiv(bands.length, GATHERED["ROWS"]),
            triton.cdiv(bands.width, GATHERED["BLOCK"]),
        ),
        None,
        band=bands.cells,
        pairs=pairs,
        own=own,
        ordered=ordered,
        order=order.int(),
        spans=None if of_keys else run.problem.spans,
        length=bands.length,
        others=bands.others,
        own_row=own_row,
        other_row=other_row,
        row_step=row_step,
        other_step=other_step,
        sign=bands.sign,
        steps=bands.others.bit_length(),
        heads=run.heads,
        lo=bands.lo,
        width=bands.width,
        pitch=bands.cells.stride(2),
        **GATHERED,
    )


def gather_by_class(
    run: Any, band: Tensor, classes: Pairs, lo: int, blocks: int, chunk: dict[str, Any]
) -> None:
    """band [.., H, count, W] of a chunk of pairs (gather_classes), of so many blocks of a head."""
    width = band.shape[-1]
    run.launch(
        gather_classes,
        (
            blocks * triton.cdiv(chunk["count"], BY_CLASS["ROWS"]),
            triton.cdiv(width, BY_CLASS["CELLS"]),
        ),
        None,
        band=band,
        classes=classes,
        keys=run.keys,
        lo=lo,
        width=width,
        pitch=band.stride(2),
        **chunk,
        **BY_CLASS,
    )
