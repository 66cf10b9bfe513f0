"""The forward pass: a program for each block of queries of a head."""

import triton
import triton.language as tl

from relpos.gpu.dropout import factors
from relpos.gpu.pair_scores import pair_scores
from relpos.gpu.product import finite, product_of_seen, rows, write_rows
from relpos.gpu.softmax import add_scores, write_state
from relpos.gpu.terms.sinks import join_sinks
from relpos.gpu.visibility import keys_of

PLAIN = ["heads", "group", "queries", "keys", "value_dim"]


@triton.jit(do_not_specialize=PLAIN)
def forward(
    query,
    key,
    value,
    out,
    softmax,
    lse,
    problem,
    heads,
    group,
    queries,
    keys,
    value_dim,
    CONFIG: tl.constexpr,
):
    """out [B, H, Lq, Dv], softmax [B, H, Lq, 2] and lse [B, H, Lq], contiguous, of descriptors of
    query [B, H, Lq, D], key [B, H / group, Lk, D] and value."""
    blocks = tl.cdiv(queries, CONFIG.queries)
    head = tl.program_id(0) // blocks
    q0 = (blocks - 1 - tl.program_id(0) % blocks) * CONFIG.queries  # the longest causal rows first
    b, h = head // heads, head % heads
    row = tl.cast(head, tl.int64) * queries + q0
    if CONFIG.again:  # noqa: SIM102  a branch that is not taken is not typed
        if finite(out, row, queries - q0, value_dim, CONFIG.queries, CONFIG.value_dim):
            return
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
    reference = tl.full((CONFIG.queries,), float("-inf"), tl.float32)
    total = tl.zeros((CONFIG.queries,), tl.float32)
    acc = tl.zeros((CONFIG.queries, CONFIG.value_dim), tl.float32)
    of_rows = q0 + tl.arange(0, CONFIG.queries)
    reference, total = join_sinks(
        problem.sinks, b, h, of_rows, queries, reference, total, CONFIG.sinks
    )
    first, last = keys_of(problem, b, q0, queries, keys, CONFIG)
    for k0 in range(first, last, CONFIG.keys):
        k = rows(key, b, h // group, k0, CONFIG.keys, CONFIG.head_dim)
        at = (b, h, q0, k0, a, c, queries, keys)
        s, visible, _, _ = pair_scores(q, tl.trans(k), problem, at, CONFIG)
        p, factor, reference, total = add_scores(s, reference, total)
        if problem.dropout is not None:
            p *= factors(problem.dropout, at, CONFIG)
        v = rows(value, b, h // group, k0, CONFIG.keys, CONFIG.value_dim)
        acc = product_of_seen(p, v, visible, acc * factor[:, None], CONFIG)
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    write_rows(out, acc * inverse[:, None], row, queries - q0, value_dim, CONFIG.widen)
    write_state(softmax, lse, row, tl.arange(0, CONFIG.queries), queries - q0, reference, total)
