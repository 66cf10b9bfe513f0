"""Tiles that are seen as a whole, where no table changes: they need no test, and one number of each
table. A kernel computes a tile by its PART: 1 or 2 of such a tile, whose distances are before those
at which tables change, or after them; 0 of any, of which nothing is assumed; -1 of any under
CONFIG.open, which finds out by a branch what it is."""

import triton
import triton.language as tl

from relpos.gpu.masks.tiles import sees_tile


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
    `first` to `last`, in order, for a block of queries: (b, h, q0, queries, keys, start as in
    parts_of). EACH: tiles that a TileMask hides as a whole, too."""
    _, _, _, _, keys, start = block
    if CONFIG.split:
        one, two, three, four = parts_of(problem, first, last, start, keys, CONFIG)
        for k0 in tl.range(first, one, CONFIG.keys, num_stages=CONFIG.stages):
            state = add(given, k0, state, problem, CONFIG, 0)
        for k0 in range(one, two, CONFIG.keys):
            state = add(given, k0, state, problem, CONFIG, 1)
        if CONFIG.far:
            for k0 in tl.range(two, three, CONFIG.keys, num_stages=CONFIG.stages):
                state = add(given, k0, state, problem, CONFIG, 0)
            for k0 in range(three, four, CONFIG.keys):
                state = add(given, k0, state, problem, CONFIG, 2)
        for k0 in tl.range(four, last, CONFIG.keys, num_stages=CONFIG.stages):
            state = add(given, k0, state, problem, CONFIG, 0)
    else:
        part: tl.constexpr = -1 if CONFIG.open else 0
        for k0 in range(first, last, CONFIG.keys):
            if EACH or CONFIG.tiles < 0:  # noqa: SIM114  what is not taken is not compiled
                state = add(given, k0, state, problem, CONFIG, part)
            elif sees_tile(problem.masks[CONFIG.tiles], block, k0, CONFIG):
                state = add(given, k0, state, problem, CONFIG, part)
    return state


@triton.jit
def parts_of(problem, first, last, start, keys, CONFIG: tl.constexpr):
    """(from, to, from, to): the keys between `first` and `last` whose tiles, of a block of queries
    under CONFIG.open, are seen as a whole; with CONFIG.far the first part of them reads tables at
    distances before problem.window, the second after it, else the second is empty. `start`: the key
    at distance 0 of the first query."""
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
    return after & (corner + CONFIG.keys <= problem.right + 1) & (k0 + CONFIG.keys <= keys)


@triton.jit
def is_plain(problem, at, distances, CONFIG: tl.constexpr):
    """Whether a tile would be in a part of parts_of."""
    below, above = problem.window
    far = far_from(distances, below, above, CONFIG)
    return far & all_seen(problem, at, distances, CONFIG)


@triton.jit
def far_from(distances, lo, hi, CONFIG: tl.constexpr):
    """Whether all distances of a tile are up to lo, or from hi on."""
    corner, _ = distances
    return (corner + CONFIG.keys <= lo + 1) | (corner - CONFIG.queries >= hi - 1)
