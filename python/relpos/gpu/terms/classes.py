"""Tables that are read by the class of each pair, which a call gives: b[h, class[i, j]], and the
products of a query and the row of the class.

The class is the distance by which a Bias or Rows are read; where none is in the table, nothing is
added."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.scores import read_pairs
from relpos.gpu.terms.bias import bias_score
from relpos.gpu.terms.rows import row_score


class OfClasses(NamedTuple):
    """A Bias or Rows, and the class of each pair, Pairs of uint8."""

    table: Any
    classes: Any


@triton.jit
def apart_in_class(classes, at):
    """As visibility.apart says distances."""
    return tl.cast(0, tl.int64), tl.cast(read_pairs(classes, at, 0), tl.int32)


@triton.jit
def class_score(s, term, at, distances):
    return bias_score(s, term.table, at, apart_in_class(term.classes, at))


@triton.jit
def class_row_score(s, term, at, distances):
    return row_score(s, term.table, at, apart_in_class(term.classes, at))
