"""Numbers of each key that join its scores: key_bias[(b,) h, j], which may be sums over the keys so
far, as forget gates are (Lin et al.: Forgetting Transformer, arXiv 2503.02130)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class KeyBias(NamedTuple):
    """big, small float32 [.., H, Lk]: numbers in log2 units, as sums of two; and the elements
    between two batch rows. A row is less by what the key has that is nearest to it: rows_big and
    rows_small [B, H, Lq] are that key's, or None."""

    big: Any
    small: Any
    batch: Any
    heads: Any
    rows_big: Any
    rows_small: Any


@triton.jit
def key_score(s, term, at, distances):
    b, h, q0, k0, a, c, queries, keys, _ = at
    own = tl.cast(b, tl.int64) * term.batch + tl.cast(h, tl.int64) * keys + k0
    big = tl.load(term.big + own + c, c < keys - k0, 0.0)
    small = tl.load(term.small + own + c, c < keys - k0, 0.0)
    if term.rows_big is not None:
        row = (tl.cast(b, tl.int64) * term.heads + h) * queries + q0
        big = big - tl.load(term.rows_big + row + a, a < queries - q0, 0.0)
        small = small - tl.load(term.rows_small + row + a, a < queries - q0, 0.0)
    return s + (big + small)


@triton.jit
def add(x, y):
    return x + y


@triton.jit(do_not_specialize=["length", "row_stride", "column_stride"])
def sum_along(to, x, length, row_stride, column_stride, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    """to float64 [.., L]: the sums of x up to each element and with it, of float64 rows; REVERSE:
    from it to the last. A program for each row."""
    row = tl.cast(tl.program_id(0), tl.int64)
    before = tl.zeros((1,), tl.float64)
    for first in range(0, length, BLOCK):
        n = first + tl.arange(0, BLOCK)
        if REVERSE:
            n = length - 1 - n
        inside = (n >= 0) & (n < length)
        held = tl.load(x + row * row_stride + n * column_stride, inside, 0.0)
        tl.store(to + row * length + n, before + tl.associative_scan(held, 0, add), inside)
        before += tl.sum(held, 0)
