"""Tiles that are seen as a whole, where no table changes: they need no test, and one number of each
table, or of each of its rows. A kernel computes a tile by its PART: 1 of such a tile, 0 of any, of
which nothing is assumed; -1 of any of a call without tables, which finds out by a branch whether
all of it is seen. Parts 0 and 1 have loops of their own, or in backward_keys launches."""

import triton
import triton.language as tl

from relpos.gpu import problem as shares
from relpos.gpu.masks.tiles import sees_tile

ALL, NEAR, FAR_AWAY = map(tl.constexpr, (shares.ALL, shares.NEAR, shares.FAR_AWAY))


@triton.jit
def through_keys(
    add: tl.constexpr,
    given,
    state,
    first,
    last,
    block,
    problem,
    CONFIG: tl.constexpr,
    EACH: tl.constexpr = False,
):
    """state, to which add(given, k0, state, problem, CONFIG, PART) adds each tile of the keys from
    `first` to `last`, for a block of queries: (b, h, q0, queries, keys, the key at distance 0 of
    the first query). EACH: tiles that a TileMask hides as a whole, too."""
    _, _, _, _, keys, start = block
    if CONFIG.open:
        parts = parts_of_keys(problem, first, last, start, keys, CONFIG)
        state = through_near(add, given, state, first, last, parts, CONFIG.keys, problem, CONFIG)
        state = through_far(add, given, state, parts, CONFIG.keys, problem, CONFIG)
    else:
        for k0 in range(first, last, CONFIG.keys):
            if EACH or CONFIG.tiles < 0:  # noqa: SIM114  what is not taken is not compiled
                state = add(given, k0, state, problem, CONFIG, 0)
            elif sees_tile(problem.masks[CONFIG.tiles], block, k0, CONFIG):
                state = add(given, k0, state, problem, CONFIG, 0)
    return state


@triton.jit
def through_queries(
    add: tl.constexpr, given, state, first, last, parts, block, problem, CONFIG: tl.constexpr
):
    """The same of the queries from `first` to `last`, for a block (b, h, k0, queries, keys) of
    keys, of the share that CONFIG has of the `parts`: two loops would take too many registers."""
    b, h, k0, queries, keys = block
    size: tl.constexpr = CONFIG.queries
    if CONFIG.share == NEAR:
        state = through_near(add, given, state, first, last, parts, size, problem, CONFIG)
    elif CONFIG.share == FAR_AWAY:
        state = through_far(add, given, state, parts, size, problem, CONFIG)
    else:
        part: tl.constexpr = -1 if CONFIG.open and not CONFIG.far else 0
        for q0 in range(first, last, size):
            if CONFIG.tiles < 0:  # noqa: SIM114  what is not taken is not compiled
                state = add(given, q0, state, problem, CONFIG, part)
            elif sees_tile(problem.masks[CONFIG.tiles], (b, h, q0, queries, keys), k0, CONFIG):
                state = add(given, q0, state, problem, CONFIG, part)
    return state


@triton.jit
def through_near(
    add: tl.constexpr,
    given,
    state,
    first,
    last,
    parts,
    SIZE: tl.constexpr,
    problem,
    CONFIG: tl.constexpr,
):
    """The tiles between the parts: one loop, since each begins anew to load ahead."""
    one, two, three, four = parts
    count = (one - first) + (three - two) + (last - four)
    for n in tl.range(0, count, SIZE, num_stages=CONFIG.stages):
        at = first + n
        at += tl.where(at >= one, two - one, 0)
        at += tl.where(at >= three, four - three, 0)
        state = add(given, at, state, problem, CONFIG, 0)
    return state


@triton.jit
def through_far(
    add: tl.constexpr, given, state, parts, SIZE: tl.constexpr, problem, CONFIG: tl.constexpr
):
    """The tiles of both parts."""
    one, two, three, four = parts
    for n in range(0, (two - one) + (four - three), SIZE):
        at = one + n
        at += tl.where(at >= two, three - two, 0)
        state = add(given, at, state, problem, CONFIG, 1)
    return state


@triton.jit
def parts_of_keys(problem, first, last, start, keys, CONFIG: tl.constexpr):
    """(from, to, from, to): the keys between `first` and `last` whose tiles, of a block of queries
    under CONFIG.open, are seen as a whole; with CONFIG.far the first part of them reads tables at
    distances before problem.window, the second after it, else the second is empty."""
    below, above = problem.window
    seen_from = up(start - problem.left - 1 + CONFIG.queries - first, CONFIG.keys)
    beyond = tl.minimum(start + problem.right + 1, tl.cast(keys, tl.int64))
    seen_to = down(beyond - first, CONFIG.keys)
    if CONFIG.far:
        before = down(start + below + 1 - first, CONFIG.keys)
        after = up(start + above - 1 + CONFIG.queries - first, CONFIG.keys)
    else:
        before, after = seen_to, seen_to
    return edges(first, last, seen_from, before, after, seen_to)


@triton.jit
def parts_of_queries(
    problem,
    first,
    last,
    start,
    k0,
    keys,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CONFIG: tl.constexpr,
):
    """The same of tiles of so many queries and keys, for the keys from k0 on, of which the first
    is at distance 0 of query `start`; the first part is at distances after the window. Queries
    beyond the last may be in a part."""
    below, above = problem.window
    seen_from = up(start - problem.right - 1 + KEYS - first, QUERIES)
    seen_to = down(start + problem.left + 1 - first, QUERIES)
    if k0 + KEYS > keys:
        seen_to = tl.cast(0, tl.int64)
    if CONFIG.far:
        before = down(start - above + 1 - first, QUERIES)
        after = up(start - below - 1 + KEYS - first, QUERIES)
    else:
        before, after = seen_to, seen_to
    return edges(first, last, seen_from, before, after, seen_to)


@triton.jit
def up(x, SIZE: tl.constexpr):
    """The first multiple of SIZE from x on, and 0 if that is more."""
    return tl.maximum(x + (SIZE - 1), 0) // SIZE * SIZE


@triton.jit
def down(x, SIZE: tl.constexpr):
    """The last multiple of SIZE up to x, and 0 if that is more."""
    return tl.maximum(x, 0) // SIZE * SIZE


@triton.jit
def edges(first, last, seen_from, before, after, seen_to):
    """Of multiples of tiles from `first` on, in order, and as int32."""
    most = tl.cast(tl.maximum(last - first, 0), tl.int64)
    one = tl.minimum(seen_from, most)
    two = tl.minimum(tl.maximum(before, one), most)
    four = tl.minimum(tl.maximum(seen_to, one), most)
    two = tl.minimum(two, four)
    three = tl.minimum(tl.maximum(after, two), four)
    return (
        first + tl.cast(one, tl.int32),
        first + tl.cast(two, tl.int32),
        first + tl.cast(three, tl.int32),
        first + tl.cast(four, tl.int32),
    )


@triton.jit
def all_seen(problem, at, distances, CONFIG: tl.constexpr):
    """Whether every pair of a tile is seen, under CONFIG.open. Queries beyond the last may be."""
    _, _, _, k0, _, _, _, keys, _ = at
    corner, _ = distances
    after = corner - CONFIG.queries >= -problem.left - 1
    before = corner + CONFIG.keys - 1 <= problem.right
    return after & before & (k0 + CONFIG.keys <= keys)
