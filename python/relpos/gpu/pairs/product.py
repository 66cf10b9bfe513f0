"""Products and roundings. Every operand of 16 bits goes through these functions.

WIDEN holds in the interpreter, which keeps bfloat16 as bit patterns: its products and sums would be
those of the patterns, and its casts to bfloat16 truncate. There 16-bit operands are float32 numbers
that were rounded as the GPU rounds them, so that products are the same.
"""

import triton
import triton.language as tl


@triton.jit
def product(x, y, acc, CONFIG: tl.constexpr):
    """acc + x y, summed in float32."""
    if CONFIG.widen:
        found = tl.dot(x.to(tl.float32), y.to(tl.float32), acc)
    else:
        found = tl.dot(x, y, acc, input_precision=CONFIG.precision)
    return found


@triton.jit
def wide_product(x, y, acc, DEPTH: tl.constexpr, WIDEN: tl.constexpr):
    """acc + x y of numbers that are not rounded, by products of their bfloat16 parts, which are
    twice as fast as tf32's and take operands in either order. Products of parts i and j with
    i + j >= DEPTH are left out: of the whole 2 ** (-8 DEPTH), an ulp of float32 where it is 3."""
    of_x: tl.constexpr = 1 if x.dtype == tl.bfloat16 else (2 if x.dtype == tl.float16 else 3)
    of_y: tl.constexpr = 1 if y.dtype == tl.bfloat16 else (2 if y.dtype == tl.float16 else 3)
    for i in tl.static_range(of_x):
        for j in tl.static_range(of_y):
            if i + j < DEPTH:
                acc = tl.dot(part_of(x, i, WIDEN), part_of(y, j, WIDEN), acc)
    return acc


@triton.jit
def part_of(x, N: tl.constexpr, WIDEN: tl.constexpr):
    """Number N of the parts of x, from the largest on: eight bits each, so that a bfloat16 number
    has one, a float16 two, and a float32 three. Infinity and NaN are in the first."""
    if x.dtype == tl.bfloat16:
        found = x.to(tl.float32)
    else:
        found = x.to(tl.float32)
        for _ in tl.static_range(N):
            found = tl.where(not_finite(found), 0.0, found - leading(found))
        found = leading(found)
    return operand(found, tl.bfloat16, WIDEN)


@triton.jit
def leading(x):
    """float32 numbers of the first eight bits."""
    return (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def wide_product_of_met(x, y, acc, DEPTH: tl.constexpr, WIDEN: tl.constexpr):
    """The same, where a number of y that is not finite reaches, as NaN, the rows alone whose number
    for it is not 0."""
    odd = not_finite(y.to(tl.float32))
    zero = tl.zeros(acc.shape, tl.float32)
    held = operand(tl.where(x != 0.0, 1.0, 0.0), tl.bfloat16, WIDEN)
    met = tl.dot(held, operand(tl.where(odd, 1.0, 0.0), tl.bfloat16, WIDEN), zero)
    found = wide_product(x, tl.where(odd, 0.0, y.to(tl.float32)).to(y.dtype), acc, DEPTH, WIDEN)
    return tl.where(met > 0.0, float("nan"), found)


@triton.jit
def product_of_seen(p, y, visible, acc, CONFIG: tl.constexpr):
    """acc + p y of p float32, rounded to y's type, which is 0 where a pair is hidden. Under
    CONFIG.again a number of y that is not finite reaches the rows that see it alone; else all of
    the tile's, as 0 times it is NaN."""
    x = operand(p, y.dtype, CONFIG.widen)
    if CONFIG.again:
        wide = y.to(tl.float32)
        odd = not_finite(wide)
        zero = tl.zeros(acc.shape, tl.float32)
        acc = product(x, tl.where(odd, 0.0, wide).to(x.dtype), acc, CONFIG)
        met = product(ones(visible, x), ones(odd, x), zero, CONFIG)
        infinite = odd & (wide == wide)
        up = product(signs(p, x), tl.where(infinite, signs(wide, x), 0.0).to(x.dtype), zero, CONFIG)
        limit = tl.where(tl.abs(up) == met, up * float("inf"), float("nan"))
        found = tl.where(met == 0.0, acc, acc + limit)
    else:
        found = product(x, y, acc, CONFIG)
    return found


@triton.jit
def all_finite(x):
    """Whether all of a tile is."""
    return tl.max(odd_rows(x), 0) == 0


@triton.jit
def not_finite(x):
    return (tl.abs(x) < float("inf")) == 0


@triton.jit
def ones(chosen, x):
    """1 where chosen, else 0, as operands like x."""
    return tl.where(chosen, 1.0, 0.0).to(x.dtype)


@triton.jit
def signs(p, x):
    """1, -1 or 0 as p is positive, negative or neither, as operands like x."""
    return (tl.where(p > 0.0, 1.0, 0.0) - tl.where(p < 0.0, 1.0, 0.0)).to(x.dtype)


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
def odd_rows(x):
    """1 for each row that has a number which is not finite, else 0."""
    return tl.max(tl.where(not_finite(x), 1, 0), 1)


@triton.jit
def marked(odd, row, count, ROWS: tl.constexpr):
    """Whether one of the first `count` of so many rows is, as mark_rows says."""
    a = tl.arange(0, ROWS)
    return tl.max(tl.load(odd + row + a, a < count, 0).to(tl.int32), 0) > 0


@triton.jit
def rows(tensor, b, h, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, column=0):
    """Rows [ROWS, COLUMNS] of a descriptor of [B, H, L, D] from `first` and `column` on, 0 beyond L
    and D."""
    return tl.reshape(tensor.load([b, h, first, column]), (ROWS, COLUMNS))


@triton.jit
def products_of(x, y, CONFIG: tl.constexpr):
    return product(x, y, tl.zeros((x.shape[0], y.shape[1]), tl.float32), CONFIG)


@triton.jit
def write_rows(to, x, row, count, size, WIDEN: tl.constexpr):
    """Writes the first `count` of the rows x to memory [.., size], from row `row` on."""
    a = tl.arange(0, x.shape[0])[:, None]
    c = tl.arange(0, x.shape[1])[None, :]
    at = to + row * size
    tl.store(at + a * size + c, stored(x, to.dtype.element_ty, WIDEN), (a < count) & (c < size))
