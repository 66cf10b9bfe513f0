"""R of the scores: rows of queries and of keys, turned in pairs of their dimensions before the
passes, and gradients turned back after them (Su et al.: RoFormer, arXiv 2104.09864, section 3.2).

A pair (x, y) becomes (x cos - y sin, y cos + x sin). Angles are float64, and their cosines and
sines are rounded once to float32, as on the CPU (src/values/angles.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.product import stored


class Strided(NamedTuple):
    """Numbers [B, H, L, N] in memory, with the elements between two of each axis, 0 where all share
    theirs; `multiplier` times each is meant."""

    data: Any
    batch: Any
    head: Any
    row: Any
    column: Any
    multiplier: Any


class Turn(NamedTuple):
    """cos, sin: of [B, tables, L, pairs], a table for each `share` heads. Pair p is the dimensions
    start + step p and start + step p + apart, p < pairs."""

    cos: Any
    sin: Any
    share: Any
    start: Any
    step: Any
    apart: Any
    pairs: Any


@triton.jit
def cos_and_sin(angle):
    """Those of float64 angles in radians, rounded to float32. An angle is counted in turns, of
    which the whole ones go before anything is lost but 2^-53 of it, as in a product with 1 / 2 pi
    in two parts; a polynomial has the rest of an eighth."""
    whole = tl.floor(angle * 0.15915494309189535 + 0.5)
    turns = tl.full(angle.shape, 0.15915494309189535, tl.float64)  # fma rounds literals before 3.9
    rest = tl.fma(angle, turns, -whole) - angle * 9.839338337591243e-18
    quarter = tl.floor(4.0 * rest + 0.5)
    x = (rest - 0.25 * quarter) * 6.283185307179586
    square = x * x
    s = 1.0 - square * (1.0 / 156.0)
    s = 1.0 - square * (1.0 / 110.0) * s
    s = 1.0 - square * (1.0 / 72.0) * s
    s = 1.0 - square * (1.0 / 42.0) * s
    s = 1.0 - square * (1.0 / 20.0) * s
    s = x * (1.0 - square * (1.0 / 6.0) * s)
    c = 1.0 - square * (1.0 / 132.0)
    c = 1.0 - square * (1.0 / 90.0) * c
    c = 1.0 - square * (1.0 / 56.0) * c
    c = 1.0 - square * (1.0 / 30.0) * c
    c = 1.0 - square * (1.0 / 12.0) * c
    c = 1.0 - square * (1.0 / 2.0) * c
    turns = quarter - 4.0 * tl.floor(quarter * 0.25)  # 0, 1, 2 or 3 quarters
    odd = (turns == 1.0) | (turns == 3.0)
    cos, sin = tl.where(odd, s, c), tl.where(odd, c, s)
    cos = tl.where((turns == 1.0) | (turns == 2.0), -cos, cos)
    sin = tl.where(turns >= 2.0, -sin, sin)
    return cos, sin


OF_ANGLES = ["axes", "length", "tokens", "tables", "pairs"]


@triton.jit(do_not_specialize=OF_ANGLES)
def write_turns(
    cos,
    sin,
    at,
    frequency,
    factors,
    axes,
    length,
    tokens,
    tables,
    pairs,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    FLOAT32: tl.constexpr,
):
    """cos and sin float32 [.., tables, L, pairs] of tokens whose coordinate of axis a is `at`, a
    Strided int64 [.., axes, L, 1]. The angle is the sum over the axes of it times the frequency, a
    Strided [1, axes, tables, pairs]; FLOAT32: of products of float32. factors float64 [2]: what
    cosines and sines are multiplied by, and what frequencies are. Program (block of tokens of all
    batch rows, table)."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    h = tl.program_id(1)
    p = tl.arange(0, PAIRS)[None, :]
    b, i = tl.cast(n // length, tl.int64), tl.cast(n % length, tl.int64)
    magnitude, multiplier = tl.load(factors), tl.load(factors + 1)
    angle = tl.zeros((BLOCK, PAIRS), tl.float64)
    for a in range(axes):
        x = tl.load(at.data + b * at.batch + a * at.head + i * at.row, n < tokens, 0)
        of_pairs = frequency.data + a * frequency.head + h * frequency.row + p * frequency.column
        f = tl.load(of_pairs, p < pairs, 0.0)
        if FLOAT32:
            angle += (x.to(tl.float32) * f.to(tl.float32)).to(tl.float64)
        else:
            angle += x.to(tl.float64) * (wide(f) * multiplier)
    c, s = cos_and_sin(angle)
    to = ((b * tables + h) * length + i) * pairs + p
    inside = (n < tokens) & (p < pairs)
    tl.store(cos + to, (c * magnitude).to(tl.float32), inside)
    tl.store(sin + to, (s * magnitude).to(tl.float32), inside)


@triton.jit
def wide(x):
    """In float64; numbers of 16 bits by way of float32, as the interpreter needs it."""
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    return x.to(tl.float64)


@triton.jit
def turn_at(turn, b, h, i, count, p, PAIRS: tl.constexpr):
    """(cosines, sines) [rows, PAIRS] of rows i < count of head h."""
    own = tl.cast(h // turn.share, tl.int64)
    inside = (i < count) & (p < turn.pairs)
    c, s = turn.cos, turn.sin
    of_cos = c.data + tl.cast(b, tl.int64) * c.batch + own * c.head
    of_sin = s.data + tl.cast(b, tl.int64) * s.batch + own * s.head
    at = tl.cast(i, tl.int64)
    cos = tl.load(of_cos + at * c.row + p * c.column, inside, 0.0).to(tl.float32) * c.multiplier
    sin = tl.load(of_sin + at * s.row + p * s.column, inside, 0.0).to(tl.float32) * s.multiplier
    return cos, sin


@triton.jit
def pair_at(x, turn, b, h, i, count, p):
    """float32 pairs of rows i < count of a Strided."""
    first = turn.start + turn.step * p
    inside = (i < count) & (p < turn.pairs)
    row = x.data + tl.cast(b, tl.int64) * x.batch + tl.cast(h, tl.int64) * x.head
    row += tl.cast(i, tl.int64) * x.row
    x1 = tl.load(row + first * x.column, inside, 0.0).to(tl.float32)
    x2 = tl.load(row + (first + turn.apart) * x.column, inside, 0.0).to(tl.float32)
    return x1, x2


@triton.jit(do_not_specialize=["heads", "length", "head_dim"])
def turn_rows(
    to,
    x,
    turns,
    heads,
    length,
    head_dim,
    BM: tl.constexpr,
    BD: tl.constexpr,
    PAIRS: tl.constexpr,
    INVERSE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """to: R x, or its inverse, of Grids [B, H, L, D]: a program for each block of rows of a head.
    Dimensions that no turn has are copied. A row of zeros stays one under INVERSE, whatever it
    turns by."""
    blocks = tl.cdiv(length, BM)
    head = tl.program_id(0) // blocks
    b, h = head // heads, head % heads
    i = (tl.program_id(0) % blocks) * BM + tl.arange(0, BM)[:, None]
    d = tl.arange(0, BD)[None, :]
    row = tl.cast(b, tl.int64) * x.batch + tl.cast(h, tl.int64) * x.head
    row += tl.cast(i, tl.int64) * x.row
    held = tl.load(x.data + row + d * x.column, (i < length) & (d < head_dim), 0.0).to(tl.float32)
    given = tl.max(tl.where(held != 0.0, 1, 0), 1, keep_dims=True) > 0
    kept = (i < length) & (d < head_dim)
    out = to.data + tl.cast(b, tl.int64) * to.batch + tl.cast(h, tl.int64) * to.head
    out += tl.cast(i, tl.int64) * to.row
    for n in tl.static_range(len(PAIRS)):
        turn = turns[n]
        end = turn.start + 2 * turn.pairs
        kept &= (d < turn.start) | (d >= end)
        p = tl.arange(0, PAIRS[n])[None, :]
        cos, sin = turn_at(turn, b, h, i, length, p, PAIRS[n])
        x1, x2 = pair_at(x, turn, b, h, i, length, p)
        if INVERSE:
            sin = -sin
        y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
        if INVERSE:
            y1, y2 = tl.where(given, y1, 0.0), tl.where(given, y2, 0.0)
        inside = (i < length) & (p < turn.pairs)
        first = out + (turn.start + turn.step * p) * to.column
        tl.store(first, stored(y1, to.data.dtype.element_ty, WIDEN), inside)
        second = first + turn.apart * to.column
        tl.store(second, stored(y2, to.data.dtype.element_ty, WIDEN), inside)
    tl.store(out + d * to.column, stored(held, to.data.dtype.element_ty, WIDEN), kept)


@triton.jit
def gradient_at(x, dy, turn, b, h, i, count, p):
    """What cosines and sines get from rows x before R and dy, the gradient of R x. Zeros of dy give
    0, whatever x is."""
    x1, x2 = pair_at(x, turn, b, h, i, count, p)
    d1, d2 = pair_at(dy, turn, b, h, i, count, p)
    given = (d1 != 0.0) | (d2 != 0.0)
    of_cos = tl.where(given, d1 * x1 + d2 * x2, 0.0)
    return of_cos, tl.where(given, d2 * x1 - d1 * x2, 0.0)


@triton.jit(do_not_specialize=["heads", "length"])
def write_turn_gradient(
    of_cos,
    of_sin,
    x,
    dy,
    turn,
    heads,
    length,
    shared,
    BM: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """of_cos and of_sin: Grids of the gradients of given cosines and sines, or None; x and dy Grids
    [B, heads, L, D] as in gradient_at. A program for each block of rows of a table, which `shared`
    heads have."""
    blocks = tl.cdiv(length, BM)
    table = tl.program_id(0) // blocks
    tables = heads // shared
    b, own = table // tables, table % tables
    i = (tl.program_id(0) % blocks) * BM + tl.arange(0, BM)[:, None]
    p = tl.arange(0, PAIRS)[None, :]
    cos = tl.zeros((BM, PAIRS), tl.float32)
    sin = tl.zeros((BM, PAIRS), tl.float32)
    for n in range(shared):
        c, s = gradient_at(x, dy, turn, b, own * shared + n, i, length, p)
        cos += c
        sin += s
    if of_cos is not None:
        write_grid(of_cos, cos, b, own, i, length, p, turn.pairs, WIDEN)
    if of_sin is not None:
        write_grid(of_sin, sin, b, own, i, length, p, turn.pairs, WIDEN)


@triton.jit
def write_grid(to, x, b, h, i, count, p, columns, WIDEN: tl.constexpr):
    at = to.data + tl.cast(b, tl.int64) * to.batch + tl.cast(h, tl.int64) * to.head
    at += tl.cast(i, tl.int64) * to.row + p * to.column
    x *= to.multiplier
    tl.store(at, stored(x, to.data.dtype.element_ty, WIDEN), (i < count) & (p < columns))


@triton.jit(do_not_specialize=["part", "heads", "length", "shared", "axes"])
def sum_angles(
    parts,
    x,
    dy,
    turn,
    at,
    part,
    heads,
    length,
    shared,
    axes,
    BM: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """parts float64 [.., tables, axes, pairs], from row `part` on: sums over the rows of a block,
    and over the heads that share a table, of what their angles get, times the coordinate, `at` as
    in write_turns. x and dy as in gradient_at. Program (block of rows of a batch row, table)."""
    blocks = tl.cdiv(length, BM)
    b, own = tl.program_id(0) // blocks, tl.program_id(1)
    i = (tl.program_id(0) % blocks) * BM + tl.arange(0, BM)[:, None]
    p = tl.arange(0, PAIRS)[None, :]
    found = tl.zeros((BM, PAIRS), tl.float64)
    for n in range(shared):
        h = own * shared + n
        cos, sin = turn_at(turn, b, h, i, length, p, PAIRS)
        of_cos, of_sin = gradient_at(x, dy, turn, b, h, i, length, p)
        of_angle = of_sin.to(tl.float64) * cos.to(tl.float64)
        of_angle -= of_cos.to(tl.float64) * sin.to(tl.float64)
        # A gradient of 0 gives nothing, whatever the token turns by.
        found += tl.where((of_cos == 0.0) & (of_sin == 0.0), 0.0, of_angle)
    to = parts + tl.cast(part + tl.program_id(0), tl.int64) * (heads // shared) * axes * turn.pairs
    of_rows = at.data + tl.cast(b, tl.int64) * at.batch + tl.cast(i, tl.int64) * at.row
    for a in range(axes):
        by = tl.load(of_rows + a * at.head, i < length, 0).to(tl.float64)
        total = tl.sum(found * by, 0, keep_dims=True)
        tl.store(to + (own * axes + a) * turn.pairs + p, total, p < turn.pairs)


@triton.jit(do_not_specialize=["count", "tables", "axes", "pairs"])
def fold_angles(
    gradient,
    parts,
    count,
    tables,
    axes,
    pairs,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """gradient: a Strided [1, axes, tables, pairs], the sums of `count` parts. Program (axis,
    table)."""
    a, h = tl.program_id(0), tl.program_id(1)
    p = tl.arange(0, PAIRS)[None, :]
    acc = tl.zeros((BLOCK, PAIRS), tl.float64)
    for first in range(0, count, BLOCK):
        n = first + tl.arange(0, BLOCK)[:, None]
        at = ((tl.cast(n, tl.int64) * tables + h) * axes + a) * pairs + p
        acc += tl.load(parts + at, (n < count) & (p < pairs), 0.0)
    total = (tl.sum(acc, 0, keep_dims=True) * gradient.multiplier).to(tl.float32)
    to = gradient.data + a * gradient.head + h * gradient.row + p * gradient.column
    tl.store(to, stored(total, gradient.data.dtype.element_ty, WIDEN), p < pairs)
