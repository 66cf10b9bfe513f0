"""Gradients of keys and values: a program for each block of keys of a key head, which goes through
the heads of its group and their queries. Scores are [keys, queries]: a product that was transposed
costs registers."""

import triton
import triton.language as tl

from relpos.gpu.masks.tiles import sees_tile
from relpos.gpu.pairs.product import finite, product_of_seen, products_of, rows, write_rows
from relpos.gpu.pairs.scores import add_ends, pair_gradients, read_rows
from relpos.gpu.pairs.visibility import queries_of

PLAIN = ["kv_heads", "group", "queries", "keys", "head_dim", "value_dim", "slope", "lo", "hi"]


@triton.jit(do_not_specialize=PLAIN)
def backward_keys(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    dk,
    dv,
    ends,
    key_sums,
    problem,
    kv_heads,
    group,
    queries,
    keys,
    head_dim,
    value_dim,
    slope,
    lo,
    hi,
    CONFIG: tl.constexpr,
):
    """dk [B, Hk, Lk, D] and dv [B, Hk, Lk, Dv], contiguous; where given, ends [B, H, Lk, 2]: of
    each key the sums of the scores' gradients at distances up to lo, and from hi on, and key_sums
    [B, H, Lk]: all of them. The rest as in backward_queries. Queries beyond the last weigh 0
    (read_state)."""
    blocks = tl.cdiv(keys, CONFIG.keys)
    kv_head = tl.program_id(0) // blocks
    k0 = (tl.program_id(0) % blocks) * CONFIG.keys
    b, hk = kv_head // kv_heads, kv_head % kv_heads
    row = tl.cast(kv_head, tl.int64) * keys + k0
    if CONFIG.again:
        sound = finite(dk, row, keys - k0, head_dim, CONFIG.keys, CONFIG.head_dim)
        if sound & finite(dv, row, keys - k0, value_dim, CONFIG.keys, CONFIG.value_dim):
            return
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[None, :], tl.arange(0, CONFIG.keys)[:, None]
    k = rows(key, b, hk, k0, CONFIG.keys, CONFIG.head_dim)
    v = rows(value, b, hk, k0, CONFIG.keys, CONFIG.value_dim)
    acc_k = tl.zeros((CONFIG.keys, CONFIG.head_dim), tl.float32)
    acc_v = tl.zeros((CONFIG.keys, CONFIG.value_dim), tl.float32)
    first, last = queries_of(problem, b, k0, queries, CONFIG)
    none = tl.zeros((CONFIG.keys,), tl.float32)
    for g in range(group):
        h = hk * group + g
        own = (k, v, query, dout, softmax, sums, b, h, kv_heads * group, k0, a, c)
        sizes = (queries, keys, shift)
        state = (acc_k, acc_v, (none, none), none)
        others = (ends, lo, hi, key_sums)
        for q0 in range(first, last, CONFIG.queries):
            if CONFIG.tiles < 0:  # noqa: SIM114  what is not taken is not compiled
                state = add_queries(own, sizes, q0, state, others, problem, CONFIG)
            elif sees_tile(problem.masks[CONFIG.tiles], (b, h, q0, queries, keys), k0, CONFIG):
                state = add_queries(own, sizes, q0, state, others, problem, CONFIG)
        acc_k, acc_v, of_ends, of_keys = state
        before, after = of_ends
        head_key = (tl.cast(b, tl.int64) * kv_heads * group + h) * keys + k0
        if ends is not None:
            n = tl.arange(0, CONFIG.keys)
            to = ends + 2 * (head_key + n)
            tl.store(to, before, n < keys - k0)
            tl.store(to + 1, after, n < keys - k0)
        if key_sums is not None:
            n = tl.arange(0, CONFIG.keys)
            tl.store(key_sums + head_key + n, of_keys, n < keys - k0)
    write_rows(dk, acc_k * slope, row, keys - k0, head_dim, CONFIG.widen)
    write_rows(dv, acc_v, row, keys - k0, value_dim, CONFIG.widen)


@triton.jit
def add_queries(own, sizes, q0, state, others, problem, CONFIG: tl.constexpr):
    """The sums of a block of keys, with those of the queries from q0 on."""
    k, v, query, dout, softmax, sums, b, h, heads, k0, a, c = own
    queries, keys, shift = sizes
    acc_k, acc_v, of_ends, of_keys = state
    ends, lo, hi, key_sums = others
    part: tl.constexpr = -1 if CONFIG.open else 0
    row = (tl.cast(b, tl.int64) * heads + h) * queries + q0
    q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
    given = rows(dout, b, h, q0, CONFIG.queries, CONFIG.value_dim)
    of_rows = read_rows(softmax, sums, row, a, queries - q0)
    at = (b, h, q0, k0, a, c, queries, keys, shift)
    products = products_of(k, tl.trans(q), CONFIG)
    met = products_of(v, tl.trans(given), CONFIG)
    p, ds, _, visible, distances = pair_gradients(products, met, of_rows, problem, at, CONFIG, part)
    acc_v = product_of_seen(p, given, visible, acc_v, CONFIG)
    acc_k = product_of_seen(ds, q, visible, acc_k, CONFIG)
    if key_sums is not None:
        of_keys += tl.sum(ds, 1)
    if ends is not None:
        of_ends = add_ends(of_ends, ds, distances, lo, hi, CONFIG, part)
    return acc_k, acc_v, of_ends, of_keys
