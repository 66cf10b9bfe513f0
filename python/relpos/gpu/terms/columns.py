"""Rows of a table that meet the keys: scale <c_j, r'[m(delta)]>, as terms/rows.py has them of
queries."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.visibility import near


class Columns(NamedTuple):
    """cells float32 [B, heads, Lk, width]: the products, of `share` heads of queries each."""

    cells: Any
    heads: Any
    share: Any
    lo: Any
    width: Any


@triton.jit
def column_score(s, term, at, distances):
    b, h, _, k0, _, c, _, keys, _ = at
    corner, within = distances
    x = near(corner - term.lo) + within
    row = (tl.cast(b, tl.int64) * term.heads + h // term.share) * keys + k0
    at_row = term.cells + row * term.width + c * term.width
    return s + tl.load(at_row + tl.minimum(tl.maximum(x, 0), term.width - 1), c < keys - k0, 0.0)
