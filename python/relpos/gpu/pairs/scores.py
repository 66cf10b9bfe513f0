"""The scores of a tile of pairs, their weights and their gradients, which the kernels compute anew.

`at` says where a tile stands: (b, h, q0, k0, a, c, queries, keys, shift): batch row and head, its
first query and key, the numbers of queries and keys within it, broadcast to it, how many of both
the call has, and the batch row's of problem.shifts. Tiles are [queries, keys], or the other way
round."""

import triton
import triton.language as tl

from relpos.gpu.pairs.dropout import factors
from relpos.gpu.pairs.parts import all_seen
from relpos.gpu.pairs.product import product, rows
from relpos.gpu.pairs.softcap import capped
from relpos.gpu.pairs.softmax import read_state
from relpos.gpu.pairs.visibility import apart, near, seen
from relpos.gpu.terms.rows import row_score


@triton.jit
def pair_scores(products, problem, at, CONFIG: tl.constexpr, PART: tl.constexpr = 0):
    """(scores in log2 units, -inf where they are hidden; which are not; distances; the slope of
    softcap), from products of queries and keys. PART: of parts.py."""
    distances = apart(problem, at)
    s = with_tables(products * problem.scale, problem, at, distances, CONFIG, PART)
    for n in tl.static_range(CONFIG.tables, len(CONFIG.scores)):
        s = CONFIG.scores[n](s, problem.terms[n], at, distances)
    if problem.softcap is not None:
        s, slope = capped(s, problem.softcap)
    else:
        slope = 1.0
    if PART == 0:
        visible = seen(problem, at, distances)
        for n in tl.static_range(len(CONFIG.masks)):
            s, visible = CONFIG.masks[n](s, visible, problem.masks[n], at)
        s = tl.where(visible, s, float("-inf"))
    else:
        if PART < 0:
            s = hide(s, problem, at, distances, CONFIG)
        visible = s == s
    return s, visible, distances, slope


@triton.jit
def hide(s, problem, at, distances, CONFIG: tl.constexpr):
    """s, and -inf where a pair is hidden, under CONFIG.open."""
    if all_seen(problem, at, distances, CONFIG) == 0:
        s = tl.where(seen(problem, at, distances), s, float("-inf"))
    return s


@triton.jit
def exponents(products, reference, problem, at, CONFIG: tl.constexpr, PART: tl.constexpr):
    """The same of scores less the references of their rows, which are broadcast to the tile."""
    if CONFIG.bare and PART > 0:  # one addition a pair less
        distances = apart(problem, at)
        offset = with_tables(0.0, problem, at, distances, CONFIG, PART)
        x, visible = products * problem.scale - (reference - offset), products == products
        slope = 1.0
    else:
        s, visible, distances, slope = pair_scores(products, problem, at, CONFIG, PART)
        x = s - reference
    return x, visible, distances, slope


@triton.jit
def pair_weights(products, of_rows, problem, at, CONFIG: tl.constexpr, PART: tl.constexpr = 0):
    """(weights before dropout, 0 of hidden pairs; which are seen; distances; the slope of softcap),
    of_rows as read_state gives them, broadcast to the tile. Under CONFIG.again rows whose scores
    are all -inf see nothing."""
    reference, inverse = of_rows
    x, visible, distances, slope = exponents(products, reference, problem, at, CONFIG, PART)
    p = tl.exp2(x) * inverse
    if CONFIG.again:
        visible = visible & (inverse != 0.0)
    if PART == 0:
        p = tl.where(visible, p, 0.0)
    return p, visible, distances, slope


@triton.jit
def with_tables(s, problem, at, distances, CONFIG: tl.constexpr, PART: tl.constexpr):
    read = reading(distances, CONFIG, PART)
    for n in tl.static_range(CONFIG.tables):
        s = CONFIG.scores[n](s, problem.terms[n], at, read)
    return s


@triton.jit
def with_values(met, problem, at, distances, CONFIG: tl.constexpr, PART: tl.constexpr):
    return row_score(met, problem.value_rows, at, reading(distances, CONFIG, PART))


@triton.jit
def reading(distances, CONFIG: tl.constexpr, PART: tl.constexpr):
    """The distances by which a tile reads tables: one where all of it reads the same."""
    corner, within = distances
    if PART > 0 and CONFIG.far:
        within = tl.cast(0, tl.int32)
    return corner, within


@triton.jit
def read_pairs(pairs, at, outside):
    """The tile of numbers [B, H, Lq, Lk]: a structure of `data` and of the elements between two of
    each axis."""
    b, h, q0, k0, a, c, queries, keys, _ = at
    corner = tl.cast(b, tl.int64) * pairs.batch + tl.cast(h, tl.int64) * pairs.head
    i, j = tl.cast(q0, tl.int64) + a, tl.cast(k0, tl.int64) + c
    inside = (i < queries) & (j < keys)
    return tl.load(pairs.data + corner + i * pairs.query + j * pairs.key, inside, outside)


@triton.jit
def read_rows(softmax, sums, row, a, count):
    """(reference, 1 / sum of weights, sum of the row) of rows `row` + a."""
    reference, inverse = read_state(softmax, row, a, count)
    return reference, inverse, tl.load(sums + row + a, a < count, 0.0)


@triton.jit
def pair_gradients(
    products, met, of_rows, problem, at, CONFIG: tl.constexpr, PART: tl.constexpr = 0
):
    """(weights after dropout, gradients of the scores in natural units before softcap and after it,
    which pairs are seen, distances), from products of queries and keys, and met, those of dout and
    values; of_rows as read_rows gives them, broadcast to the tile. Of hidden pairs weights and
    gradients are 0. Where the gradients of the scores are given, there are no weights."""
    reference, inverse, total = of_rows
    if problem.given is None:
        state = (reference, inverse)
        p, visible, distances, slope = pair_weights(products, state, problem, at, CONFIG, PART)
        kept = p
        if problem.value_rows is not None:
            met = with_values(met, problem, at, distances, CONFIG, PART)
        if problem.dropout is not None:
            factor = factors(problem.dropout, at, CONFIG)
            met *= factor
            kept = p * factor
        ds = p * (met - total)
    else:
        _, visible, distances, slope = pair_scores(products, problem, at, CONFIG, PART)
        ds = read_pairs(problem.given, at, 0.0).to(tl.float32)
        kept = tl.zeros_like(ds)
    if PART == 0:
        ds = tl.where(visible, ds, 0.0)
    return kept, ds * slope, ds, visible, distances


@triton.jit
def add_ends(found, ds, distances, lo, hi, CONFIG: tl.constexpr, PART: tl.constexpr):
    """(before, after), with the sums along axis 1 of ds at distances up to lo, and from hi on."""
    before, after = found
    corner, within = distances
    if PART > 0:  # all of them are before, or after
        total, below = tl.sum(ds, 1), corner + CONFIG.keys <= lo + 1
        before += tl.where(below, total, 0.0)
        after += tl.where(below, 0.0, total)
    else:
        before += tl.sum(tl.where(within <= near(lo - corner), ds, 0.0), 1)
        after += tl.sum(tl.where(within >= near(hi - corner), ds, 0.0), 1)
    return before, after


@triton.jit
def gradients_at(tensors, heads, group, problem, at, CONFIG: tl.constexpr):
    """pair_gradients of a tile [queries, keys], from (query, key, value, dout, softmax, sums). Its
    products are taken of CONFIG.slice columns at a time, which saves registers."""
    query, key, value, dout, softmax, sums = tensors
    b, h, q0, k0, a, _, queries, _, _ = at
    own = h // group
    row = (tl.cast(b, tl.int64) * heads + h) * queries + q0
    of_rows = read_rows(softmax, sums, row, a, queries - q0)
    products = sliced(query, key, b, h, own, q0, k0, CONFIG.head_dim, CONFIG)
    met = sliced(dout, value, b, h, own, q0, k0, CONFIG.value_dim, CONFIG)
    return pair_gradients(products, met, of_rows, problem, at, CONFIG)


@triton.jit
def sliced(x, y, b, h, own, q0, k0, SIZE: tl.constexpr, CONFIG: tl.constexpr):
    """Products of rows of x from q0 on of head h, and of y from k0 on of head `own`."""
    columns: tl.constexpr = CONFIG.slice if CONFIG.slice < SIZE else SIZE
    acc = tl.zeros((CONFIG.queries, CONFIG.keys), tl.float32)
    if columns == SIZE:  # a loop of one turn would stay one
        left = rows(x, b, h, q0, CONFIG.queries, columns)
        right = rows(y, b, own, k0, CONFIG.keys, columns)
        acc = product(left, tl.trans(right), acc, CONFIG)
    else:
        for d in range(0, SIZE, columns):
            left = rows(x, b, h, q0, CONFIG.queries, columns, d)
            right = rows(y, b, own, k0, CONFIG.keys, columns, d)
            acc = product(left, tl.trans(right), acc, CONFIG)
    return acc
