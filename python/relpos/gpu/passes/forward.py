"""The forward pass: a program for each block of queries of a head; of few queries, as in decoding,
for each chunk of their keys, too."""

import triton
import triton.language as tl

from relpos.gpu.pairs.dropout import factors
from relpos.gpu.pairs.parts import through_keys
from relpos.gpu.pairs.product import marked, product_of_seen, products_of, rows, write_rows
from relpos.gpu.pairs.scores import pair_scores, with_tables
from relpos.gpu.pairs.softmax import add_scores, write_state
from relpos.gpu.pairs.visibility import apart, keys_of
from relpos.gpu.terms.sinks import join_sinks

PLAIN = ["heads", "group", "queries", "keys", "value_dim", "chunk"]


@triton.jit(do_not_specialize=PLAIN)
def forward(
    query,
    key,
    value,
    out,
    softmax,
    lse,
    odd,
    problem,
    heads,
    group,
    queries,
    keys,
    value_dim,
    chunk,
    CONFIG: tl.constexpr,
):
    """out [.., B, H, Lq, Dv], softmax [.., B, H, Lq, 2], odd [.., B, H, Lq], lse [B, H, Lq], of
    descriptors of query [B, H, Lq, D], key [B, H / group, Lk, D] and value. `..`: one for each
    chunk of keys, a multiple of 64, which is the second axis of programs."""
    blocks = tl.cdiv(queries, CONFIG.queries)
    head = tl.program_id(0) // blocks
    q0 = (blocks - 1 - tl.program_id(0) % blocks) * CONFIG.queries  # the longest causal rows first
    b, h = head // heads, head % heads
    before = tl.program_id(1) * (tl.num_programs(0) // blocks)  # heads of other chunks
    row = tl.cast(before + head, tl.int64) * queries + q0
    if CONFIG.again:  # noqa: SIM102  a branch that is not taken is not typed
        if marked(odd, row, queries - q0, CONFIG.queries) == 0:
            return
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
    reference = tl.full((CONFIG.queries,), float("-inf"), tl.float32)
    total = tl.zeros((CONFIG.queries,), tl.float32)
    acc = tl.zeros((CONFIG.queries, CONFIG.value_dim), tl.float32)
    of_rows = q0 + tl.arange(0, CONFIG.queries)
    if tl.program_id(1) == 0:
        reference, total = join_sinks(
            problem, head, b, h, of_rows, queries, reference, total, CONFIG.sinks
        )
    first, last = keys_of(problem, b, q0, queries, keys, CONFIG)
    if tl.num_programs(1) > 1:  # no tile has keys of two chunks
        first = first // CONFIG.keys * CONFIG.keys
    first = tl.maximum(first, tl.program_id(1) * chunk)
    last = tl.minimum(last, (tl.program_id(1) + 1) * chunk)
    given = (q, key, value, b, h, h // group, q0, a, c, queries, keys, shift)
    block = (b, h, q0, queries, keys, tl.cast(q0, tl.int64) - shift)
    state = (reference, total, acc)
    state = through_keys(add_keys, given, state, first, last, block, problem, CONFIG)
    reference, total, acc = state
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    acc = tl.where(total[:, None] == 0.0, 0.0, acc * inverse[:, None])
    write_rows(out, acc, row, queries - q0, value_dim, CONFIG.widen)
    n = tl.arange(0, CONFIG.queries)
    write_state(softmax, lse, problem.row_shift, row, n, queries - q0, reference, total)


@triton.jit
def add_keys(given, k0, state, problem, CONFIG: tl.constexpr, PART: tl.constexpr):
    """The sums of a block of queries, with those of the keys from k0 on."""
    q, key, value, b, h, kv_head, q0, a, c, queries, keys, shift = given
    reference, total, acc = state
    k = rows(key, b, kv_head, k0, CONFIG.keys, CONFIG.head_dim)
    at = (b, h, q0, k0, a, c, queries, keys, shift)
    products = products_of(q, tl.trans(k), CONFIG)
    if CONFIG.bare and PART > 0:  # one product and one sum a pair less
        s, visible, unit = products, products == products, problem.scale
        offset = with_tables(0.0, problem, at, apart(problem, at), CONFIG, PART)
    else:
        s, visible, _, _ = pair_scores(products, problem, at, CONFIG, PART)
        unit, offset = 1.0, 0.0
    p, factor, reference, total = add_scores(s, unit, offset, reference, total)
    if problem.dropout is not None:
        p *= factors(problem.dropout, at, CONFIG)
    v = rows(value, b, kv_head, k0, CONFIG.keys, CONFIG.value_dim)
    acc = product_of_seen(p, v, visible, acc * factor[:, None], CONFIG)
    return reference, total, acc


@triton.jit(do_not_specialize=["chunks", "count", "value_dim"])
def merge_chunks(
    out,
    softmax,
    lse,
    shift,
    parts,
    states,
    chunks,
    count,
    value_dim,
    BV: tl.constexpr,
    BM: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """The results of `count` rows, from those of each chunk of keys, parts [chunks, count, Dv] and
    states [chunks, count, 2], float32. A program for each block of rows."""
    row = tl.cast(tl.program_id(0), tl.int64) * BM
    a, c = tl.arange(0, BM), tl.arange(0, BV)
    reference = tl.full((BM,), float("-inf"), tl.float32)
    for n in range(chunks):
        at = states + 2 * (tl.cast(n, tl.int64) * count + row + a)
        reference = tl.maximum(reference, tl.load(at, a < count - row, 0.0))
    base = tl.where(reference == float("-inf"), 0.0, reference)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BV), tl.float32)
    for n in range(chunks):
        part = tl.cast(n, tl.int64) * count + row
        at = states + 2 * (part + a)
        weight = tl.load(at + 1, a < count - row, 0.0)
        weight = tl.where(weight == float("inf"), 0.0, weight)  # which saw nothing
        weight *= tl.exp2(tl.load(at, a < count - row, 0.0) - base)
        total += weight
        inside = (a < count - row)[:, None] & (c < value_dim)[None, :]
        held = tl.load(parts + (part + a)[:, None] * value_dim + c[None, :], inside, 0.0)
        acc += weight[:, None] * held
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    write_rows(out, acc * inverse[:, None], row, count - row, value_dim, WIDEN)
    write_state(softmax, lse, shift, row, a, count - row, reference, total)
