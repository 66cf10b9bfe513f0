"""How a position of one's own becomes terms: its methods evaluated for the distances of a call."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos._base.arguments import one_of, two_of
from relpos._base.errors import dtype_of, shape_of, wrong_type, wrong_value
from relpos._base.tensors import FLOATING
from relpos._position.buckets import interval
from relpos._position.kept import Kept, Tables
from relpos._position.sum import flatten
from relpos._position.terms import ColumnTable, DistanceBias, OfCall, RowTable, Term, ValueTable

_TABLES = ("bias", "rows", "columns", "values", "terms")
GATES = {"gate": "rows", "key_gate": "columns"}
_MOST = 2**27  # numbers of a table
_FEW = 16  # queries of a call for which tables are kept


class Distances(NamedTuple):
    """Those of a call, key - query, from first to last."""

    first: int
    last: int
    tokens: tuple[int, int] | None = None  # queries and keys in all, of a call on many ranks


class Methods(NamedTuple):
    """The methods that a class defines, and the names of the inputs of a call that they take."""

    names: tuple[str, ...]
    takes: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    required: frozenset[str]  # of the inputs, those without a default


class Fit(NamedTuple):
    """What a method must fit."""

    query: Tensor | None
    key: Tensor | None
    gates: bool = True  # whether gates are asked, too
    tokens: tuple[int, int] | None = None  # as in Distances

    @property
    def heads(self) -> int | None:
        return None if self.query is None else self.query.shape[1]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.query is None else self.query.device

    @property
    def lengths(self) -> dict[str, int]:
        """How many queries and keys a call has, as far as it is known."""
        if self.tokens is not None:
            return dict(zip(("query", "key"), self.tokens, strict=True))
        both = {"query": self.query, "key": self.key} if self.gates else {}
        return {name: tensor.shape[2] for name, tensor in both.items() if tensor is not None}


def methods_of(cls: type, offsets: int) -> Methods:
    """What a subclass of relpos.Position defines, whose bias gets so many tensors of offsets."""
    names = tuple(name for name in (*_TABLES, *GATES) if callable(getattr(cls, name, None)))
    takes, required = {}, set()
    for name in names:
        given = list(inspect.signature(getattr(cls, name)).parameters.values())[1:]
        placed = offsets if name == "bias" else 1
        kinds = [each.kind for each in given[:placed]]
        if inspect.Parameter.VAR_POSITIONAL in kinds:  # takes all of the rest
            placed = kinds.index(inspect.Parameter.VAR_POSITIONAL) + 1
        own = [each for each in given[placed:] if each.kind is not each.VAR_KEYWORD]
        takes[name] = tuple(each.name for each in own)
        required |= {each.name for each in own if each.default is each.empty}
    inputs = tuple(dict.fromkeys(x for taken in takes.values() for x in taken))
    return Methods(names, takes, inputs, frozenset(required))


def inputs_of(position: Any, placed: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a call by name, checked."""
    who, wanted = type(position).__name__, position._methods.inputs
    given = dict(zip(wanted, placed, strict=False))
    doubled = [name for name in named if name in given]
    unknown = [name for name in named if name not in wanted]
    if len(placed) > len(wanted) or doubled or unknown:
        got = ", ".join([f"{len(placed)} by place", *named])
        expected = f"its inputs {', '.join(wanted)}" if wanted else "none: give position=position"
        raise wrong_value(who, expected, got)
    return {**given, **named}


def lower(
    position: Any,
    of: Distances,
    inputs: Mapping[str, Any],
    query: Tensor | None,
    key: Tensor | None,
    gates: bool = True,
) -> list[Any]:
    """The terms of a position for these distances. Without query and key, gates are left out."""
    if _keeps(of, inputs, query):
        made = position._keeps().terms(position, of.first, of.last)
        if made is not None:
            return made
    who, methods = type(position).__name__, position._methods
    if "_parameters" not in position.__dict__:
        raise wrong_type(who, "super().__init__() in its __init__", "none")
    if not any(name in methods.names for name in _TABLES):
        raise wrong_type(who, f"a method of {', '.join(_TABLES)}", "none of them")
    for gate, rows in GATES.items():
        if gate in methods.names and rows not in methods.names:
            raise wrong_type(f"{who}.{gate}", f"it beside the method {rows}", "it alone")
    asked = methods.names if query is not None and gates else _TABLES
    needed = {x for name in asked for x in methods.takes.get(name, ())} & methods.required
    missing = [name for name in methods.inputs if name in needed and name not in inputs]
    if missing:
        names = ", ".join(methods.inputs)
        raise wrong_value("position", f"{who} called with {names}", f"no {', '.join(missing)}")
    fits = Fit(query, key, gates, of.tokens)
    of = _reached(position, of)
    tables, of = _tables(position, of, inputs, fits)
    return _terms(position, tables, of, inputs, fits)


def _keeps(of: Distances, inputs: Mapping[str, Any], query: Tensor | None) -> bool:
    """Whether tables may be kept. Ranks must have the same, and what they have kept may differ."""
    if inputs or query is None or of.tokens is not None or torch.compiler.is_compiling():
        return False
    return query.shape[2] <= _FEW


def near(position: Any, inputs: Mapping[str, Any], query: Tensor, key: Tensor) -> list[Any]:
    """The terms for distances near 0, checked against these heads, without gates; none where a
    table needs an input that is not given."""
    methods = position._methods
    takes = {each for name in _TABLES for each in methods.takes.get(name, ())}
    if takes & methods.required - inputs.keys():
        return []
    of = Distances(-1, 1) if position.reach is None else _reach_of(position)
    return lower(position, of, inputs, query, key, gates=False)


def _reach_of(position: Any) -> Distances:
    name = f"{type(position).__name__}.reach"
    return Distances(*interval(*two_of(name, position.reach, "(lo, hi)"), of=f"{name}: "))


def _reached(position: Any, of: Distances) -> Distances:
    """The distances for which the methods are asked."""
    who = type(position).__name__
    one_of(f"{who}.outside", position.outside, ("clamp", "none", "error"))
    if position.reach is None:
        return of
    lo, hi, _ = _reach_of(position)
    if position.outside == "error" and not (lo <= of.first and of.last <= hi):
        out = of.first if of.first < lo else of.last
        raise wrong_value(f"{who}: distance", f"{lo} to {hi}, which are its reach", out)
    return Distances(lo, hi)


def _tables(
    position: Any, of: Distances, inputs: Mapping[str, Any], fits: Fit
) -> tuple[dict[str, Any], Distances]:
    """What the methods return, for these distances or for more, which are kept."""
    asked = [name for name in position._methods.names if name in _TABLES]
    if position.grid is not None or not fits.gates or not _keeps(of, inputs, fits.query):
        return _evaluated(position, asked, of, inputs, fits), of
    kept: Kept = position._keeps()

    def evaluate(first: int, last: int) -> dict[str, Any]:
        return _evaluated(position, asked, Distances(first, last), inputs, fits)

    asked_for = (of.first, of.last)
    bounds = None if position.reach is None else asked_for
    tables, first, last = kept.tables(position, asked_for, evaluate, bounds)
    return tables, Distances(first, last)


def _evaluated(
    position: Any, asked: Sequence[str], of: Distances, inputs: Mapping[str, Any], fits: Fit
) -> dict[str, Any]:
    count = of.last - of.first + 1
    who = type(position).__name__
    if count > _MOST:
        then = "give the class a reach = (lo, hi), beyond which rows repeat"
        raise wrong_value(f"{who}: distances of a call", f"at most {_MOST}", count, then)
    if position.grid is not None:
        return {"bias": _of_grid(position, asked, inputs, fits)}
    distance = torch.arange(of.first, of.last + 1, device=fits.device)
    found = {}
    for name in asked:
        value = _run(position, name, (distance,), inputs)
        if name != "terms":
            _check(f"{who}.{name}", value, _shapes(name, count, position, fits), of, fits)
        found[name] = value
    return found


def _run(position: Any, name: str, given: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
    """A method, in the precision of its own numbers."""
    named = {each: inputs[each] for each in position._methods.takes[name] if each in inputs}
    if not torch.is_autocast_enabled("cpu"):
        return getattr(position, name)(*given, **named)
    with torch.autocast("cpu", enabled=False):
        return getattr(position, name)(*given, **named)


def _shapes(name: str, count: int, position: Any, fits: Fit) -> list[tuple[Any, ...]]:
    """What a table may be; None: any size."""
    heads = fits.heads
    if name == "bias":
        return [(heads, count), (1, count)]
    gated = {rows: gate for gate, rows in GATES.items()}.get(name) in position._methods.names
    width = None
    if not gated and fits.query is not None and name != "values":
        width = fits.query.shape[3]
    return [(count, width), (heads, count, width)]


def _check(who: str, value: Any, shapes: Any, of: Distances, fits: Fit) -> None:
    if not isinstance(value, Tensor) or value.dtype not in FLOATING:
        raise wrong_type(who, "a floating-point tensor", dtype_of(value))
    if value.device != fits.device:
        raise wrong_value(who, f"a tensor on {fits.device}, as query is", value.device)

    def matches(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
        return len(shape) == len(wanted) and all(
            w is None or s == w for s, w in zip(shape, wanted, strict=True)
        )

    if any(matches(value.shape, shape) for shape in shapes):
        return
    turned = value.dim() >= 2 and any(matches(value.mT.shape, shape) for shape in shapes)
    expected = " or ".join(str(["any" if n is None else n for n in s]) for s in shapes)
    axes = "heads, distances" if who.endswith(".bias") else "distances first"
    expected += f" ({axes} {of.first} to {of.last})"
    then = "return its transpose (.mT)" if turned else ""
    raise wrong_value(who, expected.replace("'", ""), shape_of(value), then)


def _of_grid(position: Any, asked: Sequence[str], inputs: Mapping[str, Any], fits: Fit) -> Tensor:
    """The bias [H or 1, M] of the offsets of a grid, in the order of their places."""
    who, sides = type(position).__name__, [int(side) for side in position.grid]
    if list(asked) != ["bias"] or not 2 <= len(sides) <= 3 or min(sides) < 1:
        raise wrong_value(f"{who}.grid", "two or three sides from 1 on, and the method bias", sides)
    tokens = math.prod(sides)
    for name, length in fits.lengths.items():
        if length != tokens:
            raise wrong_value(f"{who}: {name}", f"{tokens} tokens of its grid", length)
    offsets = []
    for axis, side in enumerate(sides):
        shape = [1] * len(sides)
        shape[axis] = 2 * side - 1
        offsets.append(torch.arange(1 - side, side, device=fits.device).view(shape))
    found = _run(position, "bias", offsets, inputs)
    counts = [2 * side - 1 for side in sides]
    far = Distances(1 - sides[0], sides[0] - 1)
    _check(f"{who}.bias", found, [(fits.heads, *counts), (1, *counts)], far, fits)
    return found.flatten(1)


def _terms(
    position: Any, tables: dict[str, Any], of: Distances, inputs: Mapping[str, Any], fits: Fit
) -> list[Any]:
    kept = isinstance(tables, Tables)
    names, at = position._methods.names, OfCall(of.first, position.outside == "none")
    made: list[Any] = []
    if "bias" in tables:
        bias = tables["bias"]
        if position.grid is not None:
            at = OfCall(-(bias.shape[1] // 2), True, position.grid)
        made.append(DistanceBias(bias, at))
    for name, gate, tensor, term in (
        ("rows", "gate", fits.query, RowTable),
        ("columns", "key_gate", fits.key, ColumnTable),
    ):
        if name not in tables:
            continue
        scale = getattr(position, f"{name}_scale")
        factor = None
        if gate in names and tensor is not None and fits.gates:
            factor = _run(position, gate, (tensor,), inputs)
            _check_gate(f"{type(position).__name__}.{gate}", factor, tensor, tables[name])
        if gate in names and scale is None:
            scale = 1.0
        made.append(term(tables[name], at, factor=factor, scale=scale))
    if "values" in tables:
        made.append(ValueTable(tables["values"], at))
    if "terms" in tables:
        for part in flatten(tables["terms"]):
            kept = kept and not part._lowers
            given = (fits.query, fits.key) if fits.gates else (None, None)
            made += part._lowered(of, *given) if part._lowers else [part]
    if kept and not any(gate in names for gate in GATES):
        tables.terms = made.copy()
    return made


def _check_gate(who: str, gate: Any, tensor: Tensor, table: Tensor) -> None:
    if not isinstance(gate, Tensor) or gate.dtype not in FLOATING:
        raise wrong_type(who, "a floating-point tensor", dtype_of(gate))
    wanted = (*tensor.shape[:3], table.shape[-1])
    if gate.shape != wanted:
        raise wrong_value(who, str(list(wanted)), shape_of(gate))


def buckets_of(terms: Sequence[Any]) -> Any:
    """Those by which the first table among the terms is read, or None."""
    return next((t.buckets for t in terms if isinstance(t, Term) and t.buckets is not None), None)
