"""The distance bias: b[h, m(delta)] of a table, and the gradient of the table.

Cells [H, width] hold the bias of the distances lo, ..., lo + width - 1, between which the class
changes; the first stands for all distances before, too, and the last for all after. The gradient
comes back by the same distances: `distance_sums` has the sum of the scores' gradients for each."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.product import stored
from relpos.gpu.pairs.visibility import near


class Bias(NamedTuple):
    """cells float32 [H, stride], in log2 units."""

    cells: Any
    stride: Any
    lo: Any
    width: Any


@triton.jit
def bias_score(s, term, at, distances):
    _, h, _, _, _, _, _, _, _ = at
    corner, within = distances
    x = near(corner - term.lo) + within
    row = term.cells + tl.cast(h, tl.int64) * term.stride
    return s + tl.load(row + tl.minimum(tl.maximum(x, 0), term.width - 1))


@triton.jit(do_not_specialize=["head_stride", "class_stride", "stride", "width"])
def write_cells(
    cells, table, classes, head_stride, class_stride, multiplier, stride, width, BLOCK: tl.constexpr
):
    """Program (block of cells, h): multiplier * table[h, class of the cell], 0 for class -1."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.cast(tl.program_id(1), tl.int64)
    m = tl.load(classes + x, x < width, -1)
    numbers = tl.load(table + h * head_stride + tl.cast(m, tl.int64) * class_stride, m >= 0, 0.0)
    found = numbers.to(tl.float32) * multiplier
    tl.store(cells + h * stride + x, found, x < width)


@triton.jit(do_not_specialize=["head_stride", "class_stride", "width", "rows", "longest"])
def write_table_gradient(
    gradient,
    sums,
    cells,
    starts,
    head_stride,
    class_stride,
    multiplier,
    width,
    rows,
    longest,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (block of classes, h): multiplier times the sum of `sums` [H, width] at the cells of
    each class, cells[starts[m]], ..., cells[starts[m + 1] - 1]."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    begin = tl.load(starts + m, m < rows, 0)
    end = tl.load(starts + m + 1, m < rows, 0)
    h = tl.cast(tl.program_id(1), tl.int64)
    acc = tl.zeros((ROWS, CELLS), tl.float64)
    for n in range(0, longest, CELLS):
        at = begin + n + tl.arange(0, CELLS)[None, :]
        cell = tl.load(cells + at, at < end, 0)
        acc += tl.load(sums + h * width + cell, at < end, 0.0)
    total = (tl.sum(acc, 1, keep_dims=True) * multiplier).to(tl.float32)
    to = gradient + h * head_stride + tl.cast(m, tl.int64) * class_stride
    tl.store(to, stored(total, gradient.dtype.element_ty, WIDEN), m < rows)
