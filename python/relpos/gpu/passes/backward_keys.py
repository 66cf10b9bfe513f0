"""Gradients of keys and values: a program for each block of keys of a key head, which goes through
the heads of its group and their queries. Scores are [keys, queries]: a product that was transposed
costs registers."""

import triton
import triton.language as tl

from relpos.gpu.pairs.parts import ALL, parts_of_queries, through_queries
from relpos.gpu.pairs.product import (
    marked,
    product_of_seen,
    products_of,
    rows,
    write_rows,
)
from relpos.gpu.pairs.scores import add_ends, pair_gradients, read_rows
from relpos.gpu.pairs.visibility import queries_of

PLAIN = ["kv_heads", "group", "queries", "keys", "head_dim", "value_dim", "slope", "lo", "hi"]


@triton.jit(do_not_specialize=[*PLAIN, "first_head"])
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
    odd,
    problem,
    first_head,
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
    """dk [.., Lk, D] and dv [.., Lk, Dv], contiguous, of the key heads [B, Hk] from first_head on;
    where given, ends [B, H, Lk, 2]: of each key the sums of the scores' gradients at distances up
    to lo, and from hi on, and key_sums [B, H, Lk]: all of them. The rest as in backward_queries.
    Queries beyond the last weigh 0 (read_state)."""
    blocks = tl.cdiv(keys, CONFIG.keys)
    own_head = tl.program_id(0) // blocks
    kv_head = first_head + own_head
    k0 = (tl.program_id(0) % blocks) * CONFIG.keys
    b, hk = kv_head // kv_heads, kv_head % kv_heads
    if CONFIG.again:  # noqa: SIM102  a branch that is not taken is not typed
        if marked(odd, tl.cast(own_head, tl.int64) * keys + k0, keys - k0, CONFIG.keys) == 0:
            return
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[None, :], tl.arange(0, CONFIG.keys)[:, None]
    k = rows(key, b, hk, k0, CONFIG.keys, CONFIG.head_dim)
    v = rows(value, b, hk, k0, CONFIG.keys, CONFIG.value_dim)
    acc_k = tl.zeros((CONFIG.keys, CONFIG.head_dim), tl.float32)
    acc_v = tl.zeros((CONFIG.keys, CONFIG.value_dim), tl.float32)
    if CONFIG.share == ALL:
        first, last = queries_of(problem, b, k0, queries, CONFIG.keys)
        parts = (first, first, first, first)
    else:  # those of larger tiles, of which these may be a part
        q_size: tl.constexpr = CONFIG.parted[0]
        k_size: tl.constexpr = CONFIG.parted[1]
        whole = k0 // k_size * k_size
        first, last = queries_of(problem, b, whole, queries, k_size)
        start = tl.cast(whole, tl.int64) + shift
        parts = parts_of_queries(problem, first, last, start, whole, keys, q_size, k_size, CONFIG)
    n = tl.arange(0, CONFIG.keys)
    none = tl.zeros((CONFIG.keys,), tl.float32)
    for g in range(group):
        h = hk * group + g
        head_key = (tl.cast(b, tl.int64) * kv_heads * group + h) * keys + k0
        own = (k, v, query, dout, softmax, sums, b, h, kv_heads * group, k0, a, c)
        given = (own, (queries, keys, shift), (ends, lo, hi, key_sums))
        state = (acc_k, acc_v, (none, none), none)
        block = (b, h, k0, queries, keys)
        state = through_queries(
            add_queries, given, state, first, last, parts, block, problem, CONFIG
        )
        acc_k, acc_v, of_ends, of_keys = state
        before, after = of_ends
        if ends is not None:
            to = ends + 2 * (head_key + n)
            tl.store(to, before, n < keys - k0)
            tl.store(to + 1, after, n < keys - k0)
        if key_sums is not None:
            tl.store(key_sums + head_key + n, of_keys, n < keys - k0)
    acc_k *= slope
    to = tl.cast(own_head, tl.int64) * keys + k0
    write_rows(dk, acc_k, to, keys - k0, head_dim, CONFIG.widen)
    write_rows(dv, acc_v, to, keys - k0, value_dim, CONFIG.widen)


@triton.jit
def add_queries(given, q0, state, problem, CONFIG: tl.constexpr, PART: tl.constexpr):
    """The sums of a block of keys, with those of the queries from q0 on."""
    own, sizes, others = given
    k, v, query, dout, softmax, sums, b, h, heads, k0, a, c = own
    queries, keys, shift = sizes
    acc_k, acc_v, of_ends, of_keys = state
    ends, lo, hi, key_sums = others
    row = (tl.cast(b, tl.int64) * heads + h) * queries + q0
    q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
    of_out = rows(dout, b, h, q0, CONFIG.queries, CONFIG.value_dim)
    of_rows = read_rows(softmax, sums, row, a, queries - q0)
    at = (b, h, q0, k0, a, c, queries, keys, shift)
    products = products_of(k, tl.trans(q), CONFIG)
    met = products_of(v, tl.trans(of_out), CONFIG)
    p, ds, _, visible, distances = pair_gradients(products, met, of_rows, problem, at, CONFIG, PART)
    acc_v = product_of_seen(p, of_out, visible, acc_v, CONFIG)
    acc_k = product_of_seen(ds, q, visible, acc_k, CONFIG)
    if key_sums is not None:
        of_keys += tl.sum(ds, 1)
    if ends is not None:
        of_ends = add_ends(of_ends, ds, distances, lo, hi, CONFIG, PART)
    return acc_k, acc_v, of_ends, of_keys
