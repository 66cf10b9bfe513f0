"""The positions of which a score_mod's biases become a part."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import wrong_type
from relpos._flex.classes import classes_of
from relpos._flex.pieces import Pieces, over, total
from relpos._flex.plan import DISTANCE, KEY, PAIR, Piece, Plan
from relpos._flex.score import Unfit
from relpos._flex.sources import B, H
from relpos._position.kept import Kept
from relpos._position.own import Position
from relpos._position.pairs import PairBias, PairClasses
from relpos._position.part import grid_of
from relpos._position.sum import Composed, Steps
from relpos._position.terms import KeyBias


def _eager(method: Any) -> Any:
    """A method that runs a function of pairs, which Dynamo cannot trace."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)
        return method(*args, **kwargs)

    return run


class Lowering:
    """A score_mod and what was found out about it."""

    def __init__(self, score_mod: Any, heads: int, dtype: torch.dtype, plan: Plan) -> None:
        self.score_mod, self.heads, self.dtype, self.plan = score_mod, heads, dtype, plan

    def at(self, kind: str, hides: Sequence[int], b: int, *index: Tensor, paired: bool) -> Tensor:
        """The sum of the pieces of one kind, -inf where hidden, [b or 1, H or 1, ...]: an axis of 1
        where nothing depends on the batch row or the head."""
        return self.sum(self.plan.of(kind), hides, b, *index, paired=paired, kind=kind)

    @_eager
    def sum(
        self,
        chosen: Sequence[Piece],
        hides: Sequence[int],
        b: int,
        q_idx: Tensor,
        kv_idx: Tensor,
        *,
        paired: bool,
        kind: str = PAIR,
    ) -> Tensor:
        """The same for some pieces."""
        sources = self.plan.sources(chosen, hides)
        function = self._total(chosen, self.plan.constant if kind == DISTANCE else 0.0, hides)
        rows = torch.arange(b if B in sources else 1, device=q_idx.device)
        return over(function, rows, self._heads(sources, q_idx), q_idx, kv_idx, paired=paired)

    @_eager
    def by_class(
        self, codes: Sequence[int], chosen: Sequence[Piece], batch: int, queries: int, keys: int
    ) -> PairBias | None:
        """The sum of some pieces that are functions of these codes; None: there are too many."""
        sources = self.plan.sources(chosen)
        rows = torch.arange(batch if B in sources else 1)
        kv_idx, zero = torch.arange(keys), torch.zeros((), dtype=torch.int64)
        pieces = Pieces(self.score_mod, self.dtype, notes=True)

        def one(*index: Tensor) -> tuple[Tensor, ...]:
            found = pieces(*index)
            pieces.check(self.plan.structure, self.plan.noted)
            return tuple(found[place] for place in codes)

        with torch.no_grad():
            found = classes_of(
                lambda q_idx: over(one, rows, zero, q_idx, kv_idx), len(rows), queries, keys
            )
        if found is None:
            return None
        function, at = self._total(chosen), found.at
        number = torch.arange(len(at[0]))
        table = over(
            lambda _, h, n, __: function(at[0][n], h, at[1][n], at[2][n]),
            zero,
            self._heads(sources, zero),
            number,
            number,
            paired=True,
        )
        return PairBias(table, PairClasses(found.bytes if len(rows) > 1 else found.bytes[0]))

    def _total(
        self,
        chosen: Sequence[Piece],
        constant: float = 0.0,
        hides: Sequence[int] = (),
        notes: bool = False,
    ) -> Any:
        plan = self.plan
        notes = notes or any(piece.place >= plan.count for piece in chosen)
        return total(
            Pieces(self.score_mod, self.dtype, notes),
            plan.structure,
            plan.noted,
            [(piece.place, piece.factor) for piece in chosen],
            constant,
            hides,
        )

    def _heads(self, sources: frozenset[str], like: Tensor) -> Tensor:
        return torch.arange(self.heads if H in sources else 1, device=like.device)

    def condition(self, place: int) -> Any:
        """One condition, as a function of a pair."""
        pieces = Pieces(self.score_mod, self.dtype)
        return lambda *index: pieces(*index)[place]

    def check(self) -> None:
        """Raises Changed where the function does otherwise than when it was traced."""
        zero = torch.zeros((), dtype=torch.int64)
        notes = any(piece.codes or piece.place >= self.plan.count for piece in self.plan.pieces)
        with torch.no_grad():
            over(self._total([], notes=notes), *[zero] * 4)

    def pairs(self, batch: int, queries: int, keys: int) -> tuple[list[PairBias], Tensor | None]:
        """What is added at each pair: by classes, and [batch or 1, H or 1, queries, keys]."""
        dense, by_class = self.plan.of(PAIR), []
        if not (queries and keys):
            return [], torch.zeros(1, 1, queries, keys, dtype=self.dtype) if dense else None
        for codes, chosen in self.plan.groups().items():
            term = self.by_class(codes, chosen, batch, queries, keys)
            if term is not None:
                by_class.append(term)
                continue
            if self.plan.softcap is not None:
                got = "more than 256 classes of pairs within a softcap"
                raise Unfit(got, "attn_mask is added after the softcap")
            dense = [*dense, *chosen]
        if not dense:
            return by_class, None
        index = torch.arange(queries), torch.arange(keys)
        return by_class, self.sum(dense, (), batch, *index, paired=False)


class _Anew(Kept):
    """Nothing is kept, for nobody knows which tensors the function captures."""

    def tables(self, position: Any, of: Any, evaluate: Any, bounds: Any) -> Any:
        return evaluate(*of), *of


class ScoreModBias(Position):
    """The part of a score_mod that depends on the head and on kv_idx - q_idx."""

    def __init__(self, lowering: Lowering, hides: Sequence[int]) -> None:
        super().__init__()
        self._lowering, self._hides = lowering, hides

    def bias(self, distance: Tensor) -> Tensor:
        q_idx, kv_idx = (-distance).clamp(min=0), distance.clamp(min=0)
        return self._lowering.at(DISTANCE, self._hides, 1, q_idx, kv_idx, paired=True)[0]

    def _keeps(self) -> Kept:
        return _Anew()


class ScoreModKeys(Composed):
    """The part of a score_mod that depends on kv_idx, and on batch row and head."""

    _lowers = True
    _reads_length = _reads_positions = _places_tokens = _turns_by_inputs = False
    _cumulative: Sequence[int] = ()
    _inputs: Sequence[Any] = ()

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    def _parts(self) -> list[Any]:
        return [self]

    def _lowered(self, of: Any, query: Tensor | None, key: Tensor | None) -> list[Any]:
        if query is None or key is None:
            raise wrong_type("ScoreModKeys", "a call, which says how many keys there are", "none")
        return [self._term(query.shape[0], key.shape[2], key.device)]

    def _term(self, batch: int, keys: int, device: Any = None) -> KeyBias:
        lowering = self._lowering
        if keys == 0:
            return KeyBias(torch.zeros(lowering.heads, 0, dtype=lowering.dtype, device=device))
        kv_idx = torch.arange(keys, device=device)
        found = lowering.at(KEY, (), batch, kv_idx.new_zeros(()), kv_idx, paired=False)
        found = found.expand(-1, lowering.heads, -1)
        return KeyBias(found if len(found) == batch and batch > 1 else found[0])

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> Any:
        grid = grid_of(queries, keys, q_offset)
        return self._term(1, grid[1]).dense(*grid, which)

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> Tensor:
        grid = grid_of(queries, keys, q_offset)
        return self._term(1, grid[1]).indices(*grid)

    def steps(self, queries: int, keys: int, q_offset: int | None = None) -> Steps:
        grid = grid_of(queries, keys, q_offset)
        return self._term(1, grid[1]).steps(*grid)

    def describe(self) -> str:
        return f"ScoreModKeys: {(type(self).__doc__ or '').rstrip('.')}"
