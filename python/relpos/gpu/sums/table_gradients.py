"""Gradients of the tables of distance biases: the launches that add up the scores' gradients at
each distance, and then at the distances of each class."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from relpos.gpu.lowered.class_map import ClassMap, edges_on
from relpos.gpu.lowered.delta import Classes
from relpos.gpu.lowered.table_bias import TableBias
from relpos.gpu.mode import INTERPRETS
from relpos.gpu.sums.distance_sums import fold_diagonals, fold_ends, sum_diagonals
from relpos.gpu.sums.pair_launches import add_classes, add_pairs
from relpos.gpu.sums.targets import Targets
from relpos.gpu.terms.bias import write_table_gradient

_FOLDED, _CLASSES, _ENDS = 32, 16, 256  # of a program: distances, classes, rows


class Sums(NamedTuple):
    """The distances lo, ..., hi whose sums are wanted, and of each query, and each key, the sums at
    distances up to the first and from the last on: float32 [B, H, Lq, 2] and [B, H, Lk, 2], None
    where nothing is wanted."""

    lo: int
    hi: int
    ends: Tensor | None
    key_ends: Tensor | None

    @classmethod
    def of(cls, run: Any, maps: Sequence[ClassMap], of_keys: Sequence[ClassMap]) -> "Sums":
        if not maps and not of_keys:
            return cls(0, 1, None, None)
        both = (*maps, *of_keys)
        lo, hi = min(each.lo for each in both), max(each.hi for each in both)
        ends = run.workspace(run.batch, run.heads, run.queries, 2) if maps else None
        key_ends = run.workspace(run.batch, run.heads, run.keys, 2) if of_keys else None
        return cls(*run.lowered.window(lo, hi), ends, key_ends)


def write_gradients(
    run: Any,
    tables: Sequence[tuple[ClassMap, Tensor, float]],
    sums: Sums,
    given: dict[str, Any],
) -> None:
    """Writes those of tables, each (map, gradient [H, M], multiplier), after backward_queries has
    written the ends; given: what the kernels of the backward pass read."""
    if not tables:
        return
    # Of consecutive tokens cells are distances; of others runs, which each key is in one of.
    maps = None if run.lowered.places is None else tuple(map_ for map_, _, _ in tables)
    found = _by_distance(run, sums, given, maps)
    for map_, to, multiplier in tables:
        cells = map_.cells(sums.lo, sums.hi, to.shape[1], run.device, maps)
        _write(run, cells, found, to, multiplier)


def write_gradient_apart(
    run: Any, term: TableBias, targets: Targets, given: dict[str, Any]
) -> None:
    """Writes that of a table that coordinates or classes of pairs choose from."""
    lo, hi = run.lowered.window(term.map.lo, term.map.hi, term.delta)
    own, to = (term.map,), term.table.view(targets.to(term.table.parameter))
    of_pairs, edges = term.delta.read(run.lowered), edges_on(own, lo, hi, run.device)
    found = run.workspace(run.heads, len(edges), dtype=torch.float64)
    if isinstance(term.delta, Classes):
        add_classes(run, lo, found.zero_(), given, of_pairs)
    else:
        ends = torch.zeros(run.batch, run.heads, run.queries, 2, device=run.device)
        if run.keys:
            add_pairs(run, edges, (lo, hi), found, given, of_pairs, ends)
        _fold_ends(run, found, ends)
        if not run.keys:
            found.zero_()
    cells = term.map.cells(lo, hi, to.shape[1], run.device, own)
    _write(run, cells, found, to, term.table.multiplier)


def _write(run: Any, of_classes: Any, sums: Tensor, to: Tensor, multiplier: float) -> None:
    """Writes the gradient [H, M] of a table, or [1, M] of one that heads share, of the sums [H, W]
    of each cell and the cells of each class (ClassMap.cells)."""
    cells, starts, longest = of_classes
    rows = to.shape[1]
    if to.shape[0] < run.heads:
        whole = run.workspace(run.heads, rows)
        _write(run, of_classes, sums, whole, multiplier)
        to.copy_(whole.sum(0, dtype=torch.float64)[None])
        return
    run.launch(
        write_table_gradient,
        (triton.cdiv(rows, _CLASSES), run.heads),
        None,
        gradient=to,
        sums=sums,
        cells=cells,
        starts=starts,
        head_stride=to.stride(0),
        class_stride=to.stride(1),
        multiplier=multiplier,
        width=sums.shape[1],
        rows=rows,
        longest=longest,
        ROWS=_CLASSES,
        CELLS=32,
        WIDEN=INTERPRETS,
    )


def _fold_ends(run: Any, found: Tensor, ends: Tensor) -> None:
    run.launch(
        fold_ends,
        (2, run.heads),
        None,
        by_distance=found,
        ends=ends,
        batch=run.batch,
        heads=run.heads,
        queries=run.queries,
        width=found.shape[1],
        BLOCK=_ENDS,
    )


def _by_distance(
    run: Any, sums: Sums, given: dict[str, Any], maps: tuple[ClassMap, ...] | None
) -> Tensor:
    """float64 [H, W]: the sums of the scores' gradients at each distance from lo to hi, or each of
    the runs of `maps` there, the first and the last with those outside."""
    edges = None if maps is None else edges_on(maps, sums.lo, sums.hi, run.device)
    width = sums.hi - sums.lo + 1 if edges is None else len(edges)
    found = run.workspace(run.heads, width, dtype=torch.float64)
    _fold_ends(run, found, sums.ends)
    if width == 2:
        return found
    if not run.keys:
        return found.zero_()
    if run.lowered.places is None:
        _add_diagonals(run, sums.lo, found, given)
    else:
        add_pairs(run, edges, (sums.lo, sums.hi), found, given, run.lowered.places)
    return found


def _add_diagonals(run: Any, lo: int, found: Tensor, given: dict[str, Any]) -> None:
    width = found.shape[1]
    side = run.tile(sum_diagonals).queries
    log = side.bit_length() - 1
    most = triton.cdiv(run.queries, side) + triton.cdiv(run.keys, side)
    diagonals = min(width // side + 3, most)
    tiles = run.workspace(run.batch, run.heads, diagonals, side, side)
    of_tiles = {"tiles": tiles, "lo": lo, "diagonals": diagonals, "LOG": log, "heads": run.heads}
    run.pairs(sum_diagonals, lambda _: run.batch * run.heads * diagonals, **given, **of_tiles)
    run.launch(
        fold_diagonals,
        (triton.cdiv(width, _FOLDED), run.heads),
        None,
        by_distance=found,
        shifts=run.lowered.shifts,
        batch=run.batch,
        queries=run.queries,
        width=width,
        **of_tiles,
        BM=side,
        BLOCK=_FOLDED,
    )
