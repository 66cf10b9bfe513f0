"""Sums of the scores' gradients by the class of the pair, of gradients that are written pair by
pair."""

import triton
import triton.language as tl

PLAIN = ["heads", "row", "first", "count", "keys", "lo", "width", "pitch"]


@triton.jit(do_not_specialize=PLAIN)
def gather_classes(
    band,
    pairs,
    classes,
    heads,
    row,
    first,
    count,
    keys,
    lo,
    width,
    pitch,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """band float32 [.., H, count, width], in rows of `pitch` numbers, of queries first, first + 1,
    ... of batch rows row, row + 1, ...: the sums of `pairs` [.., H, count, Lk] at each class lo,
    lo + 1, ...; classes: Pairs. Program (block of queries of a head, block of classes)."""
    blocks = tl.cdiv(count, ROWS)
    head = tl.program_id(0) // blocks
    b = tl.cast(row + head // heads, tl.int64)
    i = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)[:, None, None]
    c = tl.arange(0, BLOCK)[None, :, None]
    x = tl.program_id(1) * CELLS + tl.arange(0, CELLS)[None, None, :]
    of_rows = tl.cast(i, tl.int64)
    given = classes.data + b * classes.batch + (first + of_rows) * classes.query
    values = pairs + (tl.cast(head, tl.int64) * count + of_rows) * keys
    acc = tl.zeros((ROWS, 1, CELLS), tl.float64)
    for k0 in range(0, keys, BLOCK):
        inside = (i < count) & (c < keys - k0)
        j = tl.cast(k0 + c, tl.int64)
        of_pair = tl.cast(tl.load(given + j * classes.key, inside, 0), tl.int32)
        found = tl.where(of_pair == lo + x, tl.load(values + j, inside, 0.0), 0.0)
        acc += tl.sum(found, 1, keep_dims=True).to(tl.float64)
    to = band + (tl.cast(head, tl.int64) * count + of_rows) * pitch + x
    tl.store(to, acc.to(tl.float32), (i < count) & (x < width))
