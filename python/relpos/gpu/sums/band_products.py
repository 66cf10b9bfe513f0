"""What bands are multiplied by: the table, for the gradient of what meets its rows, and what meets
them, for the gradient of the table."""

import triton
import triton.language as tl

from relpos.gpu.pairs.product import all_finite, rows, stored, wide_product, wide_product_of_met
from relpos.gpu.terms.rows import OF_TABLE, added_columns


@triton.jit(do_not_specialize=[*OF_TABLE, "length"])
def multiply_bands(
    gradient,
    bands,
    parts,
    length,
    heads,
    own_heads,
    table_heads,
    rank,
    width,
    multiplier,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDEN: tl.constexpr,
    AGAIN: tl.constexpr,
):
    """gradient float32 [B, own_heads, L, r] of what meets the rows: multiplier times the bands of a
    row, a descriptor, times the table, over the heads that share it. parts, COUNT: as
    write_products has them. Program (block of rows of a head, block of columns). AGAIN: what is not
    finite, once more, so that a number of the table which is not finite reaches the rows alone that
    read it."""
    blocks = tl.cdiv(length, ROWS)
    own = tl.program_id(0) // blocks
    i = tl.program_id(0) % blocks * ROWS
    a = tl.arange(0, ROWS)[:, None]
    d = tl.program_id(1) * COLUMNS
    n = (d + tl.arange(0, COLUMNS))[None, :]
    to = gradient + (tl.cast(own, tl.int64) * length + i) * rank + a * rank + n
    inside = (a < length - i) & (n < rank)
    if AGAIN:  # noqa: SIM102  a branch that is not taken is not typed
        if all_finite(tl.load(to, inside, 0.0)):
            return
    b = own // own_heads
    group = heads // own_heads
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for g in range(group):
        h = own % own_heads * group + g
        of_table = h // (heads // table_heads)
        for first in range(0, width, CELLS):
            left = rows(bands, b, h, i, ROWS, CELLS, first)
            for part in tl.static_range(COUNT if COUNT < DEPTH else DEPTH):
                right = rows(parts, part, of_table, first, CELLS, COLUMNS, d)
                if AGAIN:
                    acc = wide_product_of_met(left, right, acc, DEPTH - part, WIDEN)
                else:
                    acc = wide_product(left, right, acc, DEPTH - part, WIDEN)
    tl.store(to, acc * multiplier, inside)


@triton.jit(do_not_specialize=["batch", "length", *OF_TABLE, "parts"])
def sum_band_rows(
    factor,
    sums,
    bands,
    added,
    batch,
    length,
    heads,
    own_heads,
    rank,
    width,
    parts,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDEN: tl.constexpr,
    AGAIN: tl.constexpr,
):
    """sums float64 [parts, H, width, r]: of each cell the bands of all rows, a descriptor, times
    factor [B, own_heads, L, r] and what is added to it, a part of the blocks of rows in each of
    `parts`. Program (block of cells, part and head, block of columns). AGAIN: as in multiply_bands,
    of the numbers of rows."""
    first = tl.program_id(0) * CELLS
    x = first + tl.arange(0, CELLS)
    h = tl.program_id(1) % heads
    part = tl.program_id(1) // heads
    d = tl.program_id(2) * COLUMNS
    n = (d + tl.arange(0, COLUMNS))[None, :]
    to = sums + (tl.cast(tl.program_id(1), tl.int64) * width + x[:, None]) * rank + n
    inside = (x < width)[:, None] & (n < rank)
    if AGAIN:  # noqa: SIM102  a branch that is not taken is not typed
        if all_finite(tl.load(to, inside, 0.0)):
            return
    blocks = tl.cdiv(length, ROWS)
    count = tl.cdiv(batch * blocks, parts)
    acc = tl.zeros((CELLS, COLUMNS), tl.float64)
    total = tl.zeros((CELLS,), tl.float64)
    for block in range(part * count, tl.minimum((part + 1) * count, batch * blocks)):
        b = block // blocks
        i = block % blocks * ROWS
        left = rows(bands, b, h, i, ROWS, CELLS, first)
        right = rows(factor, b, h // (heads // own_heads), i, ROWS, COLUMNS, d)
        none = tl.zeros((CELLS, COLUMNS), tl.float32)
        if AGAIN:
            found = wide_product_of_met(tl.trans(left), right, none, 3, WIDEN)
        else:
            found = wide_product(tl.trans(left), right, none, 3, WIDEN)
        acc += found.to(tl.float64)
        if added is not None:
            total += tl.sum(left, 0).to(tl.float64)
    if added is not None:
        joins = added_columns(added, h, d, rank, COLUMNS)[None, :].to(tl.float64)
        acc += tl.where(total[:, None] == 0.0, 0.0, total[:, None] * joins)
    tl.store(to, acc, inside)


OF_ROWS = ["heads", "several", "parts", "width", "rows", "rank", "longest"]
OF_ROWS += ["head_stride", "class_stride", "column_stride"]


@triton.jit(do_not_specialize=OF_ROWS)
def write_rows_gradient(
    gradient,
    sums,
    cells,
    starts,
    heads,
    several,
    parts,
    width,
    rows,
    rank,
    longest,
    head_stride,
    class_stride,
    column_stride,
    multiplier,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """The gradient of a table: multiplier times the sum of `sums` [parts, H, width, r] at the cells
    of each class, as in write_table_gradient, over the `several` heads that share a table. Program
    (block of classes, head of the table, block of columns)."""
    m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None, None]
    begin = tl.load(starts + m, m < rows, 0)
    end = tl.load(starts + m + 1, m < rows, 0)
    n = (tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS))[None, None, :]
    acc = tl.zeros((ROWS, CELLS, COLUMNS), tl.float64)
    for part in range(parts):
        for g in range(several):
            head = tl.cast(part * heads + tl.program_id(1) * several + g, tl.int64)
            for k in range(0, longest, CELLS):
                at = begin + k + tl.arange(0, CELLS)[None, :, None]
                cell = tl.load(cells + at, at < end, 0)
                from_ = sums + (head * width + cell) * rank + n
                acc += tl.load(from_, (at < end) & (n < rank), 0.0)
    total = (tl.sum(acc, 1, keep_dims=True) * multiplier).to(tl.float32)
    to = gradient + tl.cast(tl.program_id(1), tl.int64) * head_stride
    to += tl.cast(m, tl.int64) * class_stride + n * column_stride
    found = stored(total, gradient.dtype.element_ty, WIDEN)
    tl.store(to, found, (m < rows) & (n < rank))
