"""Tables that are read by the distance of coordinates: those of a Bias or Rows."""

from typing import Any, NamedTuple

import triton
import triton.language as tl  # noqa: F401  the interpreter looks for it

from relpos.gpu.pairs.visibility import apart_by
from relpos.gpu.terms.bias import bias_score
from relpos.gpu.terms.rows import row_score


class AtCoordinates(NamedTuple):
    """A Bias or Rows, and the Places whose distances they are read by."""

    table: Any
    places: Any


@triton.jit
def coordinate_score(s, term, at, distances):
    return bias_score(s, term.table, at, apart_by(term.places, at))


@triton.jit
def coordinate_row_score(s, term, at, distances):
    return row_score(s, term.table, at, apart_by(term.places, at))
