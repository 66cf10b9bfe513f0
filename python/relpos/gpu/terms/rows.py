"""Rows of a table that meet the queries: scale <a_i, r[m(delta)]>.

The products of each query and the distances lo, ..., lo + width - 1 are written before the passes,
which read them by the distance of a pair; the first stands for all distances before, too, and the
last for all after. Their gradients come back by the same distances (sums/bands.py)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.product import part_of, rows, stored, wide_product
from relpos.gpu.pairs.visibility import near


class Rows(NamedTuple):
    """cells float32 [B, H, Lq, width]: the products. ends [B, H, Lq, 2]: the first and the last of
    each query, side by side, for tiles in which no table changes."""

    cells: Any
    ends: Any
    heads: Any
    lo: Any
    width: Any


class Added(NamedTuple):
    """data [H, r], and the elements between two heads and columns: multiplier times it is added to
    what meets the rows."""

    data: Any
    head: Any
    column: Any
    multiplier: Any


@triton.jit
def row_score(s, term, at, distances):
    b, h, q0, _, a, _, queries, _, _ = at
    corner, within = distances
    x = near(corner - term.lo) + within
    row = (tl.cast(b, tl.int64) * term.heads + h) * queries + q0
    return s + tl.load(cell_of(term, row, a, x), a < queries - q0, 0.0)


@triton.jit
def cell_of(term, row, n, x):
    """Where the product of rows `row` + n lies, x distances after lo; of a scalar x, that of tiles
    in which no table changes, at an end."""
    if len(x.shape) == 0:
        found = term.ends + row * 2 + tl.where(x > 0, 1, 0) + n * 2
    else:
        within = n * term.width + tl.minimum(tl.maximum(x, 0), term.width - 1)
        found = term.cells + row * term.width + within
    return found


@triton.jit
def added_columns(added, h, d, rank, COLUMNS: tl.constexpr):
    """float32 [COLUMNS] of what is added for head h, from column d on."""
    n = d + tl.arange(0, COLUMNS)
    found = tl.load(added.data + h * added.head + n * added.column, n < rank, 0.0)
    return found.to(tl.float32) * added.multiplier


@triton.jit(do_not_specialize=["rank", "width", "head_stride", "class_stride"])
def write_parts(
    parts,
    table,
    classes,
    rank,
    width,
    head_stride,
    class_stride,
    column_stride,
    pitch,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """parts bfloat16 [COUNT, heads, width, pitch]: the parts (part_of) of the row of each cell's
    class, zeros for class -1. Program (block of cells, head, block of columns)."""
    x = tl.program_id(0) * CELLS + tl.arange(0, CELLS)[:, None]
    h = tl.cast(tl.program_id(1), tl.int64)
    n = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    m = tl.load(classes + x, x < width, -1)
    at = table + h * head_stride + tl.cast(m, tl.int64) * class_stride + n * column_stride
    found = tl.load(at, (m >= 0) & (n < rank), 0.0)
    for part in tl.static_range(COUNT):
        row = (tl.cast(part, tl.int64) * tl.num_programs(1) + h) * width + x
        of_part = stored(part_of(found, part, WIDEN).to(tl.float32), tl.bfloat16, WIDEN)
        tl.store(parts + row * pitch + n, of_part, (x < width) & (n < rank))


OF_TABLE = ["heads", "own_heads", "rank", "width"]


@triton.jit(do_not_specialize=[*OF_TABLE, "length", "fresh"])
def write_products(
    factor,
    cells,
    parts,
    added,
    heads,
    own_heads,
    table_heads,
    length,
    rank,
    width,
    multiplier,
    fresh,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """cells [B, H, L, width], to what they held unless `fresh`: multiplier times the products of
    factor [B, own_heads, L, r] and what is added to it with the rows of `parts`, a descriptor of
    [COUNT, table_heads, width, r] (write_parts). Program (block of rows of a head, block of
    cells)."""
    blocks = tl.cdiv(length, ROWS)
    head = tl.program_id(0) // blocks
    i = tl.program_id(0) % blocks * ROWS
    b, h = head // heads, head % heads
    own, of_table = h // (heads // own_heads), h // (heads // table_heads)
    first = tl.program_id(1) * CELLS
    acc = tl.zeros((ROWS, CELLS), tl.float32)
    more = tl.zeros((CELLS,), tl.float32)
    for d in range(0, rank, COLUMNS):
        left = rows(factor, b, own, i, ROWS, COLUMNS, d)
        for part in tl.static_range(COUNT):
            right = rows(parts, part, of_table, first, CELLS, COLUMNS, d)
            acc = wide_product(left, tl.trans(right), acc, 3 - part, WIDEN)
            if added is not None:
                joins = added_columns(added, h, d, rank, COLUMNS)
                more += tl.sum(right.to(tl.float32) * joins[None, :], 1)
    if added is not None:
        acc += more[None, :]
    a = tl.arange(0, ROWS)[:, None]
    x = first + tl.arange(0, CELLS)
    to = cells + (tl.cast(head, tl.int64) * length + i) * width + a * width + x[None, :]
    inside = (a < length - i) & (x < width)[None, :]
    found = acc * multiplier
    if fresh == 0:
        found += tl.load(to, inside, 0.0)
    tl.store(to, found, inside)
