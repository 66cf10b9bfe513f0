"""Gradients of queries, and what a distance bias needs of far pairs: a program for each block of
queries of a head."""

import triton
import triton.language as tl

from relpos.gpu.pairs.product import finite, product_of_seen, products_of, rows, write_rows
from relpos.gpu.pairs.scores import pair_gradients, read_rows
from relpos.gpu.pairs.visibility import keys_of, near
from relpos.gpu.terms.slopes import line_sums

PLAIN = ["heads", "group", "queries", "keys", "head_dim", "slope", "lo", "hi"]


@triton.jit(do_not_specialize=PLAIN)
def backward_queries(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    dq,
    ends,
    lines,
    nearest,
    problem,
    heads,
    group,
    queries,
    keys,
    head_dim,
    slope,
    lo,
    hi,
    CONFIG: tl.constexpr,
):
    """dq [B, H, Lq, D], contiguous; lines [B, H, Lq, 4], where given: of each row what line_sums
    gives, of `nearest`; ends [B, H, Lq, 2], where given: of each row the sums of the
    scores' gradients at distances up to lo, and from hi on. `slope` is the scale in natural
    units."""
    blocks = tl.cdiv(queries, CONFIG.queries)
    head = tl.program_id(0) // blocks
    q0 = (blocks - 1 - tl.program_id(0) % blocks) * CONFIG.queries
    b, h = head // heads, head % heads
    row = tl.cast(head, tl.int64) * queries + q0
    if CONFIG.again:  # noqa: SIM102  a branch that is not taken is not typed
        if finite(dq, row, queries - q0, head_dim, CONFIG.queries, CONFIG.head_dim):
            return
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
    given = rows(dout, b, h, q0, CONFIG.queries, CONFIG.value_dim)
    of_rows = read_rows(softmax, sums, row, a, queries - q0)
    acc = tl.zeros((CONFIG.queries, CONFIG.head_dim), tl.float32)
    before = tl.zeros((CONFIG.queries,), tl.float32)
    after = tl.zeros((CONFIG.queries,), tl.float32)
    below_sum = tl.zeros((CONFIG.queries,), tl.float32)
    below_count = tl.zeros((CONFIG.queries,), tl.float32)
    above_sum = tl.zeros((CONFIG.queries,), tl.float32)
    above_count = tl.zeros((CONFIG.queries,), tl.float32)
    first, last = keys_of(problem, b, q0, queries, keys, CONFIG)
    for k0 in range(first, last, CONFIG.keys):
        k = rows(key, b, h // group, k0, CONFIG.keys, CONFIG.head_dim)
        v = rows(value, b, h // group, k0, CONFIG.keys, CONFIG.value_dim)
        at = (b, h, q0, k0, a, c, queries, keys)
        products = products_of(q, tl.trans(k), CONFIG)
        met = products_of(given, tl.trans(v), CONFIG)
        _, ds, _, visible, distances = pair_gradients(products, met, of_rows, problem, at, CONFIG)
        acc = product_of_seen(ds, k, visible, acc, CONFIG)
        if lines is not None:
            below, number, above, others = line_sums(ds, nearest, at, distances)
            below_sum += below
            below_count += number
            above_sum += above
            above_count += others
        if ends is not None:
            corner, within = distances
            before += tl.sum(tl.where(within <= near(lo - corner), ds, 0.0), 1)
            after += tl.sum(tl.where(within >= near(hi - corner), ds, 0.0), 1)
    write_rows(dq, acc * slope, row, queries - q0, head_dim, CONFIG.widen)
    if lines is not None:
        n = tl.arange(0, CONFIG.queries)
        to = lines + 4 * (row + n)
        tl.store(to, below_sum, n < queries - q0)
        tl.store(to + 1, below_count, n < queries - q0)
        tl.store(to + 2, above_sum, n < queries - q0)
        tl.store(to + 3, above_count, n < queries - q0)
    if ends is not None:
        a = tl.arange(0, CONFIG.queries)
        tl.store(ends + 2 * (row + a), before, a < queries - q0)
        tl.store(ends + 2 * (row + a) + 1, after, a < queries - q0)
