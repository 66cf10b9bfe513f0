"""Where the pairs of a tile stand, and which of them attend."""

import triton
import triton.language as tl

FAR = tl.constexpr(1 << 30)  # beyond every difference within a tile


@triton.jit
def near(bound):
    """A bound on c - a as int32."""
    return tl.cast(tl.minimum(tl.maximum(bound, -FAR), FAR), tl.int32)


@triton.jit
def between(low, high, count):
    """Numbers from int64 `low` on and below `high` that are within [0, count), as int32."""
    first = tl.minimum(tl.maximum(low, 0), count)
    last = tl.minimum(tl.maximum(high, 0), count)
    return tl.cast(first, tl.int32), tl.cast(last, tl.int32)


@triton.jit
def keys_of(problem, b, q0, keys, CONFIG: tl.constexpr):
    """The keys from the first to the last that the queries of the block at q0 see; key j of query i
    is at distance j + shift - i."""
    start = tl.cast(q0, tl.int64) - tl.load(problem.shifts + b)
    return between(start - problem.left, start + problem.right + CONFIG.queries, keys)


@triton.jit
def queries_of(problem, b, k0, queries, CONFIG: tl.constexpr):
    """The queries from the first to the last that see a key of the block at k0."""
    start = tl.cast(k0, tl.int64) + tl.load(problem.shifts + b)
    return between(start - problem.right, start + problem.left + CONFIG.keys, queries)


@triton.jit
def apart(problem, at):
    """Distances of the pairs of a tile: an int64, and what is added to it, int32 or int64."""
    b, _, q0, k0, a, c, queries, keys = at
    if problem.places is None:
        corner = tl.cast(k0, tl.int64) + tl.load(problem.shifts + b) - q0
        within = c - a
    else:
        p = problem.places
        corner = tl.cast(0, tl.int64)
        within = tl.load(p.k + tl.cast(b, tl.int64) * p.k_row + k0 + c, c < keys - k0, 0)
        within -= tl.load(p.q + tl.cast(b, tl.int64) * p.q_row + q0 + a, a < queries - q0, 0)
    return corner, within


@triton.jit
def seen(problem, at, distances):
    """bool of the pairs of a tile."""
    _, _, _, k0, a, c, _, keys = at
    visible = (a >= 0) & (c < keys - k0)
    if problem.places is None:
        corner, within = distances
        visible &= within >= near(-problem.left - corner)
        visible &= within <= near(problem.right - corner)
    return visible
