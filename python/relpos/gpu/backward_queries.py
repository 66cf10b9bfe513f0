"""Gradients of queries, and what a distance bias needs of far pairs: a program for each block of
queries of a head."""

import triton
import triton.language as tl

from relpos.gpu.product import operand, product, rows, write_rows
from relpos.gpu.score_gradient import pair_weights, read_rows, score_gradient
from relpos.gpu.visibility import keys_of, near, seen

PLAIN = [
    "heads",
    "group",
    "queries",
    "keys",
    "head_dim",
    "left",
    "right",
    "scale",
    "slope",
    "lo",
    "hi",
]


@triton.jit(do_not_specialize=PLAIN)
def backward_queries(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    dq,
    ends,
    shifts,
    terms,
    heads,
    group,
    queries,
    keys,
    head_dim,
    left,
    right,
    scale,
    slope,
    lo,
    hi,
    SCORES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dq [B, H, Lq, D], contiguous; ends [B, H, Lq, 2], where given: of each row the sums of the
    scores' gradients at distances up to lo, and from hi on. `slope` is the scale in natural
    units."""
    blocks = tl.cdiv(queries, BM)
    head = tl.program_id(0) // blocks
    q0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    b, h = head // heads, head % heads
    shift = tl.load(shifts + b)
    a, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    row = tl.cast(head, tl.int64) * queries + q0
    q = rows(query, b, h, q0, BM, BD)
    given = rows(dout, b, h, q0, BM, BV)
    of_rows = read_rows(softmax, sums, row, a, queries - q0)
    acc = tl.zeros((BM, BD), tl.float32)
    before = tl.zeros((BM,), tl.float32)
    after = tl.zeros((BM,), tl.float32)
    first, last = keys_of(q0, BM, shift, left, right, keys)
    for k0 in range(first, last, BN):
        corner = tl.cast(k0, tl.int64) + shift - q0
        k = rows(key, b, h // group, k0, BN, BD)
        v = rows(value, b, h // group, k0, BN, BV)
        visible = seen(corner, a, c, left, right) & (c < keys - k0)
        p = pair_weights(
            q,
            tl.trans(k),
            of_rows,
            visible,
            terms,
            SCORES,
            h,
            (q0, k0, corner, a, c),
            scale,
            PRECISION,
            WIDEN,
        )
        ds = score_gradient(p, given, tl.trans(v), of_rows, PRECISION, WIDEN)
        acc = product(operand(ds, key.dtype, WIDEN), k, acc, PRECISION, WIDEN)
        if ends is not None:
            before += tl.sum(tl.where(c - a <= near(lo - corner), ds, 0.0), 1)
            after += tl.sum(tl.where(c - a >= near(hi - corner), ds, 0.0), 1)
    write_rows(dq, acc * slope, row, queries - q0, head_dim, BM, BD, WIDEN)
    if ends is not None:
        a = tl.arange(0, BM)
        tl.store(ends + 2 * (row + a), before, a < queries - q0)
        tl.store(ends + 2 * (row + a) + 1, after, a < queries - q0)
