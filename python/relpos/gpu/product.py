"""Products and roundings. Every operand of 16 bits goes through these functions.

WIDEN holds in the interpreter, which keeps bfloat16 as bit patterns: its products and sums would be
those of the patterns, and its casts to bfloat16 truncate. There 16-bit operands are float32 numbers
that were rounded as the GPU rounds them, so that products are the same.
"""

import triton
import triton.language as tl


@triton.jit
def product(x, y, acc, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """acc + x y, summed in float32."""
    if WIDEN:
        found = tl.dot(x.to(tl.float32), y.to(tl.float32), acc)
    else:
        found = tl.dot(x, y, acc, input_precision=PRECISION)
    return found


@triton.jit
def rounded(x, DTYPE: tl.constexpr, WIDEN: tl.constexpr):
    """float32 numbers that a cast to DTYPE leaves as they are under WIDEN; to nearest even."""
    if WIDEN and DTYPE == tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.uint32, bitcast=True)
        even = bits + 0x7FFF + ((bits >> 16) & 1)
        found = tl.where(x == x, (even & 0xFFFF0000).to(tl.float32, bitcast=True), x)
    else:
        found = x
    return found


@triton.jit
def stored(x, DTYPE: tl.constexpr, WIDEN: tl.constexpr):
    """float32 numbers as they are written to memory of DTYPE."""
    return rounded(x, DTYPE, WIDEN).to(DTYPE)


@triton.jit
def operand(x, DTYPE: tl.constexpr, WIDEN: tl.constexpr):
    """float32 numbers rounded to DTYPE, for `product`."""
    if WIDEN:  # noqa: SIM108  a branch that is not taken is not typed
        found = stored(x, DTYPE, WIDEN).to(tl.float32)
    else:
        found = x.to(DTYPE)
    return found


@triton.jit
def rows(tensor, b, h, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows [ROWS, COLUMNS] of a descriptor of [B, H, L, D], 0 beyond L and D."""
    return tl.reshape(tensor.load([b, h, first, 0]), (ROWS, COLUMNS))


@triton.jit
def write_rows(
    to, x, row, count, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDEN: tl.constexpr
):
    """Writes the first `count` of the rows x [ROWS, COLUMNS] to memory [.., size], from row `row`
    on."""
    a = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLUMNS)[None, :]
    at = to + row * size
    tl.store(at + a * size + c, stored(x, to.dtype.element_ty, WIDEN), (a < count) & (c < size))
