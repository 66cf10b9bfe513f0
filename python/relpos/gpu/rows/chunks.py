"""A call whose workspace would be large, as calls of some of its queries, one after the other."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos.gpu.lower import Lowered
from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.projections import new_gradients, pull_back

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
    for own, first, count in _runs(run, lowered, inputs):
        found = [_room(x, first, count) for x in results]
        own.forward(*found)
        for to, of_rows in zip(results, found, strict=True):
            _write(to, of_rows, first, count)
        del found, of_rows  # while the next run is made


def emit(
    run: Any,
    lowered: Lowered,
    inputs: Sequence[Tensor],
    softmax: Tensor | None,
    to: Tensor,
) -> None:
    """Writes `to` by run(lowered, query, key, value).emit."""
    for own, first, count in _runs(run, lowered, inputs):
        found = _room(to, first, count)
        own.emit(_rows(softmax, first, count), found)
        _write(to, found, first, count)
        del found


def backward(
    run: Any,
    lowered: Lowered,
    inputs: Sequence[Tensor],
    given: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> None:
    """The same of run.backward, from (out, softmax, dout, dlse)."""
    of_parameters = gradients[4:]
    projections, tables = lowered.projections, lowered.parameters[len(of_parameters) :]
    of_tables = new_gradients(projections, tables, of_parameters)
    all_ = [*gradients, *of_tables]
    axes = [2, None, None, lowered.mask_axis]
    axes += map(lowered.query_axes.get, range(len(all_) - len(axes)))
    summed = Summed(all_, axes, inputs[0].shape[2])
    for own, first, count in _runs(run, lowered, inputs):
        found = summed.chunk(first, count)
        own.backward(*(_rows(x, first, count) for x in given), found)
        summed.add(found, first, count)
        del found
    summed.finish()
    pull_back(projections, of_tables, of_parameters)


def _runs(run: Any, lowered: Lowered, inputs: Sequence[Tensor]) -> Iterator[tuple[Any, int, int]]:
    """(run(lowered, *inputs), the first of its queries, how many they are), of the whole call or of
    one chunk after the other. What a run consists of knows it, so that its tensors would stay until
    Python looks for cycles: it lets go of them here."""
    query, *others = inputs
    queries, chunk = query.shape[2], chunk_of(lowered, *inputs[:2])
    for first in range(0, queries, chunk):
        count = min(chunk, queries - first)
        part = lowered if count == queries else lowered.part(first, count)
        made = run(part, query.narrow(2, first, count), *others)
        try:
            yield made, first, count
        finally:
            made.__dict__.clear()


def _rows(x: Tensor | None, first: int, count: int) -> Tensor | None:
    """Those queries of x, contiguous; all of them as they are."""
    if x is None or x.shape[2] == count:
        return x
    return x.narrow(2, first, count).contiguous()


def _room(x: Tensor | None, first: int, count: int) -> Any:
    """For what is written of those queries: x itself for all of them."""
    if x is None or x.shape[2] == count:
        return x
    return x.new_empty(x.narrow(2, first, count).shape)


def _write(to: Tensor | None, of_rows: Tensor | None, first: int, count: int) -> None:
    if to is not None and of_rows is not None and of_rows is not to:
        to.narrow(2, first, count).copy_(of_rows)


class Summed:
    """The gradients of a call of so many queries, from those of its runs: `axes` says of each which
    of its axes is that of queries, None where all runs share it."""

    def __init__(
        self, gradients: Sequence[Tensor | None], axes: Sequence[int | None], queries: int
    ) -> None:
        self._gradients, self._axes, self._queries = gradients, axes, queries
        self._totals: list[Tensor | None] = [None] * len(gradients)

    def chunk(self, first: int, count: int) -> list[Tensor | None]:
        """Tensors for the gradients of some queries: those of the call for all of them."""
        if count == self._queries:
            return list(self._gradients)
        found: list[Any] = []
        for n, (to, axis) in enumerate(zip(self._gradients, self._axes, strict=True)):
            if to is None:
                found.append(None)
            elif axis is None:
                if self._totals[n] is None:
                    self._totals[n] = torch.zeros_like(to, dtype=torch.float32)
                found.append(to.new_empty(to.shape, dtype=torch.float32))
            else:
                found.append(to.new_empty(to.narrow(axis, first, count).shape))
        return found

    def add(self, found: Sequence[Tensor | None], first: int, count: int) -> None:
        for n, of_chunk in enumerate(found):
            to, axis, total = self._gradients[n], self._axes[n], self._totals[n]
            if of_chunk is None or to is None or of_chunk is to:
                continue
            if total is not None:
                total += of_chunk
            elif axis is not None:
                to.narrow(axis, first, count).copy_(of_chunk)

    def finish(self) -> None:
        for to, total in zip(self._gradients, self._totals, strict=True):
            if to is not None and total is not None:
                to.copy_(total)
