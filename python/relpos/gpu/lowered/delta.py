"""What the distance of a pair is for a term, where it is not that of positions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos.gpu.device import uploaded
from relpos.gpu.lowered.numbers import Numbers, numbers_of
from relpos.gpu.masks.dense import Pairs, pairs_of
from relpos.gpu.problem import Places, places_of


class Along(NamedTuple):
    """That of an axis of coordinates [B, axes, L], or [B, L], of queries and of keys; or of `at`
    int64 [1 or B, Lq] and [1 or B, Lk], on the CPU."""

    q: Numbers | None
    k: Numbers | None
    axis: int
    at: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, lowered: Any, lengths: tuple[int, int]) -> "Along":
        q, k, axis, *both = lowered
        at = None
        if q is None:
            each = (torch.tensor(numbers, dtype=torch.int64, device="cpu") for numbers in both)
            first, second = (
                x.view(-1, length) if length else x.view(1, 0)
                for x, length in zip(each, lengths, strict=True)
            )
            at = first, second
        return cls(numbers_of(q), numbers_of(k), axis, at)

    def query_axes(self, _: Sequence[Tensor]) -> dict[int, int]:
        """{parameter: its axis of queries}."""
        return {} if self.q is None else {self.q.parameter: self.q.axes[-1]}

    def read(self, lowered: Any) -> Places:
        """Of the queries and keys of a Lowered."""
        if self.at is not None:
            q, k = (uploaded(x, lowered.device) for x in self.at)
            return places_of(lowered.own(q), k)
        # One input may be both: the queries of a chunk have their part of it, the keys have all.
        given = (self.q, lowered.parameters), (self.k, lowered.entire.parameters)
        both = (numbers.view(parameters[numbers.parameter]) for numbers, parameters in given)
        q, k = (x if x.dim() == 2 else x[:, self.axis] for x in both)
        return places_of(q.contiguous(), k.contiguous())


class Classes(NamedTuple):
    """The class of the pair, of a parameter uint8 [Lq, Lk] or [B, Lq, Lk]; pairs of class `hidden`
    are not seen, -1: there is none."""

    parameter: int
    hidden: int

    @property
    def at(self) -> None:
        """As Along has it."""
        return None

    def query_axes(self, parameters: Sequence[Tensor]) -> dict[int, int]:
        """{parameter: its axis of queries}."""
        return {self.parameter: parameters[self.parameter].dim() - 2}

    def read(self, lowered: Any) -> Pairs:
        """Of the pairs of a Lowered."""
        classes = lowered.parameters[self.parameter]
        return pairs_of(classes.unsqueeze(-3).expand(*lowered.sizes))


Delta = Along | Classes | None


def delta_of(lowered: Any, lengths: tuple[int, int]) -> Delta:
    """As _core.lower says it, of a call of so many queries and keys."""
    if lowered is None:
        return None
    kind, *what = lowered
    return Classes(*what) if kind == "classes" else Along.of(what, lengths)
