"""Keys that no query sees: relpos.attention's key_padding_mask."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Padding(NamedTuple):
    """hidden uint8 [B, Lk], and the elements between two of its rows and columns."""

    hidden: Any
    row: Any
    column: Any


@triton.jit
def hide_padding(s, visible, mask, at):
    b, _, _, k0, _, c, _, keys, _ = at
    n = tl.cast(k0, tl.int64) + c
    of_keys = mask.hidden + tl.cast(b, tl.int64) * mask.row + n * mask.column
    return s, visible & (tl.load(of_keys, n < keys, 1) == 0)
