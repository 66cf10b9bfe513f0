"""What becomes of the results of passes: sums of the shares of backward_keys, rounded once, and
which results are computed anew."""

import triton
import triton.language as tl

from relpos.gpu.pairs.product import odd_rows, stored


@triton.jit(do_not_specialize=["count", "size"])
def join_shares(
    to, shares, count, size, slope, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDEN: tl.constexpr
):
    """to [count, size]: slope times the sum of shares float32 [2, count, size]. A program for each
    block of rows."""
    row = tl.cast(tl.program_id(0), tl.int64) * ROWS
    a, c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (a < count - row) & (c < size)
    at = row * size + a * size + c
    found = tl.load(shares + at, inside, 0.0)
    found += tl.load(shares + tl.cast(count, tl.int64) * size + at, inside, 0.0)
    tl.store(to + at, stored(found * slope, to.dtype.element_ty, WIDEN), inside)


@triton.jit(do_not_specialize=["count", "x_size", "y_size"])
def mark_rows(
    odd, x, y, count, x_size, y_size, ROWS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr
):
    """odd int8 [count]: which rows of x [count, x_size], and of y if given, have a number that is
    not finite. A program for each block of rows."""
    row = tl.cast(tl.program_id(0), tl.int64) * ROWS
    a = tl.arange(0, ROWS)[:, None]
    c, d = tl.arange(0, X)[None, :], tl.arange(0, Y)[None, :]
    of_x = tl.load(x + row * x_size + a * x_size + c, (a < count - row) & (c < x_size), 0.0)
    found = odd_rows(of_x.to(tl.float32))
    if y is not None:
        of_y = tl.load(y + row * y_size + a * y_size + d, (a < count - row) & (d < y_size), 0.0)
        found = tl.maximum(found, odd_rows(of_y.to(tl.float32)))
    a = tl.arange(0, ROWS)
    tl.store(odd + row + a, found.to(tl.int8), a < count - row)
