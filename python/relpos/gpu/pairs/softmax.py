"""The softmax of a row as two numbers, an integer reference and a sum, of scores in log2 units:

    weight = exp2(score - reference) / sum

One log-sum-exp would round away what its size takes (src/kernels/block/softmax_state.h).
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def add_scores(s, unit, offset, reference, total):
    """(unnormalised weights, factor of what was summed before, reference, sum) after scores s [BM,
    BN] times unit > 0, and offset more, a number or [BM, 1]; -inf where hidden. The factor is a
    power of two, since references are integers."""
    most = tl.max(tl.max(s, 1)[:, None] * unit + offset, 1)
    after = tl.maximum(reference, tl.ceil(most))
    base = tl.where(after == float("-inf"), 0.0, after)
    factor = tl.exp2(reference - base)
    p = tl.exp2(s * unit - (base[:, None] - offset))
    return p, factor, after, total * factor + tl.sum(p, 1)


@triton.jit
def write_state(softmax, lse, shift, row, a, count, reference, total):
    """Writes both numbers of rows `row` + a, a < count, and their log-sum-exp where it is wanted,
    with what the row is less by, if anything. Of a row that sees nothing they are -inf and inf, by
    which its weights are 0, and -inf."""
    nothing = total == 0.0
    if softmax is not None:
        tl.store(softmax + 2 * (row + a), reference, a < count)
        tl.store(softmax + 2 * (row + a) + 1, tl.where(nothing, float("inf"), total), a < count)
    if lse is not None:
        found = reference + tl.log2(tl.where(nothing, 1.0, total))
        if shift is not None:
            found += tl.load(shift + row + a, a < count, 0.0)
        tl.store(lse + row + a, found * LN2, a < count)


@triton.jit
def read_state(softmax, row, a, count):
    """(reference, 1 / sum) of rows `row` + a; of those beyond `count`, and of those whose scores
    are all -inf, all weights are 0; of the latter 1 / sum is, too."""
    at = softmax + 2 * (row + a)
    reference = tl.load(at, a < count, float("inf"))
    reference = tl.where(reference == float("-inf"), 0.0, reference)
    return reference, 1.0 / tl.load(at + 1, a < count, 1.0)
