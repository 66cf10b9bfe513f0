"""Sums of the scores' gradients by distance, where tokens stand anywhere: a chunk of queries at a
time, pair by pair, and then of each distance the keys that stand there.

The keys of a row are sorted by their position, so that those at a distance of a query are
neighbours."""

import triton
import triton.language as tl

from relpos.gpu.pair_scores import pair_gradients, read_rows
from relpos.gpu.product import rows

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
        q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
        given = rows(dout, b, h, q0, CONFIG.queries, CONFIG.value_dim)
        k = rows(key, b, h // group, k0, CONFIG.keys, CONFIG.head_dim)
        v = rows(value, b, h // group, k0, CONFIG.keys, CONFIG.value_dim)
        head_row = (tl.cast(b, tl.int64) * heads + h) * queries
        of_rows = read_rows(softmax, sums, head_row + q0, a, queries - q0)
        at = (b, h, q0, k0, a, c, queries, keys)
        _, ds, _, _ = pair_gradients(
            q, tl.trans(k), given, tl.trans(v), of_rows, problem, at, CONFIG
        )
        acc += ds
    to = pairs + (tl.cast(head, tl.int64) * count + i) * keys + k0
    tl.store(to + tl.cast(a, tl.int64) * keys + c, acc, (a < count - i) & (c < keys - k0))


OF_FOLD = ["heads", "keys", "row", "first", "count", "batch", "lo", "width", "steps", "fresh"]


@triton.jit(do_not_specialize=OF_FOLD)
def fold_pairs(
    by_distance,
    pairs,
    places,
    ordered,
    order,
    heads,
    keys,
    row,
    first,
    count,
    batch,
    lo,
    width,
    steps,
    fresh,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Adds to by_distance float64 [H, width], of distances lo, lo + 1, ..., the sums of `pairs`
    [batch, H, count, Lk] at each but the first and the last; what it held counts unless `fresh`.
    ordered, order [.., Lk]: the positions of keys in ascending order, and whose they are; Lk is
    below 2 ** steps. A program for each block of distances, and head."""
    h = tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    a = tl.arange(0, ROWS)[None, :]
    inner = (x > 0) & (x < width - 1)
    to = by_distance + tl.cast(h, tl.int64) * width + x
    acc = tl.zeros((BLOCK, ROWS), tl.float64)
    for b in range(batch):
        here = tl.cast(row + b, tl.int64)
        sorted_at = ordered + places.k_row * here
        order_at = order + places.k_row * here
        queries_at = places.q + places.q_row * here + first
        for i in range(0, count, ROWS):
            inside = inner & (a < count - i)
            at = tl.load(queries_at + i + a, a < count - i, 0) + lo + x
            n = tl.zeros((BLOCK, ROWS), tl.int32)  # of the positions, those below `at`
            for step in range(steps):
                further = n + (1 << (steps - 1 - step))
                known = tl.load(sorted_at + further - 1, further <= keys, 0)
                n = tl.where((further <= keys) & (known < at), further, n)
            to_pairs = pairs + ((tl.cast(b, tl.int64) * heads + h) * count + i + a) * keys
            met = inside & (n < keys)
            met = met & (tl.load(sorted_at + n, met, 0) == at)
            while tl.max(tl.max(tl.where(met, 1, 0), 1), 0) > 0:
                acc += tl.load(to_pairs + tl.load(order_at + n, met, 0), met, 0.0)
                n += 1
                met = met & (n < keys)
                met = met & (tl.load(sorted_at + n, met, 0) == at)
    found = tl.sum(acc, 1, keep_dims=True)
    if fresh == 0:
        found += tl.load(to, inner, 0.0)
    tl.store(to, found, inner)
