"""What a position of one's own keeps from one call of few queries to the next."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Kept:
    """Tables for the distances first ... last, as long as the position has the values from which
    they were made. Values are compared, since a version counter does not see p.data.mul_()."""

    def __init__(self) -> None:
        self._tables: dict[str, Any] | None = None
        self._first = self._last = 0
        self._state: list[tuple[Any, ...]] = []

    def tables(
        self,
        position: Any,
        of: tuple[int, int],
        evaluate: Callable[[int, int], dict[str, Any]],
        bounds: tuple[int, int] | None,
    ) -> tuple[dict[str, Any], int, int]:
        """Tables that hold these distances, and their first and last distance. bounds: none are
        made beyond them."""
        first, last = of
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in position.parameters())
        if trains or torch._C._are_functorch_transforms_active():
            return evaluate(first, last), first, last
        state = _state_of(position)
        if self._tables is None or not _same(state, self._state):
            return self._keep(evaluate(first, last), first, last, state)
        if self._first <= first and last <= self._last:
            return self._tables, self._first, self._last
        grown = max(last, self._last) - min(first, self._first) + 1
        lo = self._first if self._first <= first else first - grown
        hi = self._last if last <= self._last else last + grown
        if bounds is not None:
            lo, hi = max(lo, bounds[0]), min(hi, bounds[1])
        try:
            tables = evaluate(lo, hi)
        except Exception:  # it may know no distance beyond those of its calls
            return evaluate(first, last), first, last
        self._check(type(position).__name__, tables, lo)
        return self._keep(tables, lo, hi, state)

    def _keep(
        self, tables: dict[str, Any], first: int, last: int, state: list[tuple[Any, ...]]
    ) -> tuple[dict[str, Any], int, int]:
        tensors = [
            t
            for table in tables.values()
            for t in ([table] if isinstance(table, Tensor) else table_tensors(table))
        ]
        if not any(t.requires_grad or t.is_meta for t in tensors):
            self._tables, self._first, self._last = tables, first, last
            self._state = [(owner, name, _copy(value)) for owner, name, value in state]
        return tables, first, last

    def _check(self, who: str, tables: dict[str, Any], first: int) -> None:
        """Raises where a table for more distances says something else of those kept before."""
        for name, old in (self._tables or {}).items():
            new = tables[name]
            if not isinstance(old, Tensor) or not isinstance(new, Tensor):
                continue
            axis = 1 if name == "bias" else -2
            at = self._first - first
            part = new.narrow(axis, at, old.shape[axis])
            if part.shape != old.shape or not torch.allclose(
                part, old, rtol=1e-3, atol=1e-5, equal_nan=True
            ):
                raise ValueError(
                    f"{who}.{name}: expected each distance by itself, got other numbers for "
                    f"distances {self._first} to {self._last} among more: a result may not depend "
                    "on the other distances, as a softmax or a mean over them does"
                )


def table_tensors(terms: Any) -> list[Tensor]:
    """The tensors of what terms(distance) returned."""
    found = terms if isinstance(terms, (list, tuple)) else [terms]
    return [t for term in found for part in term._parts() for t in getattr(part, "_tensors", ())]


_OWN = set(torch.nn.Module().__dict__) - {"training"}


def _state_of(position: Any) -> list[tuple[Any, ...]]:
    """(module, name, value) of everything that a method may read from the position."""
    found: list[tuple[Any, ...]] = []
    for module in position.modules():
        for held in (module._parameters, module._buffers):
            found += [(module, name, value) for name, value in held.items()]
        found += [
            (module, name, value)
            for name, value in module.__dict__.items()
            if name not in _OWN and name != "_kept"
        ]
    return found


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(now: list[tuple[Any, ...]], then: list[tuple[Any, ...]]) -> bool:
    return len(now) == len(then) and all(
        owner is before and name == called and _equal(value, copy)
        for (owner, name, value), (before, called, copy) in zip(now, then, strict=True)
    )


def _equal(value: Any, copy: Any) -> bool:
    if isinstance(value, Tensor):
        return (
            isinstance(copy, Tensor)
            and value.dtype == copy.dtype
            and value.device == copy.device
            and torch.equal(value, copy)
        )
    try:
        return value is copy or bool(value == copy)
    except Exception:  # what cannot be compared may have changed
        return False
