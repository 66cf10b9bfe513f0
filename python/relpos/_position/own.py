"""relpos.Position: a position that is written in Python."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from relpos._base.errors import wrong_type, wrong_value
from relpos._position.kept import Kept
from relpos._position.lowering import (
    GATES,
    Distances,
    Methods,
    buckets_of,
    inputs_of,
    lower,
    methods_of,
    near,
)
from relpos._position.part import grid_of
from relpos._position.sum import Composed, PositionModule, Steps
from relpos._position.terms import QueryAdded, RotaryTables, Rotation, ValueTable

_WITHOUT_FORM = (QueryAdded, Rotation, RotaryTables)  # which add nothing that a pair alone decides


class _Input(NamedTuple):
    name: str


class _Own(Composed):
    """What a position of one's own is to a call: by itself, or with the inputs of the call."""

    _position: Any
    _given: Mapping[str, Any] = MappingProxyType({})

    _lowers = True
    _reads_length = _turns_by_inputs = False
    _reads_positions = True
    _cumulative: Sequence[int] = ()

    @property
    def _places_tokens(self) -> bool:
        return self._position.grid is not None

    @property
    def _module(self) -> torch.nn.Module:
        return self._position

    @property
    def _text(self) -> str:
        """What errors call it."""
        return type(self._position).__name__

    @property
    def _has_gates(self) -> bool:
        return any(gate in self._position._methods.names for gate in GATES)

    def _parts(self) -> list[Any]:
        return [self]

    def _lowered(self, of: Distances, query: Tensor, key: Tensor) -> list[Any]:
        return lower(self._position, of, self._given, query, key)

    def _near(self, query: Tensor, key: Tensor) -> list[Any]:
        return near(self._position, self._given, query, key)

    def _terms(self, queries: int, keys: int, offset: int) -> list[Any]:
        """Those of a grid of pairs, without gates."""
        if queries == 0 or keys == 0:
            return lower(self._position, Distances(0, 0), self._given, None, None)
        of = Distances(1 - queries - offset, keys - 1 - offset)
        return lower(self._position, of, self._given, None, None)

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> Any:
        queries, keys, offset = grid_of(queries, keys, q_offset)
        terms = self._terms(queries, keys, offset)
        if which == "key":
            chosen = [t for t in terms if not isinstance(t, (ValueTable, *_WITHOUT_FORM))]
        else:
            chosen = [t for t in terms if isinstance(t, ValueTable)]
        if which not in ("key", "value") or not chosen:
            raise wrong_value("which", "'key' or 'value', of which there is a term", repr(which))
        found = [term.dense(queries, keys, offset, which) for term in chosen]
        return found[0] if len(found) == 1 else found

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> Tensor:
        queries, keys, offset = grid_of(queries, keys, q_offset)
        terms = self._terms(queries, keys, offset)
        if self._position.grid is not None:
            return terms[0].indices(queries, keys, offset)
        distance = _distances(queries, keys, offset)
        buckets = buckets_of(terms)
        return distance if buckets is None else buckets(distance)

    def steps(self, queries: int, keys: int, q_offset: int | None = None) -> Steps:
        queries, keys, offset = grid_of(queries, keys, q_offset)
        found: Steps = [("distance", _distances(queries, keys, offset))]
        terms = self._terms(queries, keys, offset)
        buckets = buckets_of(terms)
        if buckets is not None:
            found.append(("bucket", buckets(found[0][1])))
        for term in (t for t in terms if not isinstance(t, _WITHOUT_FORM)):
            which = "value" if isinstance(term, ValueTable) else "key"
            found.append((type(term).__name__, term.dense(queries, keys, offset, which).detach()))
        return found


class Position(_Own, PositionModule):
    """A relative position of one's own: give it to relpos.attention(position=...), add it to
    another.

    A subclass has at least one of these methods, whose parameters autograd trains. `distance` is
    int64 [M], key - query, ascending: all distances of the call.

        bias(distance) -> [H, M] or [1, M], added to the scores after the scale
        rows(distance) -> [M, r] or [H, M, r]: a query meets the row of its distance to the key
        columns(distance) -> [M, r] or [H, M, r]: a key meets it
        values(distance) -> [M, Dv] or [H, M, Dv], added to the value
        gate(query) -> [B, H, Lq, r] meets the rows instead of the query, whose r is D
        key_gate(key) -> [B, Hk, Lk, r] meets the columns instead of the key
        terms(distance) -> one of relpos.terms or a list of them: anything else

    gate and key_gate get the tensors of the call, before rotation and scale. Further parameters of
    a method are inputs of a call: with `def gate(self, query, hidden)` give position(hidden) or
    position(hidden=hidden) to the call.

    Attributes:
      reach: (lo, hi): `distance` is always lo ... hi.
      outside: what distances beyond reach have: the row of the nearest ("clamp"), nothing ("none"),
        or an error ("error").
      grid: (height, width) or (time, height, width): tokens stand row by row. bias(dy, dx), or
        bias(dt, dy, dx), gets offsets that broadcast to [2 height - 1, 2 width - 1] and returns
        [H or 1, 2 height - 1, 2 width - 1]. A call has as many tokens as the grid.
      rows_scale, columns_scale: multiply the products with rows and columns. None is the scale of
        the scores, and 1.0 beside a gate.

    A method treats each distance by itself: what looks at the others, as a mean over them, would
    depend on the length of the call. The methods run without autocast, once in every call; for
    calls of at most 16 queries without gradients the result is kept as long as all parameters,
    buffers and attributes of the instance keep their values. docs/own-schemes.md has examples.
    """

    reach: tuple[int, int] | None = None
    outside: str = "clamp"
    grid: Sequence[int] | None = None
    rows_scale: float | None = None
    columns_scale: float | None = None

    _by_axes: ClassVar[Sequence[Methods]] = (
        Methods((), {}, (), frozenset()),
    ) * 4  # of the grid, 0: without

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls._by_axes = tuple(methods_of(cls, max(axes, 1)) for axes in range(4))

    @property
    def _methods(self) -> Methods:
        if self.grid is not None and not isinstance(self.grid, (tuple, list)):
            raise wrong_type(f"{self._text}.grid", "a tuple of two or three sides", self.grid)
        return self._by_axes[0 if self.grid is None else min(len(self.grid), 3)]

    @property
    def _position(self) -> "Position":
        return self

    @property
    def _inputs(self) -> list[_Input]:
        return [_Input(name) for name in self._methods.inputs]

    def forward(self, *inputs: Any, **named: Any) -> "OwnCall":
        """The position of one call, given its inputs by place or by name."""
        return OwnCall(self, inputs_of(self, inputs, named))

    def lower(self, first: int, last: int, **inputs: Any) -> list[Composed]:
        """The terms for the distances first ... last, from one evaluation, which layers that share
        a position may share. Raises ValueError for a class with gates, which depend on the query
        or the key of each call."""
        if self._has_gates:
            raise wrong_value(f"{self._text}.lower", "a class without gates", "one with gates")
        return lower(self, Distances(first, last), inputs_of(self, (), inputs), None, None)

    def describe(self) -> str:
        doc = (type(self).__doc__ or "").strip().splitlines()
        lines = [f"{type(self).__name__}: {doc[0]}" if doc else type(self).__name__]
        lines.append(f"  by {', '.join(self._methods.names)}")
        for name, value in self.named_parameters():
            dtype = str(value.dtype).removeprefix("torch.")
            lines.append(f"  parameter {name} {list(value.shape)} {dtype}")
        lines += [f"  input {name}, of each call" for name in self._methods.inputs]
        return "\n".join(lines)

    def _keeps(self) -> Kept:
        """What is kept from earlier calls of few queries."""
        kept = self.__dict__.get("_kept")
        if kept is None:
            kept = self.__dict__["_kept"] = Kept()
        return kept

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}


class OwnCall(_Own):
    """A position of one's own, with the inputs of one call."""

    def __init__(self, position: Position, inputs: Mapping[str, Any]) -> None:
        self._position, self._given = position, inputs

    def describe(self) -> str:
        return self._position.describe()


def _distances(queries: int, keys: int, offset: int) -> Tensor:
    return torch.arange(keys) - (offset + torch.arange(queries)[:, None])
