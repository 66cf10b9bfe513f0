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
def keys_of(problem, b, q0, queries, keys, CONFIG: tl.constexpr):
    """The keys from the first to the last that the queries of the block at q0 see; key j of query i
    is at distance j + shift - i."""
    if problem.spans is None:
        start = tl.cast(q0, tl.int64) - tl.load(problem.shifts + b)
        first, last = between(start - problem.left, start + problem.right + CONFIG.queries, keys)
    else:
        lo, hi = span_of(problem.spans, b, q0 + tl.arange(0, CONFIG.queries), queries)
        first = tl.min(tl.where(lo < hi, lo, keys), 0)
        last = tl.max(tl.where(lo < hi, hi, 0), 0)
    if CONFIG.aligned:
        first = first // CONFIG.keys * CONFIG.keys
    return first, last


@triton.jit
def queries_of(problem, b, k0, queries, KEYS: tl.constexpr):
    """The queries from the first to the last that see one of so many keys from k0 on."""
    if problem.spans is None:
        start = tl.cast(k0, tl.int64) + tl.load(problem.shifts + b)
        first, last = between(start - problem.right, start + problem.left + KEYS, queries)
    else:
        spans = problem.spans
        at = spans.queries + tl.cast(b, tl.int64) * spans.query_row + k0 // KEYS * 2
        first, last = tl.load(at), tl.load(at + 1)
    return first, last


@triton.jit
def span_of(spans, b, i, queries):
    """The keys that queries i see; none beyond the last query."""
    at = spans.keys + tl.cast(b, tl.int64) * spans.key_row + tl.cast(i, tl.int64) * 2
    return tl.load(at, i < queries, 0), tl.load(at + 1, i < queries, 0)


@triton.jit(do_not_specialize=["queries", "blocks"])
def find_queries(spans, found, queries, blocks, BLOCK: tl.constexpr, KEYS: tl.constexpr):
    """found int32 [.., blocks, 2]: the queries from the first to the last that see one of a block
    of keys; a program for each block of a row of spans."""
    row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    first = tl.full((BLOCK,), queries, tl.int32)
    last = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, queries, BLOCK):
        n = i + tl.arange(0, BLOCK)
        lo, hi = span_of(spans, row, n, queries)
        sees = (lo < hi) & (lo < (block + 1) * KEYS) & (hi > block * KEYS)
        first = tl.where(sees, tl.minimum(first, n), first)
        last = tl.where(sees, n + 1, last)
    to = found + 2 * tl.program_id(0)
    tl.store(to, tl.min(first, 0))
    tl.store(to + 1, tl.max(last, 0))


@triton.jit
def apart(problem, at):
    """Distances of the pairs of a tile: an int64, and what is added to it, int32 or int64."""
    _, _, q0, k0, a, c, _, _, shift = at
    if problem.places is None:
        corner = tl.cast(k0, tl.int64) + shift - q0
        within = c - a
    else:
        corner, within = apart_by(problem.places, at)
    return corner, within


@triton.jit
def apart_by(p, at):
    """The same of tokens at places."""
    b, _, q0, k0, a, c, queries, keys, _ = at
    within = tl.load(p.k + tl.cast(b, tl.int64) * p.k_row + k0 + c, c < keys - k0, 0)
    within -= tl.load(p.q + tl.cast(b, tl.int64) * p.q_row + q0 + a, a < queries - q0, 0)
    return tl.cast(0, tl.int64), within


@triton.jit
def seen(problem, at, distances):
    """bool of the pairs of a tile."""
    b, _, q0, k0, a, c, queries, keys, _ = at
    visible = (a >= 0) & (c < keys - k0)
    if problem.spans is not None:
        lo, hi = span_of(problem.spans, b, q0 + a, queries)
        visible &= (c >= lo - k0) & (c < hi - k0)
    elif problem.places is None:
        corner, within = distances
        visible &= within >= near(-problem.left - corner)
        visible &= within <= near(problem.right - corner)
    return visible
