"""The gradients of the scores by query and distance, or by key and distance: bands, from which
tables of rows and what meets them have their gradients.

A band cell x is that of distance lo + x. Of consecutive tokens a query has at most one key at a
distance; elsewhere, and by distances of coordinates, the gradients are written pair by pair and
gathered. The first and the last cell of a row are sums over all distances up to it, and from it on:
`ends`, which backward_queries and backward_keys write, or write_ends of pairs. finish_bands puts
them there, and zeros where there is no pair."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.dropout import factors
from relpos.gpu.pairs.parts import through_keys
from relpos.gpu.pairs.product import products_of, rows
from relpos.gpu.pairs.scores import add_ends, gradients_at, pair_weights
from relpos.gpu.pairs.softmax import read_state
from relpos.gpu.pairs.visibility import between, keys_of, near, span_of
from relpos.gpu.sums.pair_sums import sum_between


class Bands(NamedTuple):
    """cells float32 [B, H, L, width], whose rows descriptors read. L is `length`: of queries
    (sign 1), which meet `others` keys, or of keys (sign -1), which meet queries."""

    cells: Any
    lo: Any
    width: Any
    length: Any
    others: Any
    sign: Any


PLAIN = ["heads", "group", "queries", "keys", "lo", "width", "pitch"]


@triton.jit
def inner_keys(problem, pairs, b, q0, lo, width, keys, CONFIG: tl.constexpr):
    """The keys from the first to the last at inner distances of a block of queries, seen or not:
    their cells are read. All, where `pairs` are wanted."""
    if pairs is None:
        start = tl.cast(q0, tl.int64) - tl.load(problem.shifts + b) + lo
        first, last = between(start + 1, start + CONFIG.queries + width - 2, keys)
        if CONFIG.aligned:
            first = first // CONFIG.keys * CONFIG.keys
    else:
        first, last = 0, keys
    return first, last


@triton.jit(do_not_specialize=PLAIN)
def write_bands(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    band,
    columns,
    pairs,
    problem,
    heads,
    group,
    queries,
    keys,
    lo,
    width,
    pitch,
    CONFIG: tl.constexpr,
):
    """What is given of: band [B, H, Lq, width], of consecutive tokens the inner cells that have a
    key; columns [B, H, Lk, width], those that have a query; pairs [B, H, Lq, Lk]. A program for
    each block of queries of a head."""
    blocks = tl.cdiv(queries, CONFIG.queries)
    head = tl.program_id(0) // blocks
    q0 = tl.program_id(0) % blocks * CONFIG.queries
    b, h = head // heads, head % heads
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    row = tl.cast(head, tl.int64) * queries + q0
    first, last = inner_keys(problem, pairs, b, q0, lo, width, keys, CONFIG)
    for k0 in range(first, last, CONFIG.keys):
        at = (b, h, q0, k0, a, c, queries, keys, shift)
        tensors = (query, key, value, dout, softmax, sums)
        _, ds, _, _, distances = gradients_at(tensors, heads, group, problem, at, CONFIG)
        inside = (a < queries - q0) & (c < keys - k0)
        if pairs is not None:
            tl.store(pairs + row * keys + tl.cast(a, tl.int64) * keys + k0 + c, ds, inside)
        corner, within = distances
        x = near(corner - lo) + within
        inside &= (x > 0) & (x < width - 1)
        if band is not None:
            tl.store(band + row * pitch + a * pitch + x, ds, inside)
        if columns is not None:
            to = columns + (tl.cast(head, tl.int64) * keys + k0) * pitch
            tl.store(to + c * pitch + x, ds, inside)


OF_GATHER = ["heads", "length", "others", "own_row", "other_row", "row_step", "other_step", "sign"]


@triton.jit(do_not_specialize=[*OF_GATHER, "lo", "width", "pitch", "steps"])
def gather_bands(
    band,
    pairs,
    own,
    ordered,
    order,
    spans,
    heads,
    length,
    others,
    own_row,
    other_row,
    row_step,
    other_step,
    sign,
    lo,
    width,
    pitch,
    steps,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The inner cells of band [B, H, L, width], from pairs [B, H, Lq, Lk], in which two tokens are
    row_step apart, and two others other_step. own [.., L]: where the tokens stand. ordered, order
    [.., others]: where the others do, in ascending order, and whose that is; spans: of queries; the
    rest as in Bands and fold_pairs. A program for each block of tokens of a head, and block of
    cells."""
    blocks = tl.cdiv(length, ROWS)
    head = tl.program_id(0) // blocks
    b = tl.cast(head // heads, tl.int64)
    i = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)[:, None]
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (i < length) & (x > 0) & (x < width - 1)
    if spans is not None:  # noqa: SIM108  a branch that is not taken is not typed
        span = span_of(spans, b, i, length)
    else:
        span = (0, others)
    at = tl.load(own + own_row * b + i, i < length, 0) + sign * (lo + x)
    whose = (ordered + other_row * b, order + other_row * b)
    row = pairs + tl.cast(head, tl.int64) * length * others + tl.cast(i, tl.int64) * row_step
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    at = (at, at + 1)
    acc = sum_between(acc, row, other_step, whose, at, span, inside, others, steps)
    to = band + (tl.cast(head, tl.int64) * length + i) * pitch + x
    tl.store(to, acc.to(tl.float32), inside)


@triton.jit(do_not_specialize=PLAIN)
def write_weights(
    query,
    key,
    softmax,
    band,
    ends,
    pairs,
    problem,
    heads,
    group,
    queries,
    keys,
    lo,
    width,
    pitch,
    CONFIG: tl.constexpr,
):
    """The same of the weights after dropout, whose ends [B, H, Lq, 2] it writes, too."""
    blocks = tl.cdiv(queries, CONFIG.queries)
    head = tl.program_id(0) // blocks
    q0 = tl.program_id(0) % blocks * CONFIG.queries
    b, h = head // heads, head % heads
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    row = tl.cast(head, tl.int64) * queries + q0
    of_rows = read_state(softmax, row, a, queries - q0)
    none = tl.zeros((CONFIG.queries,), tl.float32)
    found = (none, none)
    first, last = inner_keys(problem, pairs, b, q0, lo, width, keys, CONFIG)
    seen_from, seen_to = keys_of(problem, b, q0, queries, keys, CONFIG)
    if seen_from < seen_to:  # for the ends
        first = tl.where(first < last, tl.minimum(first, seen_from), seen_from)
        last = tl.maximum(last, seen_to)
    q = rows(query, b, h, q0, CONFIG.queries, CONFIG.head_dim)
    own = (q, key, b, h, h // group, q0, a, c, queries, keys, shift)
    given = (own, of_rows, (band, pairs, row, lo, width, pitch))
    block = (b, h, q0, queries, keys, tl.cast(q0, tl.int64) - shift)
    # The inner cells of each tile are read.
    found = through_keys(add_weights, given, found, first, last, block, problem, CONFIG, True)
    before, after = found
    n = tl.arange(0, CONFIG.queries)
    tl.store(ends + 2 * (row + n), before, n < queries - q0)
    tl.store(ends + 2 * (row + n) + 1, after, n < queries - q0)


@triton.jit
def add_weights(given, k0, found, problem, CONFIG: tl.constexpr, PART: tl.constexpr):
    """The ends of a block of queries, with those of the keys from k0 on, whose inner cells it
    writes."""
    own, of_rows, to = given
    q, key, b, h, kv_head, q0, a, c, queries, keys, shift = own
    band, pairs, row, lo, width, pitch = to
    at = (b, h, q0, k0, a, c, queries, keys, shift)
    k = rows(key, b, kv_head, k0, CONFIG.keys, CONFIG.head_dim)
    products = products_of(q, tl.trans(k), CONFIG)
    p, _, distances, _ = pair_weights(products, of_rows, problem, at, CONFIG, PART)
    if problem.dropout is not None:
        p *= factors(problem.dropout, at, CONFIG)
    if PART == 0:
        inside = (a < queries - q0) & (c < keys - k0)
        if pairs is None:
            corner, within = distances
            x = near(corner - lo) + within
            inside &= (x > 0) & (x < width - 1)
            tl.store(band + row * pitch + a * pitch + x, p, inside)
        else:
            tl.store(pairs + row * keys + tl.cast(a, tl.int64) * keys + k0 + c, p, inside)
    return add_ends(found, p, distances, lo, lo + width - 1, CONFIG, PART)


@triton.jit(do_not_specialize=["heads", "length", "others", "lo", "width", "pitch", "sign"])
def finish_bands(
    cells,
    ends,
    shifts,
    heads,
    length,
    others,
    lo,
    width,
    pitch,
    sign,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Writes the ends [B, H, L, 2] of each row of `cells`, and where shifts are given, those of
    consecutive tokens, zeros to cells that have no pair. A program for each block of rows of a
    head."""
    blocks = tl.cdiv(length, ROWS)
    head = tl.program_id(0) // blocks
    i = (tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS))[:, None]
    row = tl.cast(head, tl.int64) * length + i
    if shifts is not None:
        shift = tl.load(shifts + head // heads)
        for first in range(0, width, CELLS):
            x = first + tl.arange(0, CELLS)[None, :]
            other = i - sign * (shift - lo - x)
            empty = (other < 0) | (other >= others)
            tl.store(cells + row * pitch + x, 0.0, (i < length) & (x < width) & empty)
    end = tl.arange(0, 2)[None, :]
    inside = (i < length) & (end < width)
    found = tl.load(ends + 2 * row + end, inside, 0.0)
    tl.debug_barrier()  # other threads wrote zeros there
    tl.store(cells + row * pitch + tl.where(end == 0, 0, width - 1), found, inside)
