"""Positions that are added: what a call takes as its position, and sums of positions."""

import numbers
from collections.abc import Iterable
from typing import Any, overload

import torch
from torch import Tensor

from relpos._base.errors import kind_of, wrong_type, wrong_value

Steps = list[tuple[str, Tensor]]


class Composed:
    """What can be added to other positions and given to relpos.attention(position=...)."""

    _lowers = False  # whether its terms follow from a call, by _lowered
    _has_gates = False  # whether these depend on what the query or the key holds

    def _lowered(self, of: Any, query: Tensor | None, key: Tensor | None) -> list[Any]:
        """The terms of a call for these distances; without query and key, without gates."""
        raise NotImplementedError

    def _near(self, query: Tensor, key: Tensor) -> list[Any]:
        """Terms for a few distances, which calls with such heads can use; none where unknown."""
        return []

    @property
    def _module(self) -> torch.nn.Module:
        """That whose parameters it has."""
        return torch.nn.Module()

    def __add__(self, other: "Composed") -> "Composed":
        return GivenSum(self, other) if isinstance(other, Composed) else NotImplemented

    def __radd__(self, other: Any) -> "Composed":
        if isinstance(other, numbers.Integral) and other == 0:  # sum() starts there
            return self
        return NotImplemented

    def _parts(self) -> list[Any]:
        raise NotImplementedError

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> Any:
        """The position written out for all pairs of queries at q_offset + i and keys at j."""
        raise NotImplementedError

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> Any:
        """int64 [Lq, Lk]: the table row (class) of each pair, -1 where it has none. For a scheme
        without classes it is the distance key - query."""
        raise NotImplementedError

    def steps(self, queries: int, keys: int, q_offset: int | None = None) -> Steps:
        """The matrices between positions and scores, in the order in which a teaching notebook
        computes them: (name, matrix)."""
        raise NotImplementedError

    def describe(self) -> str:
        """The scheme, its options, its parameters and where it comes from."""
        raise NotImplementedError


class PositionModule(Composed, torch.nn.Module):
    """A position that is a module: give it to relpos.attention(position=...), add it to another."""

    @overload
    def __add__(self, other: "PositionModule") -> "Sum": ...
    @overload
    def __add__(self, other: Composed) -> Composed: ...
    def __add__(self, other: Any) -> Any:
        return Sum(self, other) if isinstance(other, PositionModule) else super().__add__(other)

    @property
    def _module(self) -> torch.nn.Module:
        return self


class Several(Composed):
    """Several parts. dense and indices return a list with one entry for each part; steps and
    describe join those of all parts in order."""

    parts: Any

    @property
    def _lowers(self) -> bool:  # type: ignore[override]
        return any(part._lowers for part in self.parts)

    def _parts(self) -> list[Any]:
        return list(self.parts)

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> list[Any]:
        return [part.dense(queries, keys, q_offset, which) for part in self.parts]

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> list[Tensor]:
        return [part.indices(queries, keys, q_offset) for part in self.parts]

    def steps(self, queries: int, keys: int, q_offset: int | None = None) -> Steps:
        return [
            (f"{type(part).__name__}: {name}", matrix)
            for part in self.parts
            for name, matrix in part.steps(queries, keys, q_offset)
        ]

    def describe(self) -> str:
        return "\n".join(part.describe() for part in self.parts)


class GivenSum(Several):
    """Several positions of one call, some of them with its inputs."""

    def __init__(self, *parts: Any) -> None:
        self.parts = flatten(parts)


class Sum(Several, PositionModule):
    """Several positions at once; the terms of all of them apply.

    relpos.Sum(a, b), a + b, sum([a, b]) and a list given to attention mean the same. dense and
    indices return a list with one entry for each part; steps and describe join those of all parts
    in order. If some parts need inputs of each call, call the sum with the inputs of all its parts,
    in their order.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        found = flatten(parts)
        for part in found:
            if not isinstance(part, torch.nn.Module):
                then = "add it by +, and give the sum to each call"
                raise wrong_type("position", "positions that are modules", kind_of(part), then)
        self.parts = torch.nn.ModuleList(found)

    def forward(self, *inputs: Tensor) -> GivenSum:
        """The position of one call. Give the inputs of all parts that have some, in their order."""
        wanted = [spec.name for part in self.parts for spec in part._inputs]
        if not wanted or len(inputs) != len(wanted):
            names = ", ".join(wanted) or "none, position=position"
            raise wrong_value("position", f"its inputs {names}", len(inputs))
        following = iter(inputs)
        return GivenSum(
            *(
                part(*(next(following) for _ in part._inputs)) if part._inputs else part
                for part in self.parts
            )
        )


def flatten(position: Any) -> list[Any]:
    """The parts of None, a position, or a list of them."""
    if position is None:
        return []
    if hasattr(position, "_parts"):
        if isinstance(position, type):
            raise wrong_type(
                "position",
                "a relpos position",
                f"the class {position.__name__}",
                f"make one, as help(relpos.{position.__name__}) says",
            )
        return position._parts()
    if isinstance(position, Iterable) and not isinstance(position, (str, Tensor)):
        return [part for member in position for part in flatten(member)]
    raise wrong_type("position", "None, a relpos position or a list of them", kind_of(position))


def lowers(position: Any) -> bool:
    """Whether the terms of a position follow from the distances of a call."""
    if position is None:
        return False
    known = getattr(position, "_lowers", None)
    return any(part._lowers for part in flatten(position)) if known is None else bool(known)
