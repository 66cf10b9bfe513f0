"""The scores of a tile of pairs, their weights and their gradients, which the kernels compute anew.

`at` says where a tile stands: (b, h, q0, k0, a, c, queries, keys): batch row and head, its first
query and key, the numbers of queries and keys within it, broadcast to it, and how many of both the
call has. Tiles are [queries, keys] or [keys, queries]."""

import triton
import triton.language as tl

from relpos.gpu.pairs.dropout import factors
from relpos.gpu.pairs.product import product, rows
from relpos.gpu.pairs.softcap import capped
from relpos.gpu.pairs.softmax import read_state
from relpos.gpu.pairs.visibility import apart, seen
from relpos.gpu.terms.rows import row_score


@triton.jit
def pair_scores(products, problem, at, CONFIG: tl.constexpr):
    """(scores in log2 units, -inf where they are hidden; which are not; distances; the slope of
    softcap), from products of queries and keys."""
    s = products * problem.scale
    distances = apart(problem, at)
    for n in tl.static_range(len(CONFIG.scores)):
        s = CONFIG.scores[n](s, problem.terms[n], at, distances)
    if problem.softcap is not None:
        s, slope = capped(s, problem.softcap)
    else:
        slope = 1.0
    visible = seen(problem, at, distances)
    for n in tl.static_range(len(CONFIG.masks)):
        s, visible = CONFIG.masks[n](s, visible, problem.masks[n], at)
    return tl.where(visible, s, float("-inf")), visible, distances, slope


@triton.jit
def read_pairs(pairs, at, outside):
    """The tile of numbers [B, H, Lq, Lk]: a structure of `data` and of the elements between two of
    each axis."""
    b, h, q0, k0, a, c, queries, keys = at
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
def pair_gradients(products, met, of_rows, problem, at, CONFIG: tl.constexpr):
    """(weights after dropout, gradients of the scores in natural units before softcap and after it,
    which pairs are seen, distances), from products of queries and keys, and met, those of dout and
    values; of_rows as read_rows gives them, broadcast to the tile. Of hidden pairs weights and
    gradients are 0. Where the gradients of the scores are given, there are no weights."""
    reference, inverse, total = of_rows
    s, visible, distances, slope = pair_scores(products, problem, at, CONFIG)
    if problem.given is None:
        p = tl.where(visible, tl.exp2(s - reference) * inverse, 0.0)
        kept = p
        if problem.value_rows is not None:
            met = row_score(met, problem.value_rows, at, distances)
        if problem.dropout is not None:
            factor = factors(problem.dropout, at, CONFIG)
            met *= factor
            kept = p * factor
        ds = tl.where(visible, p * (met - total), 0.0)
    else:
        ds = tl.where(visible, read_pairs(problem.given, at, 0.0).to(tl.float32), 0.0)
        kept = tl.zeros_like(ds)
    return kept, ds * slope, ds, visible, distances


@triton.jit
def gradients_at(tensors, heads, group, problem, at, CONFIG: tl.constexpr):
    """pair_gradients of a tile [queries, keys], from (query, key, value, dout, softmax, sums). Its
    products are taken of CONFIG.slice columns at a time, which saves registers."""
    query, key, value, dout, softmax, sums = tensors
    b, h, q0, k0, a, _, queries, _ = at
    own = h // group
    row = (tl.cast(b, tl.int64) * heads + h) * queries + q0
    of_rows = read_rows(softmax, sums, row, a, queries - q0)
    products = sliced(query, key, b, h, own, q0, k0, CONFIG.head_dim, CONFIG)
    met = sliced(dout, value, b, h, own, q0, k0, CONFIG.value_dim, CONFIG)
    return pair_gradients(products, met, of_rows, problem, at, CONFIG)


@triton.jit
def sliced(x, y, b, h, own, q0, k0, SIZE: tl.constexpr, CONFIG: tl.constexpr):
    """Products of rows of x from q0 on of head h, and of y from k0 on of head `own`."""
    acc = tl.zeros((CONFIG.queries, CONFIG.keys), tl.float32)
    for d in range(0, SIZE, CONFIG.slice):
        left = rows(x, b, h, q0, CONFIG.queries, CONFIG.slice, d)
        right = rows(y, b, own, k0, CONFIG.keys, CONFIG.slice, d)
        acc = product(left, tl.trans(right), acc, CONFIG)
    return acc
