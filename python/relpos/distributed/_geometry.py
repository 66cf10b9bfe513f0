"""Where the queries and keys of each rank stand, and which ranks see which."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from relpos._position.operators import place_tokens
from relpos.distributed._layout import Run

FAR = 2**61
HALVED_FROM = 128  # keys: a half is at least a tile of the kernels


@dataclass
class Side:
    """The queries, or the keys, of all ranks."""

    runs: list[list[Run]]  # of each rank
    offset: int | Tensor = 0  # position of token 0, an int or int64 [B]
    given: Tensor | None = None  # this rank's positions, said by the caller
    make: Callable[[Tensor], Tensor] | None = None  # positions of tokens, where not token + offset
    _bounds: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict, init=False)

    @property
    def explicit(self) -> bool:
        return self.given is not None or self.make is not None

    @property
    def total(self) -> int:
        return sum(run.count for runs in self.runs for run in runs)

    def place(self, rank: int, n: int) -> slice:
        """Run n of a rank within its shard."""
        before = sum(run.count for run in self.runs[rank][:n])
        return slice(before, before + self.runs[rank][n].count)

    def own(self, rank: int, n: int) -> Tensor:
        """Positions of a run of this rank, int64 [L] or [B, L]."""
        if self.given is not None:
            return self.given[..., self.place(rank, n)]
        return self.positions(rank, n)

    def positions(self, rank: int, n: int) -> Tensor:
        """Of the tokens of a run, where the caller said none."""
        make = self.make or placing("", False, self.offset)
        return make(self.runs[rank][n].tokens())

    def bounds(self, rank: int, n: int) -> tuple[int, int]:
        """Least and largest position of a run, none of which the caller said."""
        if (rank, n) not in self._bounds:
            run = self.runs[rank][n]
            if self.make is None:
                least, most = min(run.start, run.last), max(run.start, run.last)
                offset = self.offset
                low, high = offset.aminmax() if isinstance(offset, Tensor) else (offset, offset)
            else:  # in any order
                low = high = 0
                least, most = self.make(run.tokens()).flatten().aminmax()
            self._bounds[rank, n] = (int(least) + int(low), int(most) + int(high))
        return self._bounds[rank, n]


def placing(text: str, keys: bool, offset: int | Tensor) -> Callable[[Tensor], Tensor]:
    """Positions of queries, or of keys, by number, where a position may place them elsewhere."""
    at = offset[:, None] if isinstance(offset, Tensor) else offset
    if not text:
        return lambda tokens: tokens + at
    return lambda tokens: place_tokens(text, keys, tokens + at)


@dataclass
class Geometry:
    """Which (query run, key run) of which ranks meet."""

    rank: int
    q: Side
    k: Side
    left: int | None = None  # -left <= pos_k - pos_q <= right; None: no bound
    right: int | None = None
    lo: Tensor | None = None  # key_range of this rank's queries, in tokens
    hi: Tensor | None = None
    starts_k: Tensor | None = None  # where packed sequences of keys start, then how many there are
    # Of run n of a rank, where own_spans said them.
    q_spans: dict[tuple[int, int], Sequence[int]] = field(default_factory=dict)
    k_spans: dict[tuple[int, int], Sequence[int]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.q.runs)

    def own_spans(self) -> list[int]:
        """Of each run of this rank: least and largest position of queries, least lo and largest hi,
        least and largest position of keys. For spans of the other ranks."""
        found = []
        for n in range(2):
            found += self._queries(n) if n < len(self.q.runs[self.rank]) else [0] * 4
            found += self._keys(n) if n < len(self.k.runs[self.rank]) else [0] * 2
        return found

    def _queries(self, n: int) -> list[int]:
        if self.q.runs[self.rank][n].count == 0:
            return [0, 0, 0, 0]
        at = self.q.place(self.rank, n)
        low, high = _ends(self.q, self.rank, n)
        if self.lo is None or self.hi is None:
            return [low, high, -FAR, FAR]
        return [low, high, int(self.lo[..., at].min()), int(self.hi[..., at].max())]

    def _keys(self, n: int) -> list[int]:
        if self.k.runs[self.rank][n].count == 0:
            return [0, 0]
        return list(_ends(self.k, self.rank, n))

    def learn(self, spans: Sequence[Sequence[int]]) -> None:
        """own_spans() of every rank."""
        for rank, row in enumerate(spans):
            for n in range(2):
                self.q_spans[rank, n] = row[6 * n : 6 * n + 4]
                self.k_spans[rank, n] = row[6 * n + 4 : 6 * n + 6]

    def with_halved_keys(self) -> "Geometry":
        """The same call with two runs for each long run of keys. Gradients are computed and sent by
        runs, of which a rank holds three at a time. For both passes: in the backward pass scores
        must round as they did for the lse of the forward pass. A half has the span of its run."""
        cut = [
            [(n, part) for n, run in enumerate(runs) for part in _parts(run)]
            for runs in self.k.runs
        ]
        spans = {
            (rank, m): self.k_spans[rank, n]
            for rank, parts in enumerate(cut)
            for m, (n, _) in enumerate(parts)
            if self.k_spans
        }
        runs = [[part for _, part in parts] for parts in cut]
        return replace(self, k=replace(self.k, runs=runs), k_spans=spans)

    def meet(self, rank: int, i: int, other: int, j: int) -> bool:
        """Whether a query of run i of a rank may see a key of run j of another."""
        q, k = self.q.runs[rank][i], self.k.runs[other][j]
        if q.count == 0 or k.count == 0:
            return False
        if self.q_spans:
            low, high, lo, hi = self.q_spans[rank, i]
            first, last = self.k_spans[other, j]
        else:
            (low, high), lo, hi = self.q.bounds(rank, i), -FAR, FAR
            first, last = self.k.bounds(other, j)
        if self.right is not None and first - high > self.right:
            return False
        if self.left is not None and last - low < -self.left:
            return False
        return max(lo, k.start) < min(hi, k.last + 1)

    def length(self) -> int:
        """One more than the last position of all ranks; 0 where there is none."""
        last = -1
        for side, spans in ((self.q, self.q_spans), (self.k, self.k_spans)):
            for rank, runs in enumerate(side.runs):
                for n, run in enumerate(runs):
                    if run.count and spans:
                        last = max(last, spans[rank, n][1])
                    elif run.count:
                        last = max(last, _ends(side, rank, n)[1])
        return last + 1

    def needs(self, rank: int, other: int) -> bool:
        """Whether queries of a rank see keys of another."""
        return any(self.seeing(rank, other, j) for j in range(len(self.k.runs[other])))

    def seeing(self, rank: int, other: int, j: int) -> list[int]:
        """The runs of a rank's queries that see keys of run j of another; none where it has no
        run j."""
        if j >= len(self.k.runs[other]):
            return []
        return [i for i in range(len(self.q.runs[rank])) if self.meet(rank, i, other, j)]


def _parts(run: Run) -> tuple[Run, ...]:
    return run.halves() if run.count >= HALVED_FROM else (run,)


def _ends(side: Side, rank: int, n: int) -> tuple[int, int]:
    if side.given is None:
        return side.bounds(rank, n)
    least, most = side.given[..., side.place(rank, n)].aminmax()
    return int(least), int(most)


def within(bound: Tensor, run: Run) -> Tensor:
    """A bound in tokens as one among the keys of a run."""
    steps = torch.div(bound - run.start + run.step - 1, run.step, rounding_mode="floor")
    return steps.clamp(0, run.count)
