"""Sums of the scores' gradients by pairs of tokens, over the batch, for tables of a grid: its
windows are short, and many."""

import triton
import triton.language as tl

from relpos.gpu.product import rows
from relpos.gpu.score_gradient import pair_weights, read_rows, score_gradient

PLAIN = ["batch", "heads", "group", "queries", "keys", "scale"]


@triton.jit(do_not_specialize=PLAIN)
def sum_pairs(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    pairs,
    terms,
    batch,
    heads,
    group,
    queries,
    keys,
    scale,
    SCORES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """pairs [H, Lq, Lk]: a program for each tile of a head, of a call whose queries see all keys.
    The rest as in backward_queries."""
    columns = tl.cdiv(keys, BN)
    tiles = tl.cdiv(queries, BM) * columns
    h = tl.program_id(0) // tiles
    q0 = (tl.program_id(0) % tiles) // columns * BM
    k0 = tl.program_id(0) % columns * BN
    a, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (a < queries - q0) & (c < keys - k0)
    acc = tl.zeros((BM, BN), tl.float32)
    for b in range(batch):
        q = rows(query, b, h, q0, BM, BD)
        given = rows(dout, b, h, q0, BM, BV)
        k = rows(key, b, h // group, k0, BN, BD)
        v = rows(value, b, h // group, k0, BN, BV)
        head_row = (tl.cast(b, tl.int64) * heads + h) * queries
        of_rows = read_rows(softmax, sums, head_row + q0, a, queries - q0)
        p = pair_weights(
            q,
            tl.trans(k),
            of_rows,
            inside,
            terms,
            SCORES,
            h,
            (q0, k0, 0, a, c),
            scale,
            PRECISION,
            WIDEN,
        )
        acc += score_gradient(p, given, tl.trans(v), of_rows, PRECISION, WIDEN)
    to = pairs + (tl.cast(h, tl.int64) * queries + q0) * keys + k0
    tl.store(to + a * keys + c, acc, inside)
