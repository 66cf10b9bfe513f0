"""Methods that need no kernel of their own: a few lines around relpos.attention each.

They remap distances by several calls over disjoint keys (self_extend, rerope, dual_chunk), change
queries, keys or values before the call (log_temperature, rotate_values, polar, tupe), or compute
what differs from query to query in blocks of rows (cope, fire, bias_by_rows). docs/compositions.md
has their formulas. All are differentiable, and none holds a tensor of size Lq x Lk.
"""

from relpos.compose._bias import bias_by_rows
from relpos.compose._remap import dual_chunk, rerope, self_extend
from relpos.compose._rows import cope, fire
from relpos.compose._vectors import log_temperature, polar, rotate_values, tupe

__all__ = [
    "bias_by_rows",
    "cope",
    "dual_chunk",
    "fire",
    "log_temperature",
    "polar",
    "rerope",
    "rotate_values",
    "self_extend",
    "tupe",
]
