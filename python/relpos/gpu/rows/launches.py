"""The launches that write what the passes read of tables of rows."""

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor

from relpos.gpu.layout import aligned
from relpos.gpu.rows.tables import Projected, Table
from relpos.gpu.softmax import LOG2E
from relpos.gpu.terms.rows import Added, Rows, write_products
from relpos.gpu.tiles import PRODUCTS

BLOCKS = {"ROWS": PRODUCTS.queries, "CELLS": PRODUCTS.keys, "COLUMNS": 32}  # of a program


def rows_of(run: Any, tables: Sequence[Table]) -> Rows:
    """What the passes read of all tables whose rows meet the queries."""
    lo, hi = window_of(run, tables)
    width = hi - lo + 1
    cells = run.floats(run.batch, run.heads, run.queries, width)
    for n, table in enumerate(tables):
        factor, added = factor_of(run, table)
        run.launch(
            write_products,
            (
                run.batch * run.heads * triton.cdiv(run.queries, BLOCKS["ROWS"]),
                triton.cdiv(width, BLOCKS["CELLS"]),
            ),
            PRODUCTS,
            factor=run.rows(factor, BLOCKS["ROWS"], BLOCKS["COLUMNS"]),
            cells=cells,
            added=added,
            length=run.queries,
            fresh=int(n == 0),
            **table_of(run, table, lo, hi),
            multiplier=multiplier_of(table) * LOG2E.value,
            **BLOCKS,
        )
    return Rows(cells, run.heads, lo, width)


def window_of(run: Any, tables: Sequence[Table]) -> tuple[int, int]:
    lo, hi = min(table.map.lo for table in tables), max(table.map.hi for table in tables)
    return run.lowered.window(lo, hi)


def multiplier_of(table: Table) -> float:
    """Of the products of factor_of's rows and the table's."""
    factor = 1.0 if table.factor is None else table.factor.multiplier
    return table.scale * table.table.multiplier * factor


def factor_of(run: Any, table: Table) -> tuple[Tensor, Added | None]:
    """What meets the rows of the table, and what is added to it."""
    ratio = 1.0
    factor = aligned(run.plain[0])
    if table.factor is not None:
        factor = aligned(table.factor.view(run.parameter(table.factor)))
        ratio = 1.0 / table.factor.multiplier
    if table.added is None:
        return factor, None
    data = table.added.view(run.parameter(table.added))
    return factor, Added(data, *data.stride(), table.added.multiplier * ratio)


def table_of(run: Any, table: Table, lo: int, hi: int) -> dict[str, Any]:
    """The table of a launch, and the classes of the distances from lo to hi."""
    data = run.parameter(table.table)
    if isinstance(table.table, Projected):
        data = run.once(table.table, lambda: table.table.table(data))
    else:
        data = table.table.view(data)
    return {
        "table": data,
        "classes": table.map.classes(lo, hi, run.device),
        "heads": run.heads,
        "own_heads": run.heads,
        "rank": data.shape[-1],
        "width": hi - lo + 1,
        **table.strides(data),
    }
