"""Gradients of tables of rows and of what meets them: the launches that write bands, and multiply
them."""

from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.mode import INTERPRETS
from relpos.gpu.rows.launches import BLOCKS, factor_of, multiplier_of, table_of
from relpos.gpu.rows.tables import Projected, Table
from relpos.gpu.sums.bands import (
    Bands,
    gather_bands,
    sum_band_rows,
    write_bands,
    write_factor_gradient,
    write_rows_gradient,
)
from relpos.gpu.sums.table_gradients import Sums
from relpos.gpu.sums.targets import Targets
from relpos.gpu.tiles import PRODUCTS

GATHERED = {"BLOCK": 32, "ROWS": 32}
CLASSES = {"ROWS": 8, "CELLS": 4, "COLUMNS": 32}
# Rows are summed in parts of at least so many blocks, at most so many and of so many numbers.
_LEAST_BLOCKS, _MOST_PARTS, _MOST_NUMBERS = 8, 8, 2**23


def write_row_gradients(
    run: Any, sums: Sums, given: dict[str, Any], dq: Tensor | None, targets: Targets
) -> None:
    """Adds to dq float32 what comes from the tables, and writes the gradients of their parameters,
    after backward_queries has written dq and the ends."""
    if sums.ends is None:
        return
    bands = None
    for table in run.lowered.rows:
        of_query = table.factor is None and dq is not None
        if not of_query and not any(targets.wants(n.parameter) for n in table.numbers()):
            continue
        bands = bands or _bands(run, sums, given)
        if targets.wants(table.table.parameter):
            _write_table(run, table, bands, targets)
        named = [n for n in (table.factor, table.added) if n is not None]
        if of_query or any(targets.wants(n.parameter) for n in named):
            _write_factor(run, table, bands, dq if of_query else None, targets)


def _bands(run: Any, sums: Sums, given: dict[str, Any]) -> Bands:
    places = run.lowered.places
    width = sums.hi - sums.lo + 1
    band = run.floats(run.batch, run.heads, run.queries, width)
    shifts = run.lowered.shifts if places is None else None
    bands = Bands(band, sums.ends, shifts, sums.lo, width, run.queries, run.keys)
    if width == 2 or not run.keys:
        return bands if run.keys else bands._replace(cells=band.zero_())
    sizes = {"heads": run.heads, "lo": sums.lo, "width": width}
    if places is None:
        run.pairs(write_bands, run.of_queries, band=band, **given, **sizes)
        return bands
    pairs = run.floats(run.batch, run.heads, run.queries, run.keys)
    run.pairs(write_bands, run.of_queries, band=pairs, **given, **sizes)
    ordered, order = places.k.sort(dim=-1, stable=True)
    run.launch(
        gather_bands,
        (
            run.batch * run.heads * triton.cdiv(run.queries, GATHERED["ROWS"]),
            triton.cdiv(width, GATHERED["BLOCK"]),
        ),
        None,
        band=band,
        pairs=pairs,
        places=places,
        spans=run.problem.spans,
        ordered=ordered,
        order=order.int(),
        queries=run.queries,
        keys=run.keys,
        steps=run.keys.bit_length(),
        **sizes,
        **GATHERED,
    )
    return bands


def _write_factor(
    run: Any, table: Table, bands: Bands, dq: Tensor | None, targets: Targets
) -> None:
    given = table_of(run, table, bands.lo, bands.lo + bands.width - 1)
    found = run.floats(run.batch, run.heads, run.queries, given["rank"])
    run.launch(
        write_factor_gradient,
        (
            run.batch * run.heads * triton.cdiv(run.queries, BLOCKS["ROWS"]),
            triton.cdiv(given["rank"], BLOCKS["COLUMNS"]),
        ),
        PRODUCTS,
        gradient=found,
        bands=bands,
        **given,
        multiplier=multiplier_of(table),
        **BLOCKS,
    )
    if dq is not None:
        dq += found
    elif table.factor is not None and targets.wants(table.factor.parameter):
        table.factor.view(targets.to(table.factor.parameter)).copy_(found)
    if table.added is not None and targets.wants(table.added.parameter):
        total = found.sum((0, 2), dtype=torch.float64) * factor_of(run, table)[1].multiplier
        table.added.view(targets.to(table.added.parameter)).copy_(total)


def _write_table(run: Any, table: Table, bands: Bands, targets: Targets) -> None:
    factor, added = factor_of(run, table)
    to = own = targets.to(table.table.parameter)
    if isinstance(table.table, Projected):
        to = run.floats(*table_of(run, table, bands.lo, bands.lo + 1)["table"].shape)
    else:
        to = table.table.view(to)
    rows, rank = to.shape[-2:]
    blocks = run.batch * triton.cdiv(run.queries, BLOCKS["ROWS"])
    most = min(_MOST_PARTS, _MOST_NUMBERS // (run.heads * bands.width * rank))
    parts = max(1, min(most, blocks // _LEAST_BLOCKS))
    sums = run.floats(parts, run.heads, bands.width, rank, dtype=torch.float64)
    sizes = {"heads": run.heads, "rank": rank, "width": bands.width, "parts": parts}
    run.launch(
        sum_band_rows,
        (
            triton.cdiv(bands.width, BLOCKS["CELLS"]),
            parts * run.heads,
            triton.cdiv(rank, BLOCKS["COLUMNS"]),
        ),
        PRODUCTS,
        factor=run.rows(factor, BLOCKS["ROWS"], BLOCKS["COLUMNS"]),
        sums=sums,
        bands=bands,
        added=added,
        batch=run.batch,
        own_heads=run.heads,
        **sizes,
        **BLOCKS,
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
    if isinstance(table.table, Projected):
        table.table.write_gradient(own, to)
