"""Biases that are linear in the distance on either side, past[h] min(delta, 0) + future[h]
max(delta, 0), as ALiBi's (Press et al., arXiv 2108.12409): they hold at any distance without a
table.

A row counts from its nearest visible key on, so that near scores keep their small parts wherever
the row stands; softmax does not see it, and lse gets it back (src/kernels/plan/row_shift.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.visibility import apart, keys_of, near, seen

NOWHERE = tl.constexpr(1 << 62)


class Nearest(NamedTuple):
    """distance int64 [.., Lq]: that of the nearest visible key of a row, 0 of a row that sees none;
    and the elements between two batch rows and heads, 0 where they share theirs."""

    distance: Any
    batch: Any
    head: Any


class Slopes(NamedTuple):
    """slopes float32 [3, H], in log2 units: of distances below 0, of those above, and their sum.
    nearest: a Nearest, or None where rows count from 0."""

    slopes: Any
    heads: Any
    nearest: Any


@triton.jit
def from_nearest(nearest, at, distances):
    """(distances of a tile less that of the row's nearest key, which is the second)."""
    b, h, q0, _, a, _, queries, _, _ = at
    corner, within = distances
    if nearest is None:
        d = tl.cast(a, tl.int64) * 0
    else:
        row = nearest.distance + tl.cast(b, tl.int64) * nearest.batch
        row += tl.cast(h, tl.int64) * nearest.head + q0
        d = tl.load(row + a, a < queries - q0, 0)
    if within.dtype == tl.int64:  # noqa: SIM108  a branch that is not taken is not typed
        x = corner + within - d
    else:
        x = near(corner - d) + within
    return x, d


@triton.jit
def slope_score(s, term, at, distances):
    """Beyond the query, seen from the nearest key, the distance has the other slope: there
    past delta - future d = past (delta + d) - (past + future) d, and the like."""
    _, h, _, _, _, _, _, _, _ = at
    x, d = from_nearest(term.nearest, at, distances)
    past, future = tl.load(term.slopes + h), tl.load(term.slopes + term.heads + h)
    both = tl.load(term.slopes + 2 * term.heads + h)
    beyond = ((x < 0) & (d > 0)) | ((x > 0) & (d < 0))
    far = d.to(tl.float32)
    from_it = tl.where(beyond, x + 2 * d, x).to(tl.float32)
    line = tl.where(x < 0, past, future) * from_it
    return s + line - tl.where(beyond, both * far, 0.0)


@triton.jit
def line_sums(found, ds, nearest, at, distances):
    """Four sums of each row, with those of gradients ds: at distances below 0, of ds times the
    distance from the nearest key and of ds, and the same at those above."""
    corner, within = distances
    x, _ = from_nearest(nearest, at, distances)
    if within.dtype == tl.int64:  # noqa: SIM108  a branch that is not taken is not typed
        delta = corner + within
    else:
        delta = near(corner) + within
    weighed = ds * x.to(tl.float32)
    below, number, above, others = found
    below += tl.sum(tl.where(delta < 0, weighed, 0.0), 1)
    number += tl.sum(tl.where(delta < 0, ds, 0.0), 1)
    above += tl.sum(tl.where(delta > 0, weighed, 0.0), 1)
    others += tl.sum(tl.where(delta > 0, ds, 0.0), 1)
    return below, number, above, others


@triton.jit(do_not_specialize=["heads", "queries", "keys"])
def find_nearest(distance, which, problem, heads, queries, keys, CONFIG: tl.constexpr):
    """distance int64 and which int32 [B, heads, Lq]: of the visible keys of each query that which
    is nearest, of two the one that is not before it; 0 where there is none. A program for each
    block of queries."""
    blocks = tl.cdiv(queries, CONFIG.queries)
    head = tl.program_id(0) // blocks
    b, h = head // heads, head % heads
    q0 = (tl.program_id(0) % blocks) * CONFIG.queries
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    best = tl.full((CONFIG.queries,), NOWHERE, tl.int64)
    found = tl.zeros((CONFIG.queries,), tl.int32)
    first, last = keys_of(problem, b, q0, queries, keys, CONFIG)
    for k0 in range(first, last, CONFIG.keys):
        at = (b, h, q0, k0, a, c, queries, keys, shift)
        distances = apart(problem, at)
        visible = seen(problem, at, distances)
        s = tl.zeros((CONFIG.queries, CONFIG.keys), tl.float32)
        for n in tl.static_range(len(CONFIG.masks)):
            s, visible = CONFIG.masks[n](s, visible, problem.masks[n], at)
        delta = distances[0] + distances[1]
        order = tl.where(delta < 0, 1 - 2 * delta, 2 * delta)
        order = tl.where(visible, order, NOWHERE)
        least = tl.min(order, 1)
        own = tl.min(tl.where(order == least[:, None], k0 + c, keys), 1)
        found = tl.where(least < best, own, found)
        best = tl.minimum(best, least)
    far = best >> 1
    far = tl.where((best & 1) == 1, -far, far)
    i = q0 + tl.arange(0, CONFIG.queries)
    to = tl.cast(head, tl.int64) * queries + i
    tl.store(distance + to, tl.where(best == NOWHERE, 0, far), i < queries)
    tl.store(which + to, found, i < queries)
