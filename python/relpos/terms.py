"""The terms of which every relative position consists, for positions of one's own.

    score[i,j]  = scale <R (q_i + u), R k_j> + s1 <a_i, r[m]> + s2 <c_j, r'[m]> + b[h, m] + k[h, j]
                  + s3 <a_i, r"[c[i,j]]> + b"[h, c[i,j]]
    weight[i,j] = exp(score[i,j]) / (sum_j exp(score[i,j]) + exp(sink[h]))
    out[i]      = sum_j weight[i,j] (v_j + t[m])         m: the row of the distance key - query
                                                         c: the class of the pair, a byte

Each is a position: give it to relpos.attention(position=...), add it to others. Its tensors are the
caller's, of any autograd graph; gradients have their dtype and shape, and rows that no visible pair
reads get exactly 0. docs/own-schemes.md has examples.
"""

from relpos._position.pairs import PairBias, PairRows
from relpos._position.terms import (
    ColumnTable,
    DistanceBias,
    KeyBias,
    QueryAdded,
    RotaryTables,
    Rotation,
    RowTable,
    Sink,
    Slopes,
    ValueTable,
)

__all__ = [
    "ColumnTable",
    "DistanceBias",
    "KeyBias",
    "PairBias",
    "PairRows",
    "QueryAdded",
    "RotaryTables",
    "Rotation",
    "RowTable",
    "Sink",
    "Slopes",
    "ValueTable",
]
