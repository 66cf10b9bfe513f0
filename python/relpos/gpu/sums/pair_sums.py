"""Sums of the scores' gradients by distance, where tokens stand anywhere: a chunk of queries at a
time, pair by pair, and then of each distance the keys that stand there.

The keys of a row are sorted by their position, so that those at a distance of a query are
neighbours."""

import triton
import triton.language as tl

from relpos.gpu.pairs.scores import gradients_at
from relpos.gpu.pairs.visibility import apart_by, keys_of, span_of

PLAIN = ["heads", "group", "queries", "keys", "row", "first", "count", "batch"]


@triton.jit(do_not_specialize=PLAIN)
def sum_pairs(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    pairs,
    problem,
    heads,
    group,
    queries,
    keys,
    row,
    first,
    count,
    batch,
    CONFIG: tl.constexpr,
):
    """pairs [.., H, count, Lk], of queries first, first + 1, ... of batch rows row, row + 1, ...,
    or of the first `batch` rows together: a program for each tile. The rest as in
    backward_queries."""
    columns = tl.cdiv(keys, CONFIG.keys)
    tiles = tl.cdiv(count, CONFIG.queries) * columns
    head = tl.program_id(0) // tiles
    h = head % heads
    i = (tl.program_id(0) % tiles) // columns * CONFIG.queries
    k0 = tl.program_id(0) % columns * CONFIG.keys
    q0 = first + i
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    acc = tl.zeros((CONFIG.queries, CONFIG.keys), tl.float32)
    for n in range(batch):
        b = row + head // heads * batch + n
        seen_from, seen_to = keys_of(problem, b, q0, queries, keys, CONFIG)
        if (k0 < seen_to) & (k0 + CONFIG.keys > seen_from):
            at = (b, h, q0, k0, a, c, queries, keys, tl.load(problem.shifts + b))
            tensors = (query, key, value, dout, softmax, sums)
            _, ds, _, _, _ = gradients_at(tensors, heads, group, problem, at, CONFIG)
            acc += ds
    to = pairs + (tl.cast(head, tl.int64) * count + i) * keys + k0
    tl.store(to + tl.cast(a, tl.int64) * keys + c, acc, (a < count - i) & (c < keys - k0))


@triton.jit
def sum_between(acc, pairs, step_of, sorted_keys, at, span, inside, keys, steps):
    """acc, plus the sums of the rows `pairs`, whose elements are `step_of` apart, at the keys of
    each span that stand from at[0] on and before at[1]. sorted_keys: positions of keys in ascending
    order, and whose they are; Lk is below 2 ** steps."""
    ordered, order = sorted_keys
    m = tl.zeros(acc.shape, tl.int32)  # of the keys, those before (at, the span)
    for step in range(steps):
        further = m + (1 << (steps - 1 - step))
        known = tl.load(ordered + further - 1, further <= keys, 0)
        whose = tl.load(order + further - 1, further <= keys, 0)
        before = (known < at[0]) | ((known == at[0]) & (whose < span[0]))
        m = tl.where((further <= keys) & before, further, m)
    met = inside & (m < keys)
    met &= tl.load(ordered + m, met, 0) < at[1]
    while tl.max(tl.max(tl.where(met, 1, 0), 1), 0) > 0:
        whose = tl.load(order + m, met, 0)
        seen = met & (whose >= span[0]) & (whose < span[1])
        acc += tl.load(pairs + tl.cast(whose, tl.int64) * step_of, seen, 0.0)
        m += 1
        met &= m < keys
        met &= tl.load(ordered + m, met, 0) < at[1]
    return acc


OF_FOLD = ["heads", "queries", "keys", "row", "first", "count", "batch", "width", "steps"]
OF_FOLD += ["fresh"]


@triton.jit(do_not_specialize=OF_FOLD)
def fold_pairs(
    by_distance,
    pairs,
    places,
    spans,
    ordered,
    order,
    heads,
    queries,
    keys,
    row,
    first,
    count,
    batch,
    edges,
    width,
    steps,
    fresh,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Adds to by_distance float64 [H, width] the sums of `pairs` [batch, H, count, Lk] at each run
    of distances but the first and the last, which begin at `edges` [width]; what it held counts
    unless `fresh`.
    ordered, order [.., Lk]: the positions of keys in ascending order, and whose they are; Lk is
    below 2 ** steps. A program for each block of distances, and head."""
    h = tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    a = tl.arange(0, ROWS)[None, :]
    inner = (x > 0) & (x < width - 1)
    to = by_distance + tl.cast(h, tl.int64) * width + x
    acc = tl.zeros((BLOCK, ROWS), tl.float64)
    begin, end = tl.load(edges + x, inner, 0), tl.load(edges + x + 1, inner, 0)
    for n in range(batch):
        b = tl.cast(row + n, tl.int64)
        sorted_at = ordered + places.k_row * b
        order_at = order + places.k_row * b
        for i in range(0, count, ROWS):
            of_rows = first + i + a
            if spans is not None:  # noqa: SIM108  a branch that is not taken is not typed
                span = span_of(spans, b, of_rows, queries)
            else:
                span = (0, keys)
            inside = inner & (a < count - i)
            own = tl.load(places.q + places.q_row * b + of_rows, a < count - i, 0)
            at = (own + begin, own + end)
            to_pairs = pairs + ((tl.cast(n, tl.int64) * heads + h) * count + i + a) * keys
            whose = (sorted_at, order_at)
            acc = sum_between(acc, to_pairs, 1, whose, at, span, inside, keys, steps)
    found = tl.sum(acc, 1, keep_dims=True)
    if fresh == 0:
        found += tl.load(to, inner, 0.0)
    tl.store(to, found, inner)


@triton.jit(do_not_specialize=["heads", "queries", "keys", "row", "first", "count", "lo", "hi"])
def write_ends(
    ends,
    pairs,
    places,
    heads,
    queries,
    keys,
    row,
    first,
    count,
    lo,
    hi,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ends [B, H, Lq, 2]: of queries first, first + 1, ... of batch rows row, row + 1, ... the sums
    of `pairs` [.., H, count, Lk] at distances up to lo, and from hi on. A program for each block of
    queries of a head."""
    blocks = tl.cdiv(count, ROWS)
    head = tl.program_id(0) // blocks
    b, h = row + head // heads, head % heads
    i = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    before = tl.zeros((ROWS, BLOCK), tl.float64)
    after = tl.zeros((ROWS, BLOCK), tl.float64)
    of_rows = pairs + (tl.cast(head, tl.int64) * count + i) * keys
    for k0 in range(0, keys, BLOCK):
        at = (b, h, first, k0, i, c, first + count, keys, 0)
        _, distance = apart_by(places, at)
        ds = tl.load(of_rows + k0 + c, (i < count) & (c < keys - k0), 0.0)
        before += tl.where(distance <= lo, ds, 0.0)
        after += tl.where(distance >= hi, ds, 0.0)
    to = ends + 2 * ((tl.cast(b, tl.int64) * heads + h) * queries + first + i)
    tl.store(to, tl.sum(before, 1, keep_dims=True).to(tl.float32), i < count)
    tl.store(to + 1, tl.sum(after, 1, keep_dims=True).to(tl.float32), i < count)
