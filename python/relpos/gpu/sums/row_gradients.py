"""Gradients of tables of rows and of what meets them: the launches that write bands, and multiply
them."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.layout import row_of
from relpos.gpu.lowered.delta import Classes
from relpos.gpu.lowered.tables import Table
from relpos.gpu.mode import INTERPRETS
from relpos.gpu.rows.launches import (
    Side,
    blocks_of,
    factor_of,
    multiplier_of,
    parts_of_table,
    side_of,
)
from relpos.gpu.sums.band_launches import bands_of, finish
from relpos.gpu.sums.band_products import multiply_bands, sum_band_rows, write_rows_gradient
from relpos.gpu.sums.bands import Bands, write_bands
from relpos.gpu.sums.pair_launches import gather, gather_by_class, write_ends_of
from relpos.gpu.sums.table_gradients import Sums
from relpos.gpu.sums.targets import Targets

CLASSES = {"ROWS": 8, "CELLS": 4, "COLUMNS": 32}
# Rows are summed in parts of at least so many blocks, at most so many and of so many numbers.
_LEAST_BLOCKS, _MOST_PARTS, _MOST_NUMBERS = 8, 8, 2**23

Sided = tuple[Sequence[Table], Tensor | None]


def write_row_gradients(
    run: Any, sums: Sums, given: dict[str, Any], rows: Sided, columns: Sided, targets: Targets
) -> None:
    """Of tables that meet queries, and keys, beside dq and dk float32 where these are wanted: adds
    to these, and writes the gradients of parameters, after the passes have written both and the
    ends."""
    of_places = [table for table in rows[0] if table.delta is None]
    apart = [table for table in rows[0] if table.delta is not None]
    wanted = [bool(of_places), bool(columns[0])]
    if not apart and not any(wanted):
        return
    *bands, pairs = _bands(run, sums, given, wanted, bool(apart))
    found = [(table, rows[1], False, bands[0]) for table in of_places]
    found += [(table, columns[1], True, bands[1]) for table in columns[0]]
    for table, gradient, of_keys, own in found:
        _write(run, table, side_of(run, of_keys), own, gradient, targets)
    for table in apart:
        own = _bands_apart(run, table, pairs)
        _write(run, table, side_of(run, False), own, rows[1], targets)


def _write(
    run: Any,
    table: Table,
    side: Side,
    bands: Bands,
    gradient: Tensor | None,
    targets: Targets,
) -> None:
    """The gradients of what a table reads; that of the query or the key is added to `gradient`."""
    if not side.length:
        return
    if targets.wants(table.table.parameter):
        write_table(run, table, side, bands, targets)
    of_plain = table.factor is None and gradient is not None
    named = [n for n in (table.factor, table.added) if n is not None]
    if of_plain or any(targets.wants(n.parameter) for n in named):
        _write_factor(run, table, side, bands, gradient if of_plain else None, targets)


def _bands_apart(run: Any, table: Table, pairs: Tensor) -> Bands:
    """By coordinates or classes of pairs, of gradients pair by pair [B, H, Lq, Lk]."""
    lo, hi = run.lowered.window(table.map.lo, table.map.hi, table.delta)
    width, blocks = hi - lo + 1, run.batch * run.heads
    bands = bands_of(run, lo, width, of_keys=False)
    ends = torch.zeros(run.batch, run.heads, run.queries, 2, device=run.device)
    if not run.keys:
        bands.cells.zero_()
        return bands
    whole = {"pairs": pairs, "heads": run.heads, "row": 0, "first": 0, "count": run.queries}
    places = table.delta.read(run.lowered)
    if isinstance(table.delta, Classes):
        gather_by_class(run, bands.cells, places, lo, blocks, whole)
    else:
        write_ends_of(run, ends, places, (lo, hi), blocks, whole)
        if width > 2:
            gather(run, bands, pairs, places)
    finish(run, bands, ends, None)  # no class is beyond the first and the last
    return bands


def _bands(
    run: Any, sums: Sums, given: dict[str, Any], wanted: Sequence[bool], apart: bool
) -> list[Any]:
    """Those of queries and of keys, where they are wanted, and the gradients pair by pair, where
    tokens stand anywhere or `apart`."""
    places = run.lowered.places
    width = sums.hi - sums.lo + 1
    shifts = run.lowered.shifts if places is None else None
    found: list[Any] = [
        bands_of(run, sums.lo, width, of_keys) if own else None
        for own, of_keys in zip(wanted, (False, True), strict=True)
    ]
    to: dict[str, Any] = dict.fromkeys(("band", "columns", "pairs"))
    inner = width > 2 and any(wanted)
    if run.keys and (inner or apart):
        if places is None and inner:
            to["band"], to["columns"] = (bands and bands.cells for bands in found)
        if places is not None or apart:
            to["pairs"] = run.workspace(run.batch, run.heads, run.queries, run.keys)
        sizes = {"heads": run.heads, "lo": sums.lo, "width": width, "pitch": row_of(width, 4)}
        run.pairs(write_bands, run.of_queries, **to, **given, **sizes)
    for bands, ends in zip(found, (sums.ends, sums.key_ends), strict=True):
        if bands is None:
            continue
        if not run.keys:
            bands.cells.zero_()
            continue
        if places is not None and inner:
            gather(run, bands, to["pairs"], places)
        finish(run, bands, ends, shifts)
    return [*found, to["pairs"]]


def _write_factor(
    run: Any, table: Table, side: Side, bands: Bands, plain: Tensor | None, targets: Targets
) -> None:
    """Of what meets the rows; `plain`: added to, where that is the query or the key."""
    found = bands_times(run, table, side, bands)
    if plain is not None:
        plain += found
    elif table.factor is not None and targets.wants(table.factor.parameter):
        table.factor.view(targets.to(table.factor.parameter)).copy_(found)
    if table.added is not None and targets.wants(table.added.parameter):
        total = found.sum((0, 2), dtype=torch.float64) * factor_of(run, table, side)[1].multiplier
        table.added.view(targets.to(table.added.parameter)).copy_(total)


def bands_times(run: Any, table: Table, side: Side, bands: Bands) -> Tensor:
    """float32 [B, heads of the side, L, r]: the bands of each row times the table."""
    rank = run.table(table).shape[-1]
    of = run.query if table.factor is None else run.parameter(table.factor)
    found = run.workspace(run.batch, side.heads, side.length, rank)
    tile, blocks = blocks_of(run.chip, "multiply_bands", rank)
    given = parts_of_table(run, table, bands.lo, bands.lo + bands.width - 1, blocks)
    run.twice(
        multiply_bands,
        (
            run.batch * side.heads * triton.cdiv(side.length, blocks["ROWS"]),
            triton.cdiv(rank, blocks["COLUMNS"]),
        ),
        tile,
        gradient=found,
        bands=run.rows(bands.cells, blocks["ROWS"], blocks["CELLS"]),
        length=side.length,
        **given,
        heads=run.heads,
        own_heads=side.heads,
        multiplier=multiplier_of(table),
        DEPTH=2 if max(run.query.element_size(), of.element_size()) == 2 else 3,
        **blocks,
    )
    return found


def write_table(run: Any, table: Table, side: Side, bands: Bands, targets: Targets) -> None:
    factor, added = factor_of(run, table, side)
    to = table.table.view(targets.to(table.table.parameter))
    rows, rank = to.shape[-2:]
    tile, sizes_of = blocks_of(run.chip, "sum_band_rows", rank)
    blocks = run.batch * triton.cdiv(side.length, sizes_of["ROWS"])
    most = min(_MOST_PARTS, _MOST_NUMBERS // (run.heads * bands.width * rank))
    parts = max(1, min(most, blocks // _LEAST_BLOCKS))
    sums = run.workspace(parts, run.heads, bands.width, rank, dtype=torch.float64)
    sizes = {"heads": run.heads, "rank": rank, "width": bands.width, "parts": parts}
    run.twice(
        sum_band_rows,
        (
            triton.cdiv(bands.width, sizes_of["CELLS"]),
            parts * run.heads,
            triton.cdiv(rank, sizes_of["COLUMNS"]),
        ),
        tile,
        factor=run.rows(factor, sizes_of["ROWS"], sizes_of["COLUMNS"]),
        sums=sums,
        bands=run.rows(bands.cells, sizes_of["ROWS"], sizes_of["CELLS"]),
        length=side.length,
        added=added,
        batch=run.batch,
        own_heads=side.heads,
        **sizes,
        **sizes_of,
    )
    heads = to.shape[0] if to.dim() == 3 else 1
    cells, starts, longest = table.map.cells(bands.lo, bands.lo + bands.width - 1, rows, run.device)
    run.launch(
        write_rows_gradient,
        (triton.cdiv(rows, CLASSES["ROWS"]), heads, triton.cdiv(rank, CLASSES["COLUMNS"])),
        None,
        gradient=to,
        sums=sums,
        cells=cells,
        starts=starts,
        several=run.heads // heads,
        rows=rows,
        longest=longest,
        multiplier=multiplier_of(table),
        **sizes,
        **table.strides(to),
        **CLASSES,
        WIDEN=INTERPRETS,
    )
