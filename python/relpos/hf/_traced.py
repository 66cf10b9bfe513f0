"""Mask functions of transformers under torch.compile: called with placeholders for their indices.

Dynamo does not trace the cells of a closure, which relpos.hf._mask reads. It does trace a call, and
the comparisons that the function makes with the placeholders give the bounds. A function that holds
tensors (packed sequences, chunks) cannot index them by a placeholder: the graph breaks there, and
its closure is read outside the graph.
"""

from collections.abc import Callable
from typing import Any


class Bounds:
    """The keys that a query may see: -left <= key - query <= right, None for no bound."""

    device = "cpu"

    def __init__(self, left: int | None = None, right: int | None = None) -> None:
        self.left = left
        self.right = right

    def to(self, _: Any) -> "Bounds":
        return self

    def __and__(self, other: "Bounds") -> "Bounds":
        return Bounds(_narrower(self.left, other.left), _narrower(self.right, other.right))


def bounds(function: Callable) -> Bounds | None:
    """The bounds that a mask function of the distance allows; None if it tests something else."""
    try:
        found = function(None, None, _Index(False), _Index(True))
    except (AttributeError, IndexError, TypeError):
        return None
    return found if isinstance(found, Bounds) else None


def _narrower(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


class _Index:
    """The index of a key or a query, and a number added to it."""

    def __init__(self, is_key: bool, plus: int = 0) -> None:
        self.is_key = is_key
        self.plus = plus

    def new_ones(self, *_: Any, **__: Any) -> Bounds:
        return Bounds()

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, _Index):
            return _Distance() if self.is_key != other.is_key and self.plus == other.plus else None
        return _Index(self.is_key, self.plus - other)

    def __le__(self, other: Any) -> Any:
        return self._up_to(other, 0)

    def __lt__(self, other: Any) -> Any:
        return self._up_to(other, -1)

    def __ge__(self, other: Any) -> Any:
        if not isinstance(other, _Index):  # an index is never below 0
            return Bounds() if other == 0 and self.plus == 0 else None
        return other._up_to(self, 0)

    def __gt__(self, other: Any) -> Any:
        return other._up_to(self, -1)

    def _up_to(self, other: "_Index", slack: int) -> Any:
        """self <= other + slack."""
        if self.is_key == other.is_key:
            return None
        room = other.plus - self.plus + slack
        return Bounds(right=room) if self.is_key else Bounds(left=room)


class _Distance:
    """Key - query or query - key; the function may bound its absolute value."""

    def __abs__(self) -> "_Magnitude":
        return _Magnitude()


class _Magnitude:
    def __le__(self, reach: int) -> Bounds:
        return Bounds(reach, reach)
