"""The launches that write what the passes read of tables."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from relpos.gpu.layout import aligned, padded, row_of
from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.delta import Along, Classes, Delta
from relpos.gpu.lowered.tables import Table
from relpos.gpu.mode import INTERPRETS
from relpos.gpu.pairs.softmax import LOG2E
from relpos.gpu.terms.bias import Bias, bias_score, write_cells
from relpos.gpu.terms.classes import OfClasses, class_row_score, class_score
from relpos.gpu.terms.columns import Columns, column_score
from relpos.gpu.terms.coordinates import (
    AtCoordinates,
    coordinate_row_score,
    coordinate_score,
)
from relpos.gpu.terms.rows import Added, Rows, row_score, write_parts, write_products
from relpos.gpu.tiles import Tile, tile_of_rows

PARTS = {torch.bfloat16: 1, torch.float16: 2}  # of part_of; of others three
_WRITTEN = {"CELLS": 64, "COLUMNS": 32}  # of a program of write_parts


def blocks_of(chip: int, kernel: str, rank: int) -> tuple[Tile, dict[str, Any]]:
    """The tile and the constants of a kernel of OF_ROWS, of so many columns."""
    tile, most = tile_of_rows(chip, kernel)
    sizes = {"ROWS": tile.queries, "CELLS": tile.keys}
    return tile, sizes | {"COLUMNS": min(most, padded(rank)), "WIDEN": INTERPRETS}


def terms_of(run: Any) -> tuple[list[Any], list[Any]]:
    """What the passes read of all tables that add to scores, with the functions that add it: first
    what is read by the distances of tokens, then what is not."""
    lowered = run.lowered
    found: list[Any] = []
    others: list[Any] = []
    for term in lowered.terms:
        table = term.table.view(run.parameter(term.table)), term.table.multiplier
        bias = _bias_of(run, term.map, *table, term.delta)
        if term.delta is None:
            found.append((bias, bias_score))
        else:
            others.append(_apart(run, bias, term.delta, class_score, coordinate_score))
    for term, table in zip(lowered.computed.terms, lowered.tables, strict=True):
        bias = _bias_of(run, term.map, table, 1.0)
        found.append((bias, bias_score))
    if lowered.rows:
        found.append((rows_of(run, lowered.rows), row_score))
    for table in lowered.rows_apart:
        rows = rows_of(run, [table])
        others.append(_apart(run, rows, table.delta, class_row_score, coordinate_row_score))
    if lowered.columns:
        found.append((columns_of(run, lowered.columns), column_score))
    return found, others


def _apart(run: Any, table: Any, delta: Along | Classes, by_class: Any, by_distance: Any) -> Any:
    """What the passes read of a table that coordinates or classes of pairs choose from, and its
    function."""
    of_pairs = delta.read(run.lowered)
    if isinstance(delta, Classes):
        return OfClasses(table, of_pairs), by_class
    return AtCoordinates(table, of_pairs), by_distance


def window_of_call(run: Any, tables: Sequence[Any]) -> tuple[int, int]:
    """The first and the last distance between which one of the terms changes, or what joins the
    values."""
    edges = [(term.lo, term.lo + term.width - 1) for term in tables]
    if run.lowered.values:
        edges.append(window_of(run, run.lowered.values))
    return (min(lo for lo, _ in edges), max(hi for _, hi in edges)) if edges else (0, 0)


def _bias_of(
    run: Any, map_: ClassMap, table: Tensor, multiplier: float, delta: Delta = None
) -> Bias:
    """Of a distance bias of [H, M] or [1, M]."""
    table = table.expand(run.heads, -1)
    lo, hi = run.lowered.window(map_.lo, map_.hi, delta)
    width = hi - lo + 1
    stride = triton.cdiv(width, 16) * 16
    cells = run.workspace(run.heads, stride)
    run.launch(
        write_cells,
        (triton.cdiv(width, 256), run.heads),
        None,
        cells=cells,
        table=table,
        classes=map_.classes(lo, hi, run.device),
        head_stride=table.stride(0),
        class_stride=table.stride(1),
        multiplier=multiplier * LOG2E.value,
        stride=stride,
        width=width,
        BLOCK=256,
    )
    return Bias(cells, stride, lo, width)


class Side(NamedTuple):
    """What meets rows of tables: queries or keys [B, heads, length, D]."""

    plain: Tensor
    heads: int
    length: int


def side_of(run: Any, of_keys: bool) -> Side:
    if of_keys:
        return Side(run.plain[1], run.kv_heads, run.keys)
    return Side(run.plain[0], run.heads, run.queries)


def rows_of(run: Any, tables: Sequence[Table]) -> Rows:
    """What the passes read of tables whose rows meet the queries, by the same distances."""
    lo, width, cells = products_of(run, tables, side_of(run, False), run.heads, LOG2E.value)
    return Rows(cells, ends_of(cells), run.heads, lo, width)


def columns_of(run: Any, tables: Sequence[Table]) -> Columns:
    """What the passes read of all tables whose rows meet the keys."""
    by_head = any(len(run.table(table).shape) == 3 for table in tables)
    heads = run.heads if by_head else run.kv_heads
    lo, width, cells = products_of(run, tables, side_of(run, True), heads, LOG2E.value)
    return Columns(cells, ends_of(cells), heads, run.heads // heads, lo, width)


def ends_of(cells: Tensor) -> Tensor:
    """The first and the last of each row, side by side: rows of cells are far apart."""
    return cells[..., :: cells.shape[3] - 1].contiguous()


def products_of(
    run: Any, tables: Sequence[Table], side: Side, heads: int, unit: float
) -> tuple[int, int, Tensor]:
    """(the first distance, how many there are, `unit` times the products of these for so many
    heads)."""
    lo, hi = window_of(run, tables)
    width = hi - lo + 1
    cells = run.workspace(run.batch, heads, side.length, width)
    for n, table in enumerate(tables):
        if not side.length:
            continue
        factor, added = factor_of(run, table, side)
        rank = run.table(table).shape[-1]
        tile, blocks = blocks_of(run.chip, "write_products", rank)
        run.launch(
            write_products,
            (
                run.batch * heads * triton.cdiv(side.length, blocks["ROWS"]),
                triton.cdiv(width, blocks["CELLS"]),
            ),
            tile,
            factor=run.rows(factor, blocks["ROWS"], blocks["COLUMNS"]),
            cells=cells,
            added=added,
            length=side.length,
            fresh=int(n == 0),
            **parts_of_table(run, table, lo, hi, blocks),
            heads=heads,
            own_heads=side.heads,
            multiplier=multiplier_of(table) * unit,
            **blocks,
        )
    return lo, width, cells


def window_of(run: Any, tables: Sequence[Table]) -> tuple[int, int]:
    """Of tables that are read by the same distances."""
    lo, hi = min(table.map.lo for table in tables), max(table.map.hi for table in tables)
    return run.lowered.window(lo, hi, tables[0].delta)


def multiplier_of(table: Table) -> float:
    """Of the products of factor_of's rows and the table's."""
    factor = 1.0 if table.factor is None else table.factor.multiplier
    return table.scale * table.table.multiplier * factor


def factor_of(run: Any, table: Table, side: Side) -> tuple[Tensor, Added | None]:
    """What meets the rows of the table, and what is added to it."""
    ratio = 1.0
    factor = aligned(side.plain)
    if table.factor is not None:
        factor = aligned(table.factor.view(run.parameter(table.factor)))
        ratio = 1.0 / table.factor.multiplier
    if table.added is None:
        return factor, None
    data = table.added.view(run.parameter(table.added))
    return factor, Added(data, *data.stride(), table.added.multiplier * ratio)


def parts_of_table(
    run: Any, table: Table, lo: int, hi: int, blocks: dict[str, Any]
) -> dict[str, Any]:
    """What a launch reads of the table: the rows of the distances from lo to hi, as parts."""
    first, parts, rank = _parts_of(run, table, lo, hi)
    of_window = parts[:, :, lo - first : hi + 1 - first, :rank]
    of_parts = run.rows(of_window, blocks["CELLS"], blocks["COLUMNS"])
    sizes = {"table_heads": parts.shape[1], "rank": rank, "width": hi - lo + 1}
    return {"parts": of_parts, "COUNT": parts.shape[0], **sizes}


def _parts_of(run: Any, table: Table, lo: int, hi: int) -> tuple[int, Tensor, int]:
    """(the first distance, parts bfloat16 [COUNT, heads, distances, ..], columns), of those from lo
    to hi at least, written once for a call."""
    data, kept = run.table(table), run.lowered.parts_of_tables
    first, parts = kept.get(table, (0, None))
    if parts is None or lo < first or hi >= first + parts.shape[2]:
        maps = _maps_of(run.lowered) if table.delta is None else [table.map]
        reads = min(lo, *(each.lo for each in maps)), max(hi, *(each.hi for each in maps))
        first, last = run.lowered.entire.window(*reads, table.delta)
        first, last = min(first, lo), max(last, hi)
        kept[table] = first, _written(run, table, data, first, last)
    return *kept[table], data.shape[-1]


def _maps_of(lowered: Any) -> list[ClassMap]:
    """Of all that is read by the distances of tokens."""
    read = (*lowered.terms, *lowered.rows, *lowered.columns, *lowered.values)
    own = [each.map for each in read if each.delta is None]
    return own + [each.map for each in lowered.computed.terms]


def _written(run: Any, table: Table, data: Tensor, lo: int, hi: int) -> Tensor:
    count, rank, width = PARTS.get(data.dtype, 3), data.shape[-1], hi - lo + 1
    heads, pitch = data.shape[0] if data.dim() == 3 else 1, row_of(rank, 2)
    parts = run.workspace(count, heads, width, pitch, dtype=torch.bfloat16)
    run.launch(
        write_parts,
        (triton.cdiv(width, _WRITTEN["CELLS"]), heads, triton.cdiv(rank, _WRITTEN["COLUMNS"])),
        None,
        parts=parts,
        table=data,
        classes=table.map.classes(lo, hi, run.device),
        rank=rank,
        width=width,
        **table.strides(data),
        pitch=pitch,
        COUNT=count,
        WIDEN=INTERPRETS,
        **_WRITTEN,
    )
    return parts
