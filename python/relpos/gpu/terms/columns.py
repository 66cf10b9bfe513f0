"""Rows of a table that meet the keys: scale <c_j, r'[m(delta)]>, as terms/rows.py has them of
queries."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.visibility import near
from relpos.gpu.terms.rows import cell_of


class Columns(NamedTuple):
    """cells float32 [B, heads, Lk, width], and ends [B, heads, Lk, 2]: the products, of `share`
    heads of queries each."""

    cells: Any
    ends: Any
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
    return s + tl.load(cell_of(term, row, c, x), c < keys - k0, 0.0)
