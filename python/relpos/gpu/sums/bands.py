"""The gradients of the scores by query and distance, or by key and distance: bands, from which
tables of rows and what meets them have their gradients.

A band cell x is that of distance lo + x. Of consecutive tokens a query has at most one key at a
distance; elsewhere, and by distances of coordinates, the gradients are written pair by pair and
gathered. The distances before and after the inner ones have two sums a row, `ends`, which
backward_queries and backward_keys write, or write_ends of pairs."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.dropout import factors
from relpos.gpu.pairs.parts import through_keys
from relpos.gpu.pairs.product import stored, wide_product_of_met
from relpos.gpu.pairs.scores import add_ends, gradients_at, pair_scores, sliced
from relpos.gpu.pairs.softmax import read_state
from relpos.gpu.pairs.visibility import between, keys_of, near, span_of
from relpos.gpu.sums.pair_sums import sum_between
from relpos.gpu.terms.rows import OF_TABLE, factor_rows


class Bands(NamedTuple):
    """cells float32 [B, H, L, width], of which the first and the last of a row are not read, and
    ends [B, H, L, 2] in their place. L is `length`: of queries (sign 1), which meet `others` keys,
    or of keys (sign -1), which meet queries. shifts: those of consecutive tokens, where only the
    cells of others that there are hold something; else None."""

    cells: Any
    ends: Any
    shifts: Any
    lo: Any
    width: Any
    length: Any
    others: Any
    sign: Any


PLAIN = ["heads", "group", "queries", "keys", "lo", "width"]


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
            tl.store(band + row * width + a * width + x, ds, inside)
        if columns is not None:
            to = columns + (tl.cast(head, tl.int64) * keys + k0) * width
            tl.store(to + c * width + x, ds, inside)


OF_GATHER = ["heads", "length", "others", "own_row", "other_row", "row_step", "other_step", "sign"]


@triton.jit(do_not_specialize=[*OF_GATHER, "lo", "width", "steps"])
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
    to = band + (tl.cast(head, tl.int64) * length + i) * width + x
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
    reference, inverse = read_state(softmax, row, a, queries - q0)
    none = tl.zeros((CONFIG.queries,), tl.float32)
    found = (none, none)
    first, last = inner_keys(problem, pairs, b, q0, lo, width, keys, CONFIG)
    seen_from, seen_to = keys_of(problem, b, q0, queries, keys, CONFIG)
    if seen_from < seen_to:  # for the ends
        first = tl.where(first < last, tl.minimum(first, seen_from), seen_from)
        last = tl.maximum(last, seen_to)
    own = (query, key, b, h, h // group, q0, a, c, queries, keys, shift)
    given = (own, (reference, inverse), (band, pairs, row, lo, width))
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
    part: tl.constexpr = 0 if PART < 0 else PART
    query, key, b, h, kv_head, q0, a, c, queries, keys, shift = own
    reference, inverse = of_rows
    band, pairs, row, lo, width = to
    at = (b, h, q0, k0, a, c, queries, keys, shift)
    products = sliced(query, key, b, h, kv_head, q0, k0, CONFIG.head_dim, CONFIG)
    s, visible, distances, _ = pair_scores(products, problem, at, CONFIG, part)
    p = tl.exp2(s - reference) * inverse
    if part == 0:
        p = tl.where(visible, p, 0.0)
    if problem.dropout is not None:
        p *= factors(problem.dropout, at, CONFIG)
    if part == 0:
        inside = (a < queries - q0) & (c < keys - k0)
        if pairs is None:
            corner, within = distances
            x = near(corner - lo) + within
            inside &= (x > 0) & (x < width - 1)
            tl.store(band + row * width + a * width + x, p, inside)
        else:
            tl.store(pairs + row * keys + tl.cast(a, tl.int64) * keys + k0 + c, p, inside)
    return add_ends(found, p, distances, lo, lo + width - 1, CONFIG, part)


@triton.jit
def band_at(bands, b, head, i, x):
    """float32 of tokens i at cells x, 0 where no other stands there."""
    row = tl.cast(head, tl.int64) * bands.length + i
    inside = (i < bands.length) & (x < bands.width)
    inner = inside & (x > 0) & (x < bands.width - 1)
    if bands.shifts is not None:
        j = i - bands.sign * (tl.load(bands.shifts + b) - bands.lo - x)
        held = inner & (j >= 0) & (j < bands.others)
    else:
        held = inner
    last = tl.where(x > 0, 1, 0)
    ends = tl.load(bands.ends + 2 * row + last, inside & (inner == 0), 0.0)
    return ends + tl.load(bands.cells + row * bands.width + x, held, 0.0)


@triton.jit(do_not_specialize=OF_TABLE)
def multiply_bands(
    gradient,
    bands,
    table,
    classes,
    heads,
    own_heads,
    rank,
    width,
    head_stride,
    class_stride,
    column_stride,
    multiplier,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """gradient float32 [B, own_heads, L, r] of what meets the rows: multiplier times the bands of a
    row times the table, over the heads that share it. Program (block of rows of a head, block of
    columns)."""
    blocks = tl.cdiv(bands.length, ROWS)
    own = tl.program_id(0) // blocks
    i = (tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS))[:, None]
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    b = own // own_heads
    group = heads // own_heads
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for g in range(group):
        h = own % own_heads * group + g
        for first in range(0, width, CELLS):
            x = first + tl.arange(0, CELLS)
            m = tl.load(classes + x, x < width, -1)[:, None]
            at = table + tl.cast(h, tl.int64) * head_stride + tl.cast(m, tl.int64) * class_stride
            right = tl.load(at + n * column_stride, (m >= 0) & (n < rank), 0.0).to(tl.float32)
            left = band_at(bands, b, b * heads + h, i, x[None, :])
            acc = wide_product_of_met(left, right, acc)
    to = gradient + (tl.cast(own, tl.int64) * bands.length + i) * rank + n
    tl.store(to, acc * multiplier, (i < bands.length) & (n < rank))


@triton.jit(do_not_specialize=["batch", "heads", "own_heads", "rank", "width", "parts"])
def sum_band_rows(
    factor,
    sums,
    bands,
    added,
    batch,
    heads,
    own_heads,
    rank,
    width,
    parts,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """sums float64 [parts, H, width, r]: of each cell the bands of all rows times factor_rows, a
    part of the blocks of rows in each of `parts`. Program (block of cells, part and head, block of
    columns)."""
    x = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    h = tl.program_id(1) % heads
    part = tl.program_id(1) // heads
    d = tl.program_id(2) * COLUMNS
    n = (d + tl.arange(0, COLUMNS))[None, :]
    blocks = tl.cdiv(bands.length, ROWS)
    count = tl.cdiv(batch * blocks, parts)
    acc = tl.zeros((CELLS, COLUMNS), tl.float64)
    for block in range(part * count, tl.minimum((part + 1) * count, batch * blocks)):
        b = block // blocks
        i = block % blocks * ROWS
        of_rows = i + tl.arange(0, ROWS)[:, None]
        left = tl.trans(band_at(bands, b, b * heads + h, of_rows, x[None, :]))
        own = h // (heads // own_heads)
        right = factor_rows(factor, added, b, h, own, i, d, rank, ROWS, COLUMNS)
        none = tl.zeros((CELLS, COLUMNS), tl.float32)
        acc += wide_product_of_met(left, right, none).to(tl.float64)
    x = x[:, None]
    to = sums + (tl.cast(tl.program_id(1), tl.int64) * width + x) * rank + n
    tl.store(to, acc, (x < width) & (n < rank))


OF_ROWS = ["heads", "several", "parts", "width", "rows", "rank", "longest"]
OF_ROWS += ["head_stride", "class_stride", "column_stride"]


@triton.jit(do_not_specialize=OF_ROWS)
def write_rows_gradient(
    gradient,
    sums,
    cells,
    starts,
    heads,
    several,
    parts,
    width,
    rows,
    rank,
    longest,
    head_stride,
    class_stride,
    column_stride,
    multiplier,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """The gradient of a table: multiplier times the sum of `sums` [parts, H, width, r] at the cells
    of each class, as in write_table_gradient, over the `several` heads that share a table. Program
    (block of classes, head of the table, block of columns)."""
    m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None, None]
    begin = tl.load(starts + m, m < rows, 0)
    end = tl.load(starts + m + 1, m < rows, 0)
    n = (tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS))[None, None, :]
    acc = tl.zeros((ROWS, CELLS, COLUMNS), tl.float64)
    for part in range(parts):
        for g in range(several):
            head = tl.cast(part * heads + tl.program_id(1) * several + g, tl.int64)
            for k in range(0, longest, CELLS):
                at = begin + k + tl.arange(0, CELLS)[None, :, None]
                cell = tl.load(cells + at, at < end, 0)
                from_ = sums + (head * width + cell) * rank + n
                acc += tl.load(from_, (at < end) & (n < rank), 0.0)
    total = (tl.sum(acc, 1, keep_dims=True) * multiplier).to(tl.float32)
    to = gradient + tl.cast(tl.program_id(1), tl.int64) * head_stride
    to += tl.cast(m, tl.int64) * class_stride + n * column_stride
    found = stored(total, gradient.dtype.element_ty, WIDEN)
    tl.store(to, found, (m < rows) & (n < rank))
