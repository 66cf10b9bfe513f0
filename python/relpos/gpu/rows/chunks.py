"""A call whose workspace would be large, as calls of some of its queries, one after the other."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from relpos.gpu.lower import Lowered
from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.projections import pull_back, room_for

MOST_BYTES = 2**30  # of the products and bands of a chunk, unless it is LEAST queries
LEAST, MANY = 64, 16


def chunk_of(lowered: Lowered, query: Tensor, key: Tensor) -> int:
    """How many queries are computed at a time: all where that takes no more than MOST_BYTES, else
    chunks of half of it, or of more where these would be more than MANY, since each has a dozen
    launches. What a plan says decides it."""
    batch, heads, queries, _ = query.shape
    rows, values = ([table.map for table in each] for each in (lowered.rows, lowered.values))
    cells = _width(lowered, rows) + 2 * _width(lowered, values)  # of a query and head
    if rows:  # bands have the distances of all sums
        biases = [term for term in lowered.terms if term.delta is None]
        others = (*biases, *lowered.computed.terms, *lowered.columns)
        cells += _width(lowered, [*rows, *(term.map for term in others)])
    apart = [lowered.window(each.map.lo, each.map.hi, each.delta) for each in lowered.rows_apart]
    cells += sum(2 * (hi - lo + 1) for lo, hi in apart)
    if apart or (lowered.places is not None and (cells or lowered.columns)):
        cells += key.shape[2]
    if not cells:
        return queries
    of_keys = 2 * _width(lowered, [table.map for table in lowered.columns]) * key.shape[2]
    most = max(MOST_BYTES, 4 * batch * heads * of_keys)  # as many as columns take in any case
    each = 4 * batch * heads * cells
    if each * queries <= most:
        return queries
    chunk = max(LEAST, min(most, max(most // 2, each * queries // MANY)) // each // LEAST * LEAST)
    chunks = -(-queries // chunk)
    return -(-queries // (chunks * LEAST)) * LEAST  # of one size


def _width(lowered: Lowered, maps: Sequence[ClassMap]) -> int:
    """How many distances the maps tell apart in the call."""
    if not maps:
        return 0
    lo, hi = lowered.window(min(each.lo for each in maps), max(each.hi for each in maps))
    return hi - lo + 1


def forward(
    run: Any, lowered: Lowered, inputs: Sequence[Tensor], results: Sequence[Tensor | None]
) -> None:
    """Writes out, softmax and lse where given, by run(lowered, query, key, value).forward."""
    query, key, value = inputs
    chunk = chunk_of(lowered, query, key)
    if chunk >= query.shape[2]:
        with _made(run, lowered, inputs) as whole:
            whole.forward(*results)
        return
    for part, first, count in _parts(lowered, query, chunk):
        to = [None if x is None else x.narrow(2, first, count) for x in results]
        found = [None if x is None else x.new_empty(x.shape) for x in to]
        with _made(run, part, (query.narrow(2, first, count), key, value)) as own:
            own.forward(*found)
        for all_, some in zip(to, found, strict=True):
            if all_ is not None and some is not None:
                all_.copy_(some)


def emit(
    run: Any,
    lowered: Lowered,
    inputs: Sequence[Tensor],
    softmax: Tensor | None,
    to: Tensor,
) -> None:
    """Writes `to` by run(lowered, query, key, value).emit."""
    query, key, value = inputs
    chunk = chunk_of(lowered, query, key)
    if chunk >= query.shape[2]:
        with _made(run, lowered, inputs) as whole:
            whole.emit(softmax, to)
        return
    for part, first, count in _parts(lowered, query, chunk):
        of_rows = None if softmax is None else softmax.narrow(2, first, count).contiguous()
        found = to.new_empty(to.narrow(2, first, count).shape)
        with _made(run, part, (query.narrow(2, first, count), key, value)) as own:
            own.emit(of_rows, found)
        to.narrow(2, first, count).copy_(found)


def backward(
    run: Any,
    lowered: Lowered,
    inputs: Sequence[Tensor],
    given: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> None:
    """The same of run.backward, from (out, softmax, dout, dlse)."""
    projections, tables = lowered.projections, lowered.whole[len(gradients) - 4 :]
    of_tables = room_for(projections, tables, gradients[4:])
    _backward(run, lowered, inputs, given, [*gradients, *of_tables])
    pull_back(projections, of_tables, gradients[4:])


def _backward(
    run: Any,
    lowered: Lowered,
    inputs: Sequence[Tensor],
    given: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> None:
    query, key, value = inputs
    chunk = chunk_of(lowered, query, key)
    if chunk >= query.shape[2]:
        with _made(run, lowered, inputs) as whole:
            whole.backward(*given, gradients)
        return
    of_parameters = map(lowered.query_axes.get, range(len(gradients) - 4))
    summed = Summed(gradients, [2, None, None, lowered.mask_axis, *of_parameters])
    for part, first, count in _parts(lowered, query, chunk):
        of_rows = [None if x is None else x.narrow(2, first, count).contiguous() for x in given]
        found = summed.chunk(first, count)
        with _made(run, part, (query.narrow(2, first, count), key, value)) as own:
            own.backward(*of_rows, found)
        summed.add(found, first, count)
    summed.finish()


@contextmanager
def _made(run: Any, lowered: Lowered, inputs: Sequence[Tensor]) -> Iterator[Any]:
    """run(lowered, *inputs), which lets go of its tensors at the end: what it consists of knows it,
    so that they would stay until Python looks for cycles."""
    made = run(lowered, *inputs)
    try:
        yield made
    finally:
        made.__dict__.clear()


def _parts(lowered: Lowered, query: Tensor, chunk: int) -> Iterator[tuple[Lowered, int, int]]:
    """(the call of a chunk of queries, the first of them, how many they are)."""
    queries = query.shape[2]
    for first in range(0, queries, chunk):
        count = min(chunk, queries - first)
        yield lowered.part(first, count), first, count


class Summed:
    """The gradients of a call, from those of its chunks: `axes` says of each which of its axes is
    that of queries, None where all chunks share it."""

    def __init__(self, gradients: Sequence[Tensor | None], axes: Sequence[int | None]) -> None:
        self._gradients, self._axes = gradients, axes
        self._totals = [
            None if to is None or axis is not None else torch.zeros_like(to, dtype=torch.float32)
            for to, axis in zip(gradients, axes, strict=True)
        ]

    def chunk(self, first: int, count: int) -> list[Tensor | None]:
        """Tensors for the gradients of a chunk."""
        found: list[Any] = []
        for to, axis, total in zip(self._gradients, self._axes, self._totals, strict=True):
            like = total if to is None or axis is None else to.narrow(axis, first, count)
            found.append(None if like is None else like.new_empty(like.shape))
        return found

    def add(self, found: Sequence[Tensor | None], first: int, count: int) -> None:
        for n, of_chunk in enumerate(found):
            to, axis, total = self._gradients[n], self._axes[n], self._totals[n]
            if of_chunk is None or to is None:
                continue
            if total is not None:
                total += of_chunk
            elif axis is not None:
                to.narrow(axis, first, count).copy_(of_chunk)

    def finish(self) -> None:
        for to, total in zip(self._gradients, self._totals, strict=True):
            if to is not None and total is not None:
                to.copy_(total)
