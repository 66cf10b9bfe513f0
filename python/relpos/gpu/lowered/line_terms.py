"""Slopes and key biases of a call, as relpos.gpu.lines takes them."""

from typing import Any, NamedTuple

from relpos.gpu.lowered.numbers import Numbers, numbers_of


class SlopeTerm(NamedTuple):
    """past[h] min(delta, 0) + future[h] max(delta, 0), of [H] each; None: 0."""

    past: Numbers | None
    future: Numbers | None

    @classmethod
    def of(cls, lowered: Any) -> "SlopeTerm":
        """As _core.lower says it."""
        return cls(*map(numbers_of, lowered))

    def numbers(self) -> list[Numbers]:
        return [each for each in self if each is not None]


class KeyTerm(NamedTuple):
    """values [H, Lk] or [B, H, Lk], or their sums along the last axis."""

    values: Numbers
    cumulative: bool

    @classmethod
    def of(cls, lowered: Any) -> "KeyTerm":
        """As _core.lower says it."""
        values, cumulative = lowered
        return cls(numbers_of(values), cumulative)
