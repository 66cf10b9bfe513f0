"""Scores that stay below a cap c: c tanh(s / c) (Gemma 2, arXiv 2408.00118, section 2)."""

import triton
import triton.language as tl

from relpos.gpu.pairs.softmax import LOG2E


@triton.jit
def capped(s, cap):
    """(c tanh(s / c), its slope). Near 0 the quotient of exponentials would lose what tanh is off
    1 by, hence its series there."""
    x = s / cap
    square = x * x
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    far = (1.0 - e) / (1.0 + e)
    series = 1.0 + square * (
        -1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0)))
    )
    tanh = tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0.0, -far, far))
    return cap * tanh, 4.0 * e / ((1.0 + e) * (1.0 + e))
