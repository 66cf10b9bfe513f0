"""Sums of the scores' gradients by distance, for the tables that a distance chooses an entry of.

The tiles of a diagonal have one distance in each of their corners, so they are added up pair by
pair, in registers; `fold_diagonals` adds what lies at one distance. Distances outside of the window
come from the two sums a row of backward_queries."""

import triton
import triton.language as tl

from relpos.gpu.pairs.scores import gradients_at


@triton.jit
def first_diagonal(lo, shift, queries, BM: tl.constexpr, LOG: tl.constexpr):
    """The first diagonal of tiles, key tile less query tile, with a distance above lo, or the first
    of all."""
    least = (lo + 1 - shift) >> LOG
    return tl.maximum(least, tl.cast(1 - tl.cdiv(queries, BM), tl.int64))


@triton.jit(do_not_specialize=["heads", "group", "queries", "keys", "lo", "diagonals"])
def sum_diagonals(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    tiles,
    problem,
    heads,
    group,
    queries,
    keys,
    lo,
    diagonals,
    LOG: tl.constexpr,
    CONFIG: tl.constexpr,
):
    """tiles [B, H, diagonals, T, T], T = 2 ** LOG the side of a tile: a program for each diagonal
    of a head, from the first with a distance above lo on. The rest as in backward_queries."""
    side: tl.constexpr = CONFIG.queries
    head = tl.program_id(0) // diagonals
    n = tl.program_id(0) % diagonals
    b, h = head // heads, head % heads
    a, c = tl.arange(0, side)[:, None], tl.arange(0, side)[None, :]
    shift = tl.load(problem.shifts + b)
    d = tl.cast(first_diagonal(lo, shift, queries, side, LOG) + n, tl.int64)
    first = tl.cast(tl.maximum(0, -d), tl.int32)
    beyond = tl.maximum(tl.cdiv(keys, side) - d, 0)
    last = tl.cast(tl.minimum(tl.cdiv(queries, side), beyond), tl.int32)
    acc = tl.zeros((side, side), tl.float32)
    for tile in range(first, last):
        q0 = tile * side
        k0 = tl.cast(q0 + d * side, tl.int32)
        at = (b, h, q0, k0, a, c, queries, keys, shift)
        tensors = (query, key, value, dout, softmax, sums)
        _, ds, _, _, _ = gradients_at(tensors, heads, group, problem, at, CONFIG)
        acc += ds
    to = tiles + (tl.cast(head, tl.int64) * diagonals + n) * side * side
    tl.store(to + a * side + c, acc)


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
