"""One softmax over keys and values that lie on many ranks: blocks travel, results are merged."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from relpos.distributed._exchange import Transfer, explained
from relpos.distributed._pieces import Pieces, join, wide_dtype

_TAGS = 16  # of the tensors of a block; those of the gradients of run j begin at (1 + j) * _TAGS


class Ring:
    """A call on its way round. At step s a rank computes with the block of the rank s before it,
    while it sends its own to the rank s + 1 after it; `ahead` blocks are under way at a time."""

    def __init__(
        self, pieces: Pieces, group: Any, ahead: int, summed_by: Sequence[Any], own: set[int]
    ) -> None:
        """summed_by: the groups over which gradients of the position's parameters are added up;
        those of `own` are where these are made."""
        self.pieces, self.group, self.ahead = pieces, group, ahead
        self.summed_by, self.own = summed_by, own
        self.rank, self.ranks = pieces.geometry.rank, pieces.geometry.ranks
        self.needs = pieces.geometry.needs

    def source(self, step: int) -> int:
        return (self.rank - step) % self.ranks

    def target(self, step: int) -> int:
        return (self.rank + step) % self.ranks

    def steps(self, own: list[Tensor]) -> Iterator[tuple[int, list[Tensor] | None]]:
        """(step, block of its source), None where no query of this rank sees it."""
        under_way = [self._exchange(own, n + 1) for n in range(min(self.ahead, self.ranks - 1))]
        yield 0, own if self.needs(self.rank, self.rank) else None
        for step in range(1, self.ranks):
            transfer, block = under_way.pop(0)
            transfer.wait()
            if step + self.ahead < self.ranks:
                under_way.append(self._exchange(own, step + self.ahead))
            yield step, block
            block = None  # its memory serves the next but one

    def _exchange(self, own: list[Tensor], step: int) -> tuple[Transfer, list[Tensor] | None]:
        source, target = self.source(step), self.target(step)
        transfer, block = Transfer(self.group), None
        if self.needs(self.rank, source):
            block = self.pieces.empty_block(own, source)
            transfer.receive(block, source)
        if self.needs(target, self.rank):
            transfer.send(own, target)
        return transfer.start(), block

    def forward(self, query: Tensor, own: list[Tensor]) -> tuple[Tensor, Tensor]:
        """(out, lse), lse in double."""
        shape = (*query.shape[:3], own[1].shape[3])
        out = query.new_zeros(shape, dtype=wide_dtype(query))
        lse = query.new_full(query.shape[:3], -torch.inf, dtype=torch.float64)
        of_queries = self.pieces.of_queries
        for i in self._runs_with_sinks():
            piece = self.pieces.forward(of_queries(query, i), *self.pieces.of_sinks(i, own))
            join(of_queries(out, i), of_queries(lse, i), *piece)
        for step, block in self.steps(own):
            source = self.source(step)
            for i, j in self._pairs(source):
                run = self.pieces.of_keys(block, source, j)
                call = self.pieces.call_of(i, source, j, run)
                piece = self.pieces.forward(of_queries(query, i), run, call)
                join(of_queries(out, i), of_queries(lse, i), *piece)
            del block
        return out, lse

    def _runs_with_sinks(self) -> range:
        """Sinks join the softmax once, apart from all keys."""
        runs = self.pieces.geometry.q.runs[self.rank]
        return range(len(runs) if self.pieces.inputs.sinks else 0)

    def _pairs(self, source: int) -> list[tuple[int, int]]:
        """(run of this rank's queries, run of a rank's keys) that meet."""
        geometry = self.pieces.geometry
        runs = range(len(geometry.k.runs[source]))
        return [(i, j) for j in runs for i in geometry.seeing(self.rank, source, j)]

    def backward(self, rows: list[Any], own: list[Tensor], needs: list[bool]) -> "Sums":
        """rows: query, out, lse, dout, dlse. needs: of query, key, value and the position's
        tensors."""
        sums = Sums(self.pieces, rows[0], own, needs)
        for i in self._runs_with_sinks() if any(needs[3:]) else ():
            run, call = self.pieces.of_sinks(i, own)
            queries = [None if t is None else self.pieces.of_queries(t, i) for t in rows]
            position = [False] * 3 + needs[3:]
            sums.add_position(self.pieces.backward(queries, run, call, position, ()), i)
        returning = None
        for step, block in self.steps(own):
            for j in range(max(len(runs) for runs in self.pieces.geometry.k.runs)):
                gradients = self._backward_run(rows, block, (step, j), sums)
                if returning is not None:
                    self._arrive(*returning)
                returning = self._return(gradients, sums, (step, j)) if step else None
                del gradients
            del block
        if returning is not None:
            self._arrive(*returning)
        if self.summed_by:
            self._reduce(sums)
        return sums

    def _backward_run(
        self, rows: list[Any], block: Any, at: tuple[int, int], sums: "Sums"
    ) -> list[Tensor | None] | None:
        """Gradients of run j of the block of a step, None where no query of this rank sees it;
        those of the own block are in `sums`."""
        step, j = at
        source = self.source(step)
        seeing = self.pieces.geometry.seeing(self.rank, source, j)
        if not seeing:
            return None
        run = self.pieces.of_keys(block, source, j)
        gradients = sums.of_own_run(j) if step == 0 else sums.zeros(run)
        for n, i in enumerate(seeing):
            call = self.pieces.call_of(i, source, j, run)
            queries = [None if t is None else self.pieces.of_queries(t, i) for t in rows]
            places = sums.places(gradients, i, first=n == 0)
            found = self.pieces.backward(queries, run, call, sums.needs, places)
            sums.add(found, places, gradients, i)
        return gradients

    def _return(
        self, gradients: list[Tensor | None] | None, sums: "Sums", at: tuple[int, int]
    ) -> Any:
        """Sends the gradients of run j of a block to its rank, and receives those of this rank's
        own run j: (the transfer, where they are added, what arrives)."""
        step, j = at
        transfer = Transfer(self.group, (1 + j) * _TAGS)
        own: list[Tensor | None] = []
        if self.pieces.geometry.seeing(self.target(step), self.rank, j):
            own = sums.of_own_run(j)
        arriving = [None if t is None else t.new_empty(t.shape) for t in own]
        transfer.receive([t for t in arriving if t is not None], self.target(step))
        if gradients is not None:
            transfer.send([t for t in gradients if t is not None], self.source(step))
        return transfer.start(), own, arriving

    def _arrive(self, transfer: Transfer, own: list[Any], arriving: list[Any]) -> None:
        transfer.wait()
        for to, what in zip(own, arriving, strict=True):
            if to is not None:
                to += what

    def _reduce(self, sums: "Sums") -> None:
        """Sums the gradients of the position's parameters over the ranks."""
        trained = [
            n
            for n in self.pieces.inputs.trained()
            if sums.position[n] is not None and n not in self.own
        ]
        if not trained:
            return
        flat = torch.cat([sums.position[n].flatten() for n in trained])
        for group in self.summed_by:
            with explained("adding up the gradients of the position"):
                dist.all_reduce(flat, group=group)
        parts = flat.split([sums.position[n].numel() for n in trained])
        for n, part in zip(trained, parts, strict=True):
            sums.position[n] = part.view_as(sums.position[n])


class Sums:
    """Gradients as they are added up: of the query, of this rank's block, of the position."""

    def __init__(self, pieces: Pieces, query: Tensor, own: list[Tensor], needs: list[bool]) -> None:
        self.pieces, self.needs = pieces, needs
        self.query = torch.zeros_like(query, dtype=wide_dtype(query)) if needs[0] else None
        self.block = self.zeros(own)
        self.written: set[int] = set()  # runs of queries
        inputs = pieces.inputs
        self.position: list[Any] = [
            torch.zeros_like(t, dtype=torch.float64, memory_format=torch.contiguous_format)
            if need and n not in inputs.key_axis
            else None
            for n, (t, need) in enumerate(zip(inputs.tensors, needs[3:], strict=True))
        ]

    def zeros(self, keys: list[Tensor]) -> list[Tensor | None]:
        """For the gradients of the tensors of a block, or of a run of it; None where not needed."""
        keyed = list(self.pieces.inputs.key_axis)
        needs = [*self.needs[1:3], *(self.needs[3 + n] for n in keyed)]
        return [
            t.new_zeros(t.shape, dtype=wide_dtype(t)) if need else None
            for t, need in zip(keys, needs, strict=False)
        ]

    def of_own_run(self, j: int) -> list[Tensor | None]:
        return self.pieces.of_keys(self.block, self.pieces.geometry.rank, j)

    def places(self, run: list[Tensor | None], i: int, *, first: bool) -> list[Tensor | None]:
        """Where gradients of query, key and value may be written, since nothing is there yet.
        first: nothing has been added to those of the run of keys."""
        query = None if i in self.written else self._of_queries(i)
        return [query, *(run[:2] if first else [None, None])]

    def _of_queries(self, i: int) -> Tensor | None:
        return None if self.query is None else self.pieces.of_queries(self.query, i)

    def add(self, found: list[Any], places: list[Any], run: list[Tensor | None], i: int) -> None:
        """What was not written to its place."""
        keyed = list(self.pieces.inputs.key_axis)
        parts = [self._of_queries(i), *run]
        of_parts = [*found[:3], *(found[3 + n] for n in keyed)]
        for to, what, place in zip(parts, of_parts, [*places, *[None] * len(keyed)], strict=True):
            if to is not None and what is not place:
                to.add_(what)
        self.written.add(i)
        self.add_position(found, i)

    def add_position(self, found: list[Any], i: int) -> None:
        """Gradients of the position's tensors from run i of the queries."""
        for n, to in enumerate(self.position):
            if to is not None:
                axis = self.pieces.inputs.query_axis.get(n)
                (to if axis is None else self.pieces.of_queries(to, i, axis)).add_(found[3 + n])


class RingAttention(torch.autograd.Function):
    """(out, lse) of (query, key, value, ring, padding, *tensors of the position)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring, padding: Any, *tensors: Any
    ) -> tuple[Tensor, Tensor]:
        out, lse = ring.forward(query, ring.pieces.block(key, value, padding))
        out = out.to(query.dtype)
        ctx.ring = ring
        ctx.save_for_backward(query, key, value, out, lse, padding, *tensors)
        ctx.set_materialize_grads(False)
        return out, lse.to(wide_dtype(query))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        query, key, value, out, lse, padding, *tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        needs = [*wanted[:3], *wanted[5:]]
        dout = torch.zeros_like(out) if dout is None else dout
        own = ctx.ring.pieces.block(key, value, padding)
        sums = ctx.ring.backward([query, out, lse, dout, dlse], own, needs)
        position = list(sums.position)
        for at, n in enumerate(ctx.ring.pieces.inputs.key_axis):
            position[n] = sums.block[2 + at]
        found = [sums.query, *sums.block[:2], *position]
        given = [query, key, value, *tensors]
        cast = [None if g is None else g.to(t.dtype) for g, t in zip(found, given, strict=True)]
        return *cast[:3], None, None, *cast[3:]
