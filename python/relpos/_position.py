"""Positions as torch modules: one class for each scheme of the registry, and their sums."""

import math
import numbers
from collections.abc import Iterable
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor

from relpos import _autograd, _core, _ops
from relpos._rank import check_rank
from relpos._registry import ParameterSpec, Scheme, schemes


class Position(torch.nn.Module):
    """A relative position: give it to relpos.attention(position=...), add it to another."""

    def __add__(self, other: Any) -> "Sum":
        return Sum(self, other) if isinstance(other, Position) else NotImplemented

    def __radd__(self, other: Any) -> "Position":
        if isinstance(other, numbers.Integral) and other == 0:  # sum() starts there
            return self
        return NotImplemented

    def _parts(self) -> list["SchemePosition"]:
        raise NotImplementedError

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> Any:
        """The position written out on a grid of queries at q_offset + i and keys at j."""
        raise NotImplementedError

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> Any:
        """[Lq, Lk] int64: the class (table row) of each pair, -1 for none, or the distance key -
        query where the scheme has no classes."""
        raise NotImplementedError

    def steps(self, queries: int, keys: int, q_offset: int | None = None) -> list:
        """The matrices on the way from positions to scores, in order: (name, matrix)."""
        raise NotImplementedError

    def describe(self) -> str:
        """The scheme, its options, its parameters and where it comes from."""
        raise NotImplementedError


class SchemePosition(Position):
    """A position of one scheme. Fixed values are buffers outside the state dict, always float32
    or float64, and follow the module's device."""

    scheme: Scheme

    def __init__(self, **options: Any) -> None:
        super().__init__()
        for option in self.scheme.options:
            options[option.name] = plain_option(option.name, options[option.name])
        description = self.scheme.describe(**options)
        self._text = description.text
        self._specs = description.parameters
        self._rotary_dims = description.rotary_dims
        for spec in self._specs:
            owner, name = self._owner(spec.name)
            values = _initial(spec)
            if spec.trainable:
                owner.register_parameter(name, torch.nn.Parameter(values))
            else:
                owner.register_buffer(name, values, persistent=False)
        for name, value in description.options.items():
            if not hasattr(self, name):  # a parameter goes before the option that filled it
                setattr(self, name, value)

    def _owner(self, dotted: str) -> tuple[torch.nn.Module, str]:
        """The module that holds a parameter, made where it is missing, and the last name."""
        *path, name = dotted.split(".")
        owner: torch.nn.Module = self
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, torch.nn.Module())
            owner = owner._modules[step]
        return owner, name

    def _parts(self) -> list["SchemePosition"]:
        return [self]

    def _values(self) -> list[Tensor]:
        found = []
        for spec in self._specs:
            value: Any = self
            for step in spec.name.split("."):
                value = getattr(value, step)
            found.append(value)
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> "SchemePosition":
        super()._apply(fn, recurse)
        for spec in self._specs:
            if not spec.trainable:
                owner, name = self._owner(spec.name)
                moved = getattr(owner, name)
                wide = moved.dtype == torch.float64
                values = _initial(spec, torch.float64 if wide else torch.float32)
                owner._buffers[name] = values.to(moved.device)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for spec in self._specs:
            if prefix + spec.name in state_dict:
                continue
            for origin in spec.origins:
                if prefix + origin.name in state_dict:
                    value = state_dict.pop(prefix + origin.name)
                    state_dict[prefix + spec.name] = value.mT if origin.transposed else value
                    break
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def origin_state_dict(self, project: str) -> dict[str, Tensor]:
        """The parameters under a project's names and in its form, for its own loader.

        load_state_dict takes these names as well as ours. Which projects there are says
        describe(), and docs/schemes.md. Raises ValueError where `project` has no name for a
        parameter under these options.
        """
        state = {}
        for spec, value in zip(self._specs, self._values(), strict=True):
            if not spec.trainable:
                continue
            named = [origin for origin in spec.origins if origin.project == project]
            if not named:
                known = sorted({origin.project for origin in spec.origins})
                raise ValueError(
                    f"project: expected one that has {spec.name} of {self._text}: "
                    f"{', '.join(known) or 'none is known'}; got {project!r}"
                )
            value = value.detach()
            state[named[0].name] = value.mT.contiguous() if named[0].transposed else value
        return state

    def reset_parameters(self) -> None:
        """Draws the trainable parameters anew."""
        with torch.no_grad():
            for spec, value in zip(self._specs, self._values(), strict=True):
                value.copy_(_initial(spec))

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> Any:
        offset = _grid_offset(queries, keys, q_offset)
        if self._rotary_dims:
            if which != "key":
                raise ValueError(f"which: expected 'key' for a rotation, got {which!r}")
            return self.tables(queries, offset), self.tables(keys)
        return _autograd.dense(self._values(), self._text, queries, keys, offset, which)

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> Tensor:
        offset = _grid_offset(queries, keys, q_offset)
        out = torch.empty(queries, keys, dtype=torch.int64, device="cpu")
        views = _ops.views(self._values())
        _core.indices(self._text, views, queries, keys, offset, _ops.view(out))
        return out

    def steps(
        self, queries: int, keys: int, q_offset: int | None = None
    ) -> list[tuple[str, Tensor]]:
        views = _ops.views(self._values())
        return [
            (name, _matrix(kind, shape, values))
            for name, kind, shape, values in _core.steps(self._text, views, queries, keys, q_offset)
        ]

    def describe(self) -> str:
        lines = [f"{self._text}: {self.scheme.summary}", f"  from {self.scheme.source}"]
        for spec, value in zip(self._specs, self._values(), strict=True):
            kind = "parameter" if isinstance(value, torch.nn.Parameter) else "fixed"
            shape = list(value.shape)
            dtype = str(value.dtype).removeprefix("torch.")
            lines.append(f"  {kind} {spec.name} {shape} {dtype}: {spec.doc}")
            for origin in spec.origins:
                form = ", transposed" if origin.transposed else ""
                lines.append(f"    in {origin.project}: {origin.name}{form}")
        return "\n".join(lines)

    def extra_repr(self) -> str:
        return self._text.partition("(")[2].removesuffix(")")


class _Rotary:
    """What a position with a rotation can do besides."""

    def tables(
        self, length: int, offset: int = 0, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """cos, sin [length, rotary_dim] of the positions offset, offset + 1, ...: each angle
        twice, in the pair layout."""
        if dtype is None:
            wide = torch.get_default_dtype() == torch.float64
            dtype = torch.float64 if wide else torch.float32
        return _ops.rotary_tables(
            self._values(), self._text, length, offset, self._rotary_dims, dtype
        )

    def rotate(self, x: Tensor, offset: int = 0, positions: Tensor | None = None) -> Tensor:
        """R x for x [..., L, D], row n at position offset + n, or at positions [L] int64."""
        check_rank("x", x, 2, "[..., L, D]", or_more=True)
        folded = x.flatten(0, -4) if x.dim() > 4 else x
        out = _autograd.rotate(folded, self._values(), self._text, offset, positions, False)
        return out.view(x.shape) if x.dim() > 4 else out


class Given:
    """One part by its canonical text, with parameters that the caller holds."""

    def __init__(self, text: str, values: list[Tensor]) -> None:
        self._text = text
        self._held = values

    def _parts(self) -> list["Given"]:
        return [self]

    def _values(self) -> list[Tensor]:
        return self._held


class Sum(Position):
    """Several positions at once: their terms stand together in the scores.

    relpos.Sum(a, b), a + b, sum([a, b]) and a list given to attention mean the same. dense and
    indices return one entry for each part, steps and describe all of them in order.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(flatten(parts))

    def _parts(self) -> list[SchemePosition]:
        return list(self.parts)

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> list:
        return [part.dense(queries, keys, q_offset, which) for part in self.parts]

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> list[Tensor]:
        return [part.indices(queries, keys, q_offset) for part in self.parts]

    def steps(
        self, queries: int, keys: int, q_offset: int | None = None
    ) -> list[tuple[str, Tensor]]:
        return [
            (f"{type(part).__name__}: {name}", matrix)
            for part in self.parts
            for name, matrix in part.steps(queries, keys, q_offset)
        ]

    def describe(self) -> str:
        return "\n".join(part.describe() for part in self.parts)


def flatten(position: Any) -> list[Any]:
    """The parts of None, a position, or a list of them."""
    if position is None:
        return []
    if isinstance(position, (Position, Given)):
        return position._parts()
    if isinstance(position, Iterable) and not isinstance(position, (str, Tensor)):
        return [part for member in position for part in flatten(member)]
    raise TypeError(
        "position: expected None, a relpos position or a list of them, got "
        f"{type(position).__name__}"
    )


def flat(position: Any) -> tuple[str, list[Tensor]]:
    """The canonical text of a position and its parameters, as the operators take them."""
    parts = flatten(position)
    if len(parts) == 1:
        return parts[0]._text, parts[0]._values()
    text = "+".join([part._text for part in parts])
    return text, [value for part in parts for value in part._values()]


def plain_option(name: str, value: Any) -> Any:
    """An option as the registry takes it: numbers of other libraries and tensors included."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise ValueError(
                f"{name}: expected a tensor without requires_grad, whose gradient would be lost: "
                "give its values, and train the module's own parameter"
            )
        value = value.detach().tolist()
    if isinstance(value, (list, tuple)):
        return [float(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "tolist"):
        return plain_option(name, value.tolist())
    raise TypeError(f"{name}: expected a number, a text or numbers, got {type(value).__name__}")


def _initial(spec: ParameterSpec, dtype: torch.dtype = torch.float32) -> Tensor:
    if spec.init == "values":
        values = torch.tensor(spec.values, dtype=dtype)
        return (
            (values.expand(math.prod(spec.shape)) if len(spec.values) == 1 else values)
            .reshape(spec.shape)
            .clone()
        )
    values = torch.empty(spec.shape, dtype=dtype)
    if spec.init == "uniform":
        return values.uniform_(-spec.spread, spec.spread)
    return values.normal_(0.0, spec.spread)


def _grid_offset(queries: int, keys: int, q_offset: int | None) -> int:
    if q_offset is None:
        return 0 if queries == keys else _core.grid_offset(queries, keys, None)
    return q_offset


_STEP_DTYPES = {"integer": torch.int64, "boolean": torch.bool}


def _matrix(kind: str, shape: tuple[int, ...], values: bytes) -> Tensor:
    dtype = _STEP_DTYPES.get(kind) or torch.get_default_dtype()
    if not values:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(values), dtype=torch.float64).reshape(shape).to(dtype)


def _class_of(scheme: Scheme) -> type[SchemePosition]:
    signature = scheme.signature()

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{scheme.class_name}{signature}: {error}") from None
        bound.apply_defaults()
        SchemePosition.__init__(self, **bound.arguments)

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = Signature([own, *signature.parameters.values()])
    __init__.__qualname__ = f"{scheme.class_name}.__init__"
    rotary = scheme.describe(**scheme.example()).rotary_dims > 0
    bases = (_Rotary, SchemePosition) if rotary else (SchemePosition,)
    return type(
        scheme.class_name,
        bases,
        {
            "__init__": __init__,
            "__module__": "relpos",
            "__doc__": _doc(scheme),
            "__signature__": signature,
            "scheme": scheme,
        },
    )


def _doc(scheme: Scheme) -> str:
    lines = [scheme.summary, "", f"Source: {scheme.source}.", "", "Options:"]
    for option in scheme.options:
        choices = f" One of {', '.join(map(repr, option.choices))}." if option.choices else ""
        lines.append(f"  {option.name}: {option.doc}{choices}")
    lines += ["", "dense, indices, steps and describe print it; a + b composes it."]
    return "\n".join(lines)


CLASSES: dict[str, type[SchemePosition]] = {s.class_name: _class_of(s) for s in schemes()}
