"""Sinks: numbers that join the softmax of a row beside its scores, without a value (Agarwal et al.:
gpt-oss, arXiv 2508.10925; Xiao et al., arXiv 2309.17453)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from relpos.gpu.pairs.product import stored
from relpos.gpu.pairs.softmax import read_state


class Sink(NamedTuple):
    """data, and the elements between two batch rows, heads and queries, 0 where they share
    theirs; multiplier: in log2 units."""

    data: Any
    batch: Any
    head: Any
    query: Any
    multiplier: Any


@triton.jit
def read_sink(sink, b, h, i, queries):
    """float32 of queries i, in log2 units."""
    of_head = sink.data + tl.cast(b, tl.int64) * sink.batch + tl.cast(h, tl.int64) * sink.head
    found = tl.load(of_head + tl.cast(i, tl.int64) * sink.query, i < queries, 0.0)
    return found.to(tl.float32) * sink.multiplier


@triton.jit
def join_sinks(problem, head, b, h, i, queries, reference, total, COUNT: tl.constexpr):
    """(reference, sum) of the softmax with the sinks of queries i; head: of all batch rows."""
    for n in tl.static_range(COUNT):
        s = read_sink(problem.sinks[n], b, h, i, queries)
        if problem.row_shift is not None:
            of_head = problem.row_shift + tl.cast(head, tl.int64) * queries
            s -= tl.load(of_head + i, i < queries, 0.0)
        after = tl.maximum(reference, tl.ceil(s))
        base = tl.where(after == float("-inf"), 0.0, after)
        total = total * tl.exp2(reference - base) + tl.exp2(s - base)
        reference = after
    return reference, total


@triton.jit(do_not_specialize=["batch", "heads", "queries"])
def sink_gradient(
    gradient,
    sink,
    softmax,
    sums,
    shift,
    multiplier,
    batch,
    heads,
    queries,
    BLOCK: tl.constexpr,
    OF_ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """gradient: a Sink. Of one [H] a program for each head, else (OF_ROWS) for each batch row and
    head."""
    h = tl.program_id(0) % heads
    b = tl.program_id(0) // heads
    acc = tl.zeros((BLOCK,), tl.float64)
    for n in range(1 if OF_ROWS else batch):
        row = (tl.cast(b + n, tl.int64) * heads + h) * queries
        for first in range(0, queries, BLOCK):
            i = first + tl.arange(0, BLOCK)
            reference, inverse = read_state(softmax, row + first, i - first, queries - first)
            s = read_sink(sink, b + n, h, i, queries)
            if shift is not None:
                s -= tl.load(shift + row + i, i < queries, 0.0)
            weight = tl.exp2(s - reference) * inverse
            total = tl.load(sums + row + i, i < queries, 0.0)
            found = tl.where(i < queries, -weight * total, 0.0)
            if OF_ROWS:
                to = gradient.data + tl.cast(b, tl.int64) * gradient.batch
                to += tl.cast(h, tl.int64) * gradient.head + tl.cast(i, tl.int64) * gradient.query
                found = stored(found * multiplier, gradient.data.dtype.element_ty, WIDEN)
                tl.store(to, found, i < queries)
            else:
                acc += found
    if not OF_ROWS:
        found = (tl.sum(acc, 0) * multiplier).to(tl.float32)
        to = gradient.data + h * gradient.head
        tl.store(to, stored(found, gradient.data.dtype.element_ty, WIDEN))
