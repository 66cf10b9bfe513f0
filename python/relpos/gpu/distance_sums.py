"""Sums of the scores' gradients by distance, for the tables that a distance chooses an entry of.

The tiles of a diagonal have one distance in each of their corners, so they are added up pair by
pair, in registers; `fold_diagonals` adds what lies at one distance. Distances outside of the window
come from the two sums a row of backward_queries."""

import triton
import triton.language as tl

from relpos.gpu.product import rows
from relpos.gpu.score_gradient import pair_weights, read_rows, score_gradient
from relpos.gpu.visibility import seen


@triton.jit
def first_diagonal(lo, shift, queries, BM: tl.constexpr, LOG: tl.constexpr):
    """The first diagonal of tiles, key tile less query tile, with a distance above lo, or the first
    of all."""
    least = (lo + 1 - shift) >> LOG
    return tl.maximum(least, tl.cast(1 - tl.cdiv(queries, BM), tl.int64))


PLAIN = ["heads", "group", "queries", "keys", "left", "right", "scale", "lo", "diagonals"]


@triton.jit(do_not_specialize=PLAIN)
def sum_diagonals(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    tiles,
    shifts,
    terms,
    heads,
    group,
    queries,
    keys,
    left,
    right,
    scale,
    lo,
    diagonals,
    SCORES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    BM: tl.constexpr,
    LOG: tl.constexpr,
):
    """tiles [B, H, diagonals, BM, BM]: a program for each diagonal of a head, from the first with a
    distance above lo on; BM is 2 ** LOG. The rest as in backward_queries."""
    head = tl.program_id(0) // diagonals
    n = tl.program_id(0) % diagonals
    b, h = head // heads, head % heads
    shift = tl.load(shifts + b)
    a, c = tl.arange(0, BM)[:, None], tl.arange(0, BM)[None, :]
    d = tl.cast(first_diagonal(lo, shift, queries, BM, LOG) + n, tl.int64)
    corner = d * BM + shift
    first = tl.cast(tl.maximum(0, -d), tl.int32)
    beyond = tl.maximum(tl.cdiv(keys, BM) - d, 0)
    last = tl.cast(tl.minimum(tl.cdiv(queries, BM), beyond), tl.int32)
    head_row = tl.cast(head, tl.int64) * queries
    acc = tl.zeros((BM, BM), tl.float32)
    for tile in range(first, last):
        q0 = tile * BM
        k0 = tl.cast(q0 + d * BM, tl.int32)
        q = rows(query, b, h, q0, BM, BD)
        given = rows(dout, b, h, q0, BM, BV)
        k = rows(key, b, h // group, k0, BM, BD)
        v = rows(value, b, h // group, k0, BM, BV)
        of_rows = read_rows(softmax, sums, head_row + q0, a, queries - q0)
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
        acc += ds
    to = tiles + (tl.cast(head, tl.int64) * diagonals + n) * BM * BM
    tl.store(to + a * BM + c, acc)


@triton.jit(do_not_specialize=["batch", "heads", "queries", "lo", "width", "diagonals"])
def fold_diagonals(
    by_distance,
    tiles,
    shifts,
    batch,
    heads,
    queries,
    lo,
    width,
    diagonals,
    BM: tl.constexpr,
    LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """by_distance float64 [H, width], of distances lo, lo + 1, ...; all but the first and the last,
    which stand for the distances outside: a program for each block of them, and head."""
    h = tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    a = tl.arange(0, BM)[None, :]
    acc = tl.zeros((BLOCK, BM), tl.float64)
    for b in range(batch):
        shift = tl.load(shifts + b)
        distance = lo + x - shift
        beyond = tl.cast(distance & (BM - 1), tl.int32) + a  # c of the pair, or c + BM a tile later
        d = (distance >> LOG) + (beyond >> LOG)
        n = d - first_diagonal(lo, shift, queries, BM, LOG)
        tile = (tl.cast(b, tl.int64) * heads + h) * diagonals + n
        at = tile * BM * BM + a * BM + (beyond & (BM - 1))
        acc += tl.load(tiles + at, (n >= 0) & (n < diagonals), 0.0)
    inner = (x > 0) & (x < width - 1)
    to = by_distance + tl.cast(h, tl.int64) * width + x
    tl.store(to, tl.sum(acc, 1, keep_dims=True), inner)


@triton.jit(do_not_specialize=["batch", "heads", "queries", "width"])
def fold_ends(by_distance, ends, batch, heads, queries, width, BLOCK: tl.constexpr):
    """The first and the last of by_distance: a program for each of both, and head."""
    end, h = tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BLOCK,), tl.float64)
    for b in range(batch):
        row = (tl.cast(b, tl.int64) * heads + h) * queries
        for i in range(0, queries, BLOCK):
            a = i + tl.arange(0, BLOCK)
            acc += tl.load(ends + 2 * (row + a) + end, a < queries, 0.0)
    tl.store(by_distance + tl.cast(h, tl.int64) * width + end * (width - 1), tl.sum(acc, 0))
