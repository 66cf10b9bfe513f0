"""Gradients of keys and values: a program for each block of keys of a key head, which goes through
the heads of its group and their queries. Scores are [keys, queries]: a product that was transposed
costs registers."""

import triton
import triton.language as tl

from relpos.gpu.product import operand, product, rows, write_rows
from relpos.gpu.score_gradient import pair_weights, read_rows, score_gradient
from relpos.gpu.visibility import queries_of, seen

PLAIN = [
    "kv_heads",
    "group",
    "queries",
    "keys",
    "head_dim",
    "value_dim",
    "left",
    "right",
    "scale",
    "slope",
]


@triton.jit(do_not_specialize=PLAIN)
def backward_keys(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    dk,
    dv,
    shifts,
    terms,
    kv_heads,
    group,
    queries,
    keys,
    head_dim,
    value_dim,
    left,
    right,
    scale,
    slope,
    SCORES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dk [B, Hk, Lk, D] and dv [B, Hk, Lk, Dv], contiguous; the rest as in backward_queries.
    Queries beyond the last weigh 0 (read_state), and keys beyond it are not written."""
    blocks = tl.cdiv(keys, BN)
    kv_head = tl.program_id(0) // blocks
    k0 = (tl.program_id(0) % blocks) * BN
    b, hk = kv_head // kv_heads, kv_head % kv_heads
    shift = tl.load(shifts + b)
    a, c = tl.arange(0, BM)[None, :], tl.arange(0, BN)[:, None]
    k = rows(key, b, hk, k0, BN, BD)
    v = rows(value, b, hk, k0, BN, BV)
    acc_k = tl.zeros((BN, BD), tl.float32)
    acc_v = tl.zeros((BN, BV), tl.float32)
    first, last = queries_of(k0, BN, shift, left, right, queries)
    for g in range(group):
        h = hk * group + g
        head_row = (tl.cast(b, tl.int64) * kv_heads * group + h) * queries
        for q0 in range(first, last, BM):
            corner = tl.cast(k0, tl.int64) + shift - q0
            q = rows(query, b, h, q0, BM, BD)
            given = rows(dout, b, h, q0, BM, BV)
            of_rows = read_rows(softmax, sums, head_row + q0, a, queries - q0)
            visible = seen(corner, a, c, left, right)
            p = pair_weights(
                k,
                tl.trans(q),
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
            acc_v = product(operand(p, value.dtype, WIDEN), given, acc_v, PRECISION, WIDEN)
            ds = score_gradient(p, v, tl.trans(given), of_rows, PRECISION, WIDEN)
            acc_k = product(operand(ds, key.dtype, WIDEN), q, acc_k, PRECISION, WIDEN)
    row = tl.cast(kv_head, tl.int64) * keys + k0
    write_rows(dk, acc_k * slope, row, keys - k0, head_dim, BN, BD, WIDEN)
    write_rows(dv, acc_v, row, keys - k0, value_dim, BN, BV, WIDEN)
