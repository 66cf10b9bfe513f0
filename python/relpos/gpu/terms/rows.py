"""Rows of a table that meet the queries: scale <a_i, r[m(delta)]>.

The products of each query and the distances lo, ..., lo + width - 1 are written before the passes,
which read them by the distance of a pair; the first stands for all distances before, too, and the
last for all after. Their gradients come back by the same distances (sums/bands.py)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.product import rows, wide_product
from relpos.gpu.pairs.visibility import near


class Rows(NamedTuple):
    """cells float32 [B, H, Lq, width]: the products."""

    cells: Any
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
    at_row = term.cells + row * term.width + a * term.width
    return s + tl.load(at_row + tl.minimum(tl.maximum(x, 0), term.width - 1), a < queries - q0, 0.0)


@triton.jit
def factor_rows(factor, added, b, h, own, i, d, rank, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """float32 [ROWS, COLUMNS] of what meets the rows of a table, from row i and column d on: a
    descriptor [B, .., L, r], of its head `own`, and what is added for head h."""
    found = rows(factor, b, own, i, ROWS, COLUMNS, d).to(tl.float32)
    if added is not None:
        n = d + tl.arange(0, COLUMNS)
        more = tl.load(added.data + h * added.head + n * added.column, n < rank, 0.0)
        found += (more.to(tl.float32) * added.multiplier)[None, :]
    return found


OF_TABLE = ["heads", "own_heads", "rank", "width", "head_stride", "class_stride"]


@triton.jit(do_not_specialize=[*OF_TABLE, "length", "fresh"])
def write_products(
    factor,
    cells,
    table,
    classes,
    added,
    heads,
    own_heads,
    length,
    rank,
    width,
    head_stride,
    class_stride,
    column_stride,
    multiplier,
    fresh,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """cells [B, H, L, width], to what they held unless `fresh`: multiplier times the products of
    factor_rows and of the row of each cell's class, 0 for class -1. Program (block of rows of a
    head, block of cells)."""
    blocks = tl.cdiv(length, ROWS)
    head = tl.program_id(0) // blocks
    i = tl.program_id(0) % blocks * ROWS
    b, h = head // heads, head % heads
    own = h // (heads // own_heads)
    x = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    m = tl.load(classes + x, x < width, -1)
    of_cells = table + tl.cast(h, tl.int64) * head_stride + tl.cast(m, tl.int64) * class_stride
    acc = tl.zeros((ROWS, CELLS), tl.float32)
    for d in range(0, rank, COLUMNS):
        n = d + tl.arange(0, COLUMNS)[None, :]
        inside = (m >= 0)[:, None] & (n < rank)
        right = tl.load(of_cells[:, None] + n * column_stride, inside, 0.0).to(tl.float32)
        left = factor_rows(factor, added, b, h, own, i, d, rank, ROWS, COLUMNS)
        acc = wide_product(left, tl.trans(right), acc)
    a = tl.arange(0, ROWS)[:, None]
    to = cells + (tl.cast(head, tl.int64) * length + i) * width + a * width + x[None, :]
    inside = (a < length - i) & (x < width)[None, :]
    found = acc * multiplier
    if fresh == 0:
        found += tl.load(to, inside, 0.0)
    tl.store(to, found, inside)
