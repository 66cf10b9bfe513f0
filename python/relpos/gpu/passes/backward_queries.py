"""Gradients of queries, and what a distance bias needs of far pairs: a program for each block of
queries of a head."""

import triton
import triton.language as tl

from relpos.gpu.pairs.parts import through_keys
from relpos.gpu.pairs.product import marked, product_of_seen, products_of, rows, write_rows
from relpos.gpu.pairs.scores import add_ends, pair_gradients, read_rows
from relpos.gpu.pairs.visibility import keys_of
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
    odd,
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
        if marked(odd, row, queries - q0, CONFIG.queries) == 0:
            return
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
    of_out = rows(dout, b, h, q0, CONFIG.queries, CONFIG.value_dim)
    of_rows = read_rows(softmax, sums, row, a, queries - q0)
    acc = tl.zeros((CONFIG.queries, CONFIG.head_dim), tl.float32)
    own = (q, of_out, key, value, b, h, h // group, q0, a, c, queries, keys, shift)
    none = tl.zeros((CONFIG.queries,), tl.float32)
    state = (acc, (none, none), (none, none, none, none))
    others = (of_rows, ends, lo, hi, lines, nearest)
    first, last = keys_of(problem, b, q0, queries, keys, CONFIG)
    block = (b, h, q0, queries, keys, tl.cast(q0, tl.int64) - shift)
    given = (own, others)
    state = through_keys(add_keys, given, state, first, last, block, problem, CONFIG)
    acc, of_ends, of_lines = state
    write_rows(dq, acc * slope, row, queries - q0, head_dim, CONFIG.widen)
    n = tl.arange(0, CONFIG.queries)
    if lines is not None:
        for at in tl.static_range(4):
            tl.store(lines + 4 * (row + n) + at, of_lines[at], n < queries - q0)
    if ends is not None:
        for at in tl.static_range(2):
            tl.store(ends + 2 * (row + n) + at, of_ends[at], n < queries - q0)


@triton.jit
def add_keys(given, k0, state, problem, CONFIG: tl.constexpr, PART: tl.constexpr):
    """The sums of a block of queries, with those of the keys from k0 on."""
    own, others = given
    q, of_out, key, value, b, h, kv_head, q0, a, c, queries, keys, shift = own
    acc, of_ends, of_lines = state
    of_rows, ends, lo, hi, lines, nearest = others
    k = rows(key, b, kv_head, k0, CONFIG.keys, CONFIG.head_dim)
    v = rows(value, b, kv_head, k0, CONFIG.keys, CONFIG.value_dim)
    at = (b, h, q0, k0, a, c, queries, keys, shift)
    products = products_of(q, tl.trans(k), CONFIG)
    met = products_of(of_out, tl.trans(v), CONFIG)
    _, ds, _, visible, distances = pair_gradients(products, met, of_rows, problem, at, CONFIG, PART)
    acc = product_of_seen(ds, k, visible, acc, CONFIG)
    if lines is not None:
        of_lines = line_sums(of_lines, ds, nearest, at, distances)
    if ends is not None:
        of_ends = add_ends(of_ends, ds, distances, lo, hi, CONFIG, PART)
    return acc, of_ends, of_lines
