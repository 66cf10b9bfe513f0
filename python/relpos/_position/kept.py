"""What a position of one's own keeps from one call of few queries to the next."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos._position.sum import flatten
from relpos._position.terms import BY_DISTANCE, ValueTable


class Tables(dict[str, Any]):
    """What the methods returned, by name, and the terms made of it, once they are."""

    terms: list[Any] | None = None


class _Held(NamedTuple):
    tables: Tables
    first: int
    last: int
    state: list[tuple[Any, ...]]  # copies of what the tables were made from


class Kept:
    """Tables for the distances first ... last, as long as the position has the values from which
    they were made. Values are compared, since a version counter does not see p.data.mul_()."""

    def __init__(self) -> None:
        self._held: _Held | None = None  # replaced as a whole, since threads may share a position

    def terms(self, position: Any, first: int, last: int) -> list[Any] | None:
        """Those that were made of kept tables which hold these distances."""
        held = self._held
        if held is None or held.tables.terms is None or _evaluates():
            return None
        if first < held.first or last > held.last or not _same(_state_of(position), held.state):
            return None
        return held.tables.terms.copy()

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
        if _evaluates():
            return evaluate(first, last), first, last
        state, held = _state_of(position), self._held
        if held is None or not _same(state, held.state):
            return self._keep(evaluate(first, last), first, last, state)
        if held.first <= first and last <= held.last:
            return held.tables, held.first, held.last
        grown = max(last, held.last) - min(first, held.first) + 1
        lo = held.first if held.first <= first else first - grown
        hi = held.last if last <= held.last else last + grown
        if bounds is not None:
            lo, hi = max(lo, bounds[0]), min(hi, bounds[1])
        try:
            tables = evaluate(lo, hi)
        except Exception:  # it may know no distance beyond those of its calls
            return evaluate(first, last), first, last
        _check(type(position).__name__, held, tables, lo)
        return self._keep(tables, lo, hi, state)

    def _keep(
        self, tables: dict[str, Any], first: int, last: int, state: list[tuple[Any, ...]]
    ) -> tuple[dict[str, Any], int, int]:
        # The kernels read a long table of rows that are not contiguous number by number.
        tables = Tables(
            {n: t.contiguous() if isinstance(t, Tensor) else t for n, t in tables.items()}
        )
        tensors = [
            t
            for table in tables.values()
            for t in ([table] if isinstance(table, Tensor) else table_tensors(table))
        ]
        if not any(t.is_meta for t in tensors):
            copies = [(owner, name, _copy(value)) for owner, name, value in state]
            self._held = _Held(tables, first, last, copies)
        return tables, first, last


def _evaluates() -> bool:
    """Whether each call is to evaluate the methods anew."""
    return torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()


def _check(who: str, held: _Held, tables: dict[str, Any], first: int) -> None:
    """Raises where tables for more distances say something else of those kept before."""
    for name, old in held.tables.items():
        if name == "terms":
            same = _same_terms(flatten(old), flatten(tables[name]), held)
        else:
            axis = 1 if name == "bias" else -2
            part = tables[name].narrow(axis, held.first - first, old.shape[axis])
            same = _close(part, old)
        if not same:
            raise ValueError(
                f"{who}.{name}: expected each distance by itself, got other numbers for "
                f"distances {held.first} to {held.last} among more: a result may not depend "
                "on the other distances, as a softmax or a mean over them does"
            )


def _same_terms(old: list[Any], new: list[Any], held: _Held) -> bool:
    """Whether terms say the same of the distances that are held. What has no numbers by distance,
    as a rotation or a sink, has them in its tensors."""
    if [type(term) for term in old] != [type(term) for term in new]:
        return False
    grid = 1, held.last - held.first + 1, -held.first
    for before, after in zip(old, new, strict=True):
        by_distance = isinstance(before, BY_DISTANCE) and getattr(before, "along", None) is None
        if by_distance:
            which = "value" if isinstance(before, ValueTable) else "key"
            same = _close(after.dense(*grid, which), before.dense(*grid, which))
        else:
            both = [getattr(part, "_tensors", ()) for part in (after, before)]
            same = len(both[0]) == len(both[1]) and all(map(_close, *both))
        if not same:
            return False
    return True


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def table_tensors(terms: Any) -> list[Tensor]:
    """The tensors of what terms(distance) returned."""
    found = terms if isinstance(terms, (list, tuple)) else [terms]
    return [t for term in found for part in term._parts() for t in getattr(part, "_tensors", ())]


_OWN = set(torch.nn.Module().__dict__) - {"training"}


def _state_of(position: Any) -> list[tuple[Any, ...]]:
    """(class of the module, name, value) of everything that a method may read from the position:
    the module itself would hold the position that keeps this."""
    found: list[tuple[Any, ...]] = []
    for module in position.modules():
        for held in (module._parameters, module._buffers):
            found += [(type(module), name, value) for name, value in held.items()]
        found += [
            (type(module), name, value)
            for name, value in module.__dict__.items()
            if name not in _OWN and name != "_kept"
        ]
    return found


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied equals nothing, and so may have changed
        return object()


def _same(now: list[tuple[Any, ...]], then: list[tuple[Any, ...]]) -> bool:
    if len(now) != len(then):
        return False
    for (owner, name, value), (before, called, kept) in zip(now, then, strict=True):
        if owner is not before or name != called:
            return False
        if value is not kept and not _equal(value, kept):
            return False
    return True


def _equal(value: Any, before: Any) -> bool:
    if isinstance(value, Tensor):
        return (
            isinstance(before, Tensor)
            and value.dtype == before.dtype
            and value.device == before.device
            and torch.equal(value, before)
        )
    try:
        return value is before or bool(value == before)
    except Exception:  # what cannot be compared may have changed
        return False
