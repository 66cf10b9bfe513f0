"""Which pairs attend. The distance of a pair is that of its tile's corner, an int64, plus c - a of
numbers within the tile; bounds on distances are -left and right."""

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
def keys_of(q0, BM: tl.constexpr, shift, left, right, keys):
    """The keys from the first to the last that queries q0, ..., q0 + BM - 1 see; key j of query i
    is at distance j + shift - i."""
    start = tl.cast(q0, tl.int64) - shift
    return between(start - left, start + right + BM, keys)


@triton.jit
def queries_of(k0, BN: tl.constexpr, shift, left, right, queries):
    """The queries from the first to the last that see one of the keys k0, ..., k0 + BN - 1."""
    start = tl.cast(k0, tl.int64) + shift
    return between(start - right, start + left + BN, queries)


@triton.jit
def seen(corner, a, c, left, right):
    """bool of pairs of query a and key c of a tile, also beyond the last query and key."""
    apart = c - a
    return (apart >= near(-left - corner)) & (apart <= near(right - corner))
