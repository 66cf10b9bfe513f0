"""Positions as torch modules: one class for each scheme of the registry, and their sums."""

import math
import numbers
from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Any, overload

import torch
from torch import Tensor

from relpos import _autograd, _core
from relpos._call import _integer, flatten, plain_option
from relpos._rank import check_rank
from relpos._registry import ParameterSpec, Scheme, schemes
from relpos._rope import from_config


class Composed:
    """What can be added to other positions and given to relpos.attention(position=...)."""

    def __add__(self, other: "Composed") -> "Composed":
        return GivenSum(self, other) if isinstance(other, Composed) else NotImplemented

    def __radd__(self, other: Any) -> "Composed":
        if isinstance(other, numbers.Integral) and other == 0:  # sum() starts there
            return self
        return NotImplemented

    def _parts(self) -> list["OnePart"]:
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

    def steps(self, queries: int, keys: int, q_offset: int | None = None) -> list:
        """The matrices between positions and scores, in the order in which a teaching notebook
        computes them: (name, matrix)."""
        raise NotImplementedError

    def describe(self) -> str:
        """The scheme, its options, its parameters and where it comes from."""
        raise NotImplementedError


class OnePart(Composed):
    """One scheme: its canonical text and its tensors."""

    _text: str
    _rotary_dims: int
    _rotary_heads: int
    _reads_length: bool  # its terms depend on the length of the call
    _reads_positions: bool  # its terms depend on where tokens stand
    _places_tokens: bool  # tokens stand elsewhere than at their numbers
    _cumulative: Sequence[int]  # which of its values are read as their sums along the last axis

    def _parts(self) -> list["OnePart"]:
        return [self]

    def _values(self) -> list[Tensor]:
        """The tensors of a call: parameters, then inputs."""
        raise NotImplementedError

    def _read(self) -> list[Tensor]:
        """_values for what reads their memory without the dispatcher."""
        return [x.resolve_neg() if isinstance(x, Tensor) else x for x in self._values()]

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> Any:
        queries, keys, offset = _grid(queries, keys, q_offset)
        if self._rotary_dims:
            if which != "key":
                raise ValueError(f"which: expected 'key' for a rotation, got {which!r}")
            return self.tables(queries, offset), self.tables(keys)
        return _autograd.dense(self._text, queries, keys, offset, which, self._values())

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> Tensor:
        queries, keys, offset = _grid(queries, keys, q_offset)
        out = torch.empty(queries, keys, dtype=torch.int64, device="cpu")
        _core.indices(self._text, queries, keys, offset, self._read(), out)
        return out

    def steps(
        self, queries: int, keys: int, q_offset: int | None = None
    ) -> list[tuple[str, Tensor]]:
        grid = _grid(queries, keys, q_offset)
        found = _core.steps(self._text, *grid, self._read())
        return [(name, _matrix(kind, shape, values)) for name, kind, shape, values in found]


class Position(Composed, torch.nn.Module):
    """A relative position: give it to relpos.attention(position=...), add it to another."""

    @overload
    def __add__(self, other: "Position") -> "Sum": ...
    @overload
    def __add__(self, other: Composed) -> Composed: ...
    def __add__(self, other: Any) -> Any:
        return Sum(self, other) if isinstance(other, Position) else super().__add__(other)


class SchemePosition(OnePart, Position):
    """A position of one scheme. Fixed values are buffers outside the state dict, always float32
    or float64, and follow the module's device."""

    scheme: Scheme

    def __init__(self, **options: Any) -> None:
        super().__init__()
        for option in self.scheme.options:
            options[option.name] = plain_option(option.name, options[option.name])
        description = self.scheme.describe(**options)
        self._text = description.text
        self._specs = [spec for spec in description.parameters if not spec.input]
        self._inputs = [spec for spec in description.parameters if spec.input]
        paths = [tuple(spec.name.split(".")) for spec in self._specs]
        self._places = [
            (p[:-1], p[-1], spec.trainable) for p, spec in zip(paths, self._specs, strict=True)
        ]
        self._rotary_dims = description.rotary_dims
        self._rotary_heads = description.rotary_heads
        self._reads_length = description.reads_length
        self._reads_positions = description.reads_positions
        self._places_tokens = description.places_tokens
        ordered = [*self._specs, *self._inputs]
        self._cumulative = [n for n, spec in enumerate(ordered) if spec.cumulative]
        for spec in self._specs:
            owner, name = self._owner(spec.name)
            values = _initial(spec)
            if spec.trainable:
                owner.register_parameter(name, torch.nn.Parameter(values))
            else:
                owner.register_buffer(name, values, persistent=False)
        for name, value in description.options.items():
            if not hasattr(self, name):  # a parameter may have the name of the option that fills it
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

    def _held(self) -> list[Tensor]:
        """Parameters and fixed values, read without Module.__getattr__, which is slow."""
        found = []
        for path, name, trainable in self._places:
            owner: torch.nn.Module = self
            for step in path:
                owner = owner._modules[step]
            value = (owner._parameters if trainable else owner._buffers).get(name)
            found.append(getattr(owner, name) if value is None else value)
        return found

    def _values(self) -> list[Tensor]:
        if self._inputs:
            raise ValueError(f"position: {self._wanted()}, got the position alone")
        return self._held()

    def _wanted(self) -> str:
        names = ", ".join(spec.name for spec in self._inputs)
        sizes = ", ".join(f"{spec.name} {_sizes(spec.shape)}" for spec in self._inputs)
        return (
            f"{type(self).__name__} needs {sizes} for each call: expected it called, as in "
            f"position=position({names})"
        )

    def forward(self, *inputs: Tensor, **named: Tensor) -> "Given":
        """The position of one call, given its inputs by place or by name (see describe())."""
        if not self._inputs:
            raise ValueError(
                f"{type(self).__name__}: has no inputs of a call; expected position=position, got "
                "it called"
            )
        names = [spec.name for spec in self._inputs]
        given = {**dict(zip(names, inputs, strict=False)), **named}
        if len(inputs) + len(named) != len(names) or given.keys() != set(names):
            got = [f"{len(inputs)} by place", *named]
            raise ValueError(f"position: {self._wanted()}, got {', '.join(got)}")
        for name, tensor in given.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        values = [*self._held(), *[given[name] for name in names]]
        return Given(self._text, values, self)

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

        load_state_dict accepts these names as well as those of relpos. describe() and
        docs/schemes.md list the projects. Raises ValueError where `project` has no name for a
        parameter under these options.
        """
        state = {}
        for spec, value in zip(self._specs, self._held(), strict=True):
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
        """Initialises the trainable parameters again."""
        with torch.no_grad():
            for spec, value in zip(self._specs, self._held(), strict=True):
                value.copy_(_initial(spec))

    def describe(self) -> str:
        lines = [f"{self._text}: {self.scheme.summary}", f"  from {self.scheme.source}"]
        for spec, value in zip(self._specs, self._held(), strict=True):
            kind = "parameter" if isinstance(value, torch.nn.Parameter) else "fixed"
            dtype = str(value.dtype).removeprefix("torch.")
            lines.append(f"  {kind} {spec.name} {_sizes(value.shape)} {dtype}: {spec.doc}")
            for origin in spec.origins:
                form = ", transposed" if origin.transposed else ""
                lines.append(f"    in {origin.project}: {origin.name}{form}")
        for spec in self._inputs:
            lines.append(f"  input {spec.name} {_sizes(spec.shape)}, of each call: {spec.doc}")
        return "\n".join(lines)

    def extra_repr(self) -> str:
        return self._text.partition("(")[2].removesuffix(")")


class _Rotary:
    """Further methods of a position with a rotation."""

    @staticmethod
    def from_config(config: Any, *, layer_type: str | None = None) -> SchemePosition:
        """The rotation that a model with this configuration of transformers applies.

        Args:
          config: a text configuration, with rope_parameters, or rope_theta and rope_scaling as
            before transformers 5.
          layer_type: which layers, where the configuration has a rotation for each type of layer.

        Returns the position for the configuration's rope_type, with angles computed as
        transformers computes them. Raises ValueError where relpos has no class for it.
        """
        return from_config(config, layer_type)

    def tables(
        self, length: int, offset: int = 0, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """cos, sin [length, rotary_dim] of the positions offset, offset + 1, ... Each angle occurs
        twice, as the pair layout says. Where heads learn their frequencies, the tables are
        [kv_heads, length, rotary_dim], of the frequencies' dtype, and differentiable."""
        length, offset = _count("length", length), _integer("offset", offset)
        values, sizes = self._values(), (self._rotary_heads, self._rotary_dims)
        if dtype is None:
            own = values[0].dtype if self._rotary_heads else torch.get_default_dtype()
            dtype = torch.float64 if own == torch.float64 else torch.float32
        return _autograd.rotary_tables(self._text, length, offset, *sizes, dtype, values)

    def rotate(self, x: Tensor, offset: int = 0, positions: Tensor | None = None) -> Tensor:
        """x [..., L, D] rotated; row n is at position offset + n, or at positions[n], int64 [L].
        Where heads learn their own frequencies, x is [..., heads, L, D]."""
        check_rank("x", x, 2, "[..., L, D]", or_more=True)
        offset = _integer("offset", offset)
        folded = x.flatten(0, -4) if x.dim() > 4 else x
        out = _autograd.rotate(folded, self._text, offset, positions, False, self._values())
        return out.view(x.shape) if x.dim() > 4 else out


class Given(OnePart):
    """One scheme with tensors from elsewhere: those of another library's model, or the parameters
    of a position with the inputs of one call. `of`: the part whose tensors they replace."""

    _rotary_dims = _rotary_heads = 0

    def __init__(self, text: str, values: Sequence[Tensor], of: OnePart | None = None) -> None:
        self._text = text
        self._tensors = list(values)
        self._reads_length = of is not None and of._reads_length
        self._reads_positions = of is None or of._reads_positions
        self._places_tokens = of is not None and of._places_tokens
        self._cumulative = () if of is None else of._cumulative

    def _values(self) -> list[Tensor]:
        return self._tensors

    def describe(self) -> str:
        return self._text


class Several(Composed):
    """Several parts. dense and indices return a list with one entry for each part; steps and
    describe join those of all parts in order."""

    parts: Any

    def _parts(self) -> list[OnePart]:
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


class GivenSum(Several):
    """Several positions of one call, some of them with its inputs."""

    def __init__(self, *parts: Any) -> None:
        self.parts = flatten(parts)


class Sum(Several, Position):
    """Several positions at once; the terms of all of them apply.

    relpos.Sum(a, b), a + b, sum([a, b]) and a list given to attention mean the same. dense and
    indices return a list with one entry for each part; steps and describe join those of all parts
    in order. If some parts need inputs of each call, call the sum with the inputs of all its parts,
    in their order.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(flatten(parts))

    def forward(self, *inputs: Tensor) -> GivenSum:
        """The position of one call. Give the inputs of all parts that have some, in their order."""
        wanted = [spec.name for part in self.parts for spec in part._inputs]
        if not wanted or len(inputs) != len(wanted):
            names = ", ".join(wanted) or "none, position=position"
            raise ValueError(f"position: expected its inputs {names}, got {len(inputs)}")
        following = iter(inputs)
        return GivenSum(
            *(
                part(*(next(following) for _ in part._inputs)) if part._inputs else part
                for part in self.parts
            )
        )


def _initial(spec: ParameterSpec, dtype: torch.dtype = torch.float32) -> Tensor:
    if spec.init == "values":
        values = torch.tensor(spec.values, dtype=dtype)
        return (
            (values.expand(math.prod(spec.shape)) if len(spec.values) == 1 else values)
            .reshape(spec.shape)
            .clone()
        )
    if spec.init == "turned":  # the vectors [2, n] of one head, each head's by a random angle
        of = torch.tensor(spec.values, dtype=dtype).view(2, 1, -1)
        angle = torch.empty(spec.shape[1], 1, dtype=dtype).uniform_(0.0, 2.0 * math.pi)
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([cos * of[0] - sin * of[1], sin * of[0] + cos * of[1]])
    values = torch.empty(spec.shape, dtype=dtype)
    if spec.init == "uniform":
        return values.uniform_(spec.low, spec.high)
    return values.normal_(0.0, spec.deviation)


def _sizes(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _count(name: str, value: Any) -> int:
    value = _integer(name, value)
    if value < 0:
        raise ValueError(f"{name}: expected an int from 0 on, got {value}")
    return value


def _grid(queries: Any, keys: Any, q_offset: Any) -> tuple[int, int, int]:
    """How many queries and keys, and where query 0 is."""
    queries, keys = _count("queries", queries), _count("keys", keys)
    if q_offset is not None:
        return queries, keys, _integer("q_offset", q_offset)
    return queries, keys, 0 if queries == keys else _core.grid_offset(queries, keys, None)


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
            bound = signature.bind(*args, **scheme.by_name(kwargs))
        except TypeError as error:
            raise TypeError(f"{scheme.class_name}{signature}: {error}") from None
        bound.apply_defaults()
        SchemePosition.__init__(self, **bound.arguments)

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = Signature([own, *signature.parameters.values()])
    __init__.__qualname__ = f"{scheme.class_name}.__init__"
    description = scheme.describe(**scheme.example())
    bases = (_Rotary, SchemePosition) if description.rotary_dims else (SchemePosition,)
    return type(
        scheme.class_name,
        bases,
        {
            "__init__": __init__,
            "__module__": "relpos",
            "__doc__": _doc(scheme, [s for s in description.parameters if s.input]),
            "__signature__": signature,
            "scheme": scheme,
        },
    )


def _doc(scheme: Scheme, inputs: list[ParameterSpec]) -> str:
    lines = [scheme.headline, "", f"Source: {scheme.source}.", "", "Options:"]
    for option in scheme.options:
        choices = f" One of {', '.join(map(repr, option.choices))}." if option.choices else ""
        also = f" Also: {', '.join(option.aliases)}." if option.aliases else ""
        lines.append(f"  {option.name}: {option.doc}{choices}{also}")
    if inputs:
        names = ", ".join(spec.name for spec in inputs)
        lines += ["", f"Inputs of each call, position({names}):"]
        lines += [f"  {spec.name} {_sizes(spec.shape)}: {spec.doc}" for spec in inputs]
    lines += [
        "",
        "The methods dense, indices, steps and describe show it; a + b adds two positions.",
    ]
    return "\n".join(lines)


CLASSES: dict[str, type[SchemePosition]] = {s.class_name: _class_of(s) for s in schemes()}
