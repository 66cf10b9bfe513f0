"""The gradient of the scores, which three kernels compute anew: weight * (<dout, v> - sum of the
row)."""

import triton
import triton.language as tl

from relpos.gpu.product import product, rows
from relpos.gpu.softmax import read_state, weights
from relpos.gpu.terms import add_terms


@triton.jit(do_not_specialize=["heads", "queries", "value_dim"])
def row_sums(sums, out, dout, dlse, heads, queries, value_dim, BV: tl.constexpr, BM: tl.constexpr):
    """sums [B, H, Lq] = <dout, out> - dlse of each row; out is contiguous, dout a descriptor. A
    program for each block of queries of a head."""
    blocks = tl.cdiv(queries, BM)
    head = tl.program_id(0) // blocks
    q0 = (tl.program_id(0) % blocks) * BM
    row = tl.cast(head, tl.int64) * queries + q0
    a, c = tl.arange(0, BM), tl.arange(0, BV)
    inside = (a < queries - q0)[:, None] & (c < value_dim)[None, :]
    held = tl.load(out + row * value_dim + a[:, None] * value_dim + c[None, :], inside, 0.0)
    given = rows(dout, head // heads, head % heads, q0, BM, BV)
    found = tl.sum(held.to(tl.float32) * given.to(tl.float32), 1)
    if dlse is not None:
        found -= tl.load(dlse + row + a, a < queries - q0, 0.0)
    tl.store(sums + row + a, found, a < queries - q0)


@triton.jit
def read_rows(softmax, sums, row, a, count):
    """(reference, 1 / sum of weights, sum of the row) of rows `row` + a."""
    reference, inverse = read_state(softmax, row, a, count)
    return reference, inverse, tl.load(sums + row + a, a < count, 0.0)


@triton.jit
def pair_weights(
    x,
    y,
    of_rows,
    visible,
    terms,
    SCORES: tl.constexpr,
    h,
    at,
    scale,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Weights of a tile from products x y of queries and keys, in either order; of_rows as
    read_rows gives them, broadcast to the tile."""
    zero = tl.zeros(visible.shape, tl.float32)
    s = add_terms(product(x, y, zero, PRECISION, WIDEN) * scale, terms, SCORES, h, at)
    return weights(s, of_rows[0], of_rows[1], visible)


@triton.jit
def score_gradient(p, x, y, of_rows, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """The gradient of the scores in natural units, from weights and products x y of dout and
    values."""
    zero = tl.zeros(p.shape, tl.float32)
    return p * (product(x, y, zero, PRECISION, WIDEN) - of_rows[2])
