"""Rotations of a call: its queries and keys turned before the passes, and what comes back after
them."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.device import uploaded
from relpos.gpu.layout import padded, room_for
from relpos.gpu.lowered.turn_term import TurnTerm
from relpos.gpu.mode import INTERPRETS
from relpos.gpu.sums.targets import Targets
from relpos.gpu.terms.rotation import (
    Strided,
    Turn,
    fold_angles,
    sum_angles,
    turn_rows,
    write_turn_gradient,
    write_turns,
)

_ROWS, _TOKENS, _PARTS = 16, 8, 32  # of a program


class Rotations:
    """Of one call, as `run` launches it."""

    def __init__(self, run: Any, terms: Sequence[TurnTerm]) -> None:
        self.run, self.terms = run, terms
        self.pairs = tuple(max(1, triton.next_power_of_2(term.dims // 2)) for term in terms)
        turns = [self._turns(term) for term in terms]
        self.of_queries = tuple(queries for queries, _ in turns)
        self.of_keys = tuple(keys for _, keys in turns)

    def turned(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """R of both, rounded to their type."""
        found = []
        for x, turns in ((query, self.of_queries), (key, self.of_keys)):
            found.append(room_for(x) if turns and x.numel() else x)
            if found[-1] is not x:
                self._turn(x, found[-1], turns, inverse=False)
        return found

    def room(self, like: Tensor, wanted: Tensor | None) -> Tensor:
        """Where a pass writes the gradient of queries or keys [B, H, L, D]."""
        if self.terms:
            return self.run.workspace(*like.shape)
        return torch.empty_like(like, memory_format=_DENSE) if wanted is None else wanted

    def trains(self, targets: Targets) -> bool:
        """Whether gradients are wanted of what rows turn by."""
        numbers = (each for term in self.terms for each in term.numbers)
        return any(targets.wants(each.parameter) for each in numbers)

    def finish(
        self,
        of_queries: tuple[Tensor, Tensor | None, Tensor | None],
        of_keys: tuple[Tensor, Tensor | None, Tensor | None],
        targets: Targets,
    ) -> None:
        """Writes what is wanted, from (x, the gradient of R x, where that of x is wanted) of either
        side, with None where a pass did not run."""
        if not self.terms:
            return
        for (_, given, wanted), turns in ((of_queries, self.of_queries), (of_keys, self.of_keys)):
            if wanted is not None and wanted.numel():
                self._turn(given, wanted, turns, inverse=True)
        if not self.trains(targets):
            return
        q, dq, _ = of_queries
        k, dk, _ = of_keys
        for n, term in enumerate(self.terms):
            to = [
                targets.to(each.parameter) if targets.wants(each.parameter) else None
                for each in term.numbers
            ]
            if all(each is None for each in to):
                continue
            if term.by == "tables":
                self._of_tables(term, n, (q, dq), self.of_queries, to[:2])
                self._of_tables(term, n, (k, dk), self.of_keys, to[2:])
            else:
                self._of_frequencies(term, n, (q, dq), (k, dk), to[0])

    def _turn(self, x: Tensor, to: Tensor, turns: tuple[Turn, ...], inverse: bool) -> None:
        batch, heads, length, head_dim = x.shape
        self.run.launch(
            turn_rows,
            (batch * heads * triton.cdiv(length, _ROWS),),
            None,
            to=strided(to),
            x=strided(x),
            turns=turns,
            heads=heads,
            length=length,
            head_dim=head_dim,
            BM=_ROWS,
            BD=padded(head_dim),
            PAIRS=self.pairs,
            INVERSE=inverse,
            WIDEN=INTERPRETS,
        )

    def _turns(self, term: TurnTerm) -> tuple[Turn, Turn]:
        """What queries turn by, and what keys do."""
        if term.by == "tables":
            q_cos, q_sin, k_cos, k_sin = (
                strided(
                    by_head(each.view(self.run.parameter(each))), each.multiplier * term.magnitude
                )
                for each in term.numbers
            )
            tables = by_head(term.numbers[0].view(self.run.parameter(term.numbers[0]))).shape[1]
            return self._turn_of(term, q_cos, q_sin, tables, True), self._turn_of(
                term, k_cos, k_sin, tables, False
            )
        at_q, at_k = self._coordinates(term)
        queries = self._written(term, at_q)
        keys = queries if at_k is at_q else self._written(term, at_k)
        return (
            self._turn_of(term, *map(strided, queries), queries[0].shape[1], True),
            self._turn_of(term, *map(strided, keys), keys[0].shape[1], False),
        )

    def _turn_of(
        self, term: TurnTerm, cos: Strided, sin: Strided, tables: int, of_queries: bool
    ) -> Turn:
        heads = self.run.heads if of_queries else self.run.kv_heads
        pairs = term.dims // 2
        steps = (2, 1) if term.interleaved else (1, pairs)
        return Turn(cos, sin, heads // tables, term.start, *steps, pairs)

    def _coordinates(self, term: TurnTerm) -> tuple[Tensor, Tensor]:
        """int64 [.., axes, L, 1] of queries and of keys."""
        if term.by == "inputs":
            q, k = (each.view(self.run.parameter(each))[..., None] for each in term.numbers)
            return q, k
        if term.by == "coordinates":
            q = self._own(uploaded(term.q, self.run.device))
            same = term.k is term.q and q.shape == term.q.shape
            return q, q if same else uploaded(term.k, self.run.device)
        q, k = self.run.lowered.positions
        at = q[:, None, :, None]
        return at, at if k is q else k[:, None, :, None]

    def _own(self, coordinates: Tensor) -> Tensor:
        """Those of the queries, of coordinates [.., axes, Lq, 1] of all queries of the call."""
        return coordinates.narrow(2, self.run.lowered.first, self.run.queries)

    def _written(self, term: TurnTerm, at: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [.., tables, L, pairs] of tokens at coordinates [.., axes, L, 1]."""
        trained = term.by == "coordinates" and term.numbers
        if trained:
            frequency = term.numbers[0].view(self.run.parameter(term.numbers[0]))[None]
        else:
            frequency = uploaded(term.frequency, self.run.device)
        rows, axes, length, _ = at.shape
        tables, pairs = frequency.shape[2:]
        cos, sin = (self.run.workspace(rows, tables, length, pairs) for _ in range(2))
        if not cos.numel():
            return cos, sin
        self.run.launch(
            write_turns,
            (triton.cdiv(rows * length, _TOKENS), tables),
            None,
            cos=cos,
            sin=sin,
            at=strided(at),
            frequency=strided(frequency),
            factors=uploaded(term.factors, self.run.device),
            axes=axes,
            length=length,
            tokens=rows * length,
            tables=tables,
            pairs=pairs,
            BLOCK=_TOKENS,
            PAIRS=triton.next_power_of_2(pairs),
            FLOAT32=term.float32_angles,
        )
        return cos, sin

    def _of_tables(
        self,
        term: TurnTerm,
        n: int,
        rows: tuple[Tensor, Tensor],
        turns: tuple[Turn, ...],
        wanted: Sequence[Tensor | None],
    ) -> None:
        """Gradients of given cosines and sines of queries, or of keys."""
        x, dy = rows
        batch, heads, length, _ = x.shape
        if not length or all(each is None for each in wanted):
            return
        of_queries = turns is self.of_queries
        numbers = term.numbers[:2] if of_queries else term.numbers[2:]
        to = [
            None
            if each is None
            else strided(by_head(own.view(each)), own.multiplier * term.magnitude)
            for own, each in zip(numbers, wanted, strict=True)
        ]
        shared = turns[n].share
        self.run.launch(
            write_turn_gradient,
            (batch * (heads // shared) * triton.cdiv(length, _ROWS),),
            None,
            of_cos=to[0],
            of_sin=to[1],
            x=strided(x),
            dy=strided(dy),
            turn=turns[n],
            heads=heads,
            length=length,
            shared=shared,
            BM=_ROWS,
            PAIRS=self.pairs[n],
            WIDEN=INTERPRETS,
        )

    def _of_frequencies(
        self,
        term: TurnTerm,
        n: int,
        of_queries: tuple[Tensor, Tensor],
        of_keys: tuple[Tensor, Tensor],
        wanted: Tensor,
    ) -> None:
        """The gradient of trained frequencies."""
        numbers, device = term.numbers[0], self.run.device
        to = numbers.view(wanted)[None]
        _, axes, tables, pairs = to.shape
        sides = (
            (*of_queries, self.of_queries[n], self._own(uploaded(term.q_near, device))),
            (*of_keys, self.of_keys[n], uploaded(term.k_near, device)),
        )
        counts = [x.shape[0] * triton.cdiv(x.shape[2], _ROWS) for x, *_ in sides]
        parts = self.run.workspace(sum(counts), tables, axes, pairs, dtype=torch.float64)
        for (x, dy, turn, near), count, part in zip(sides, counts, (0, counts[0]), strict=True):
            if not count:
                continue
            self.run.launch(
                sum_angles,
                (count, tables),
                None,
                parts=parts,
                x=strided(x),
                dy=strided(dy),
                turn=turn,
                at=strided(near),
                part=part,
                heads=x.shape[1],
                length=x.shape[2],
                shared=x.shape[1] // tables,
                axes=axes,
                BM=_ROWS,
                PAIRS=self.pairs[n],
            )
        self.run.launch(
            fold_angles,
            (axes, tables),
            None,
            gradient=strided(to, numbers.multiplier),
            parts=parts,
            count=sum(counts),
            tables=tables,
            axes=axes,
            pairs=pairs,
            BLOCK=_PARTS,
            PAIRS=self.pairs[n],
            WIDEN=INTERPRETS,
        )


def strided(x: Tensor, multiplier: float = 1.0) -> Strided:
    """Of a tensor [B, H, L, N]; an axis of size 1 is one that all share."""
    strides = (stride if size > 1 else 0 for size, stride in zip(x.shape, x.stride(), strict=True))
    return Strided(x, *strides, multiplier)


def by_head(table: Tensor) -> Tensor:
    """[B, L, N] with an axis of heads, of size 1."""
    return table if table.dim() == 4 else table[:, None]


_DENSE = torch.contiguous_format
