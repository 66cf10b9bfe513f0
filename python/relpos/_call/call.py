"""One call as the operators take it: its options and its position, by name.

The fields of Call give the schema of the operators, the order of their flat arguments, the rule
for vmap and what relpos._core reads.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from relpos import _core
from relpos._base.tensors import check_memory, check_parameters
from relpos._call.distances import lowered
from relpos._call.options import OPTIONS, Field, part_of_sinks, refuse
from relpos._position.sum import flatten, lowers

_FIELDS = (
    *(field for option in OPTIONS.values() for field in option.fields),
    Field("seed", "Tensor?"),  # of dropout
    # Where the call is a piece of a larger one (relpos.distributed): its first head of so many, the
    # length of the larger one, the numbers of its rows and columns by which dropout counts, and
    # whether the position's sinks join the softmax here.
    Field("first_head", "SymInt", 0),
    Field("all_heads", "SymInt", 0),
    Field("length", "SymInt", 0),
    Field("dropout_rows", "Tensor?"),
    Field("dropout_columns", "Tensor?"),
    Field("adds_sinks", "bool", True),
    # Of each part of the position: parameters, then inputs.
    Field("parameters", "Tensor[]", ()),
)
SCHEMA = ", ".join(f"{field.type} {field.name}" for field in _FIELDS)
RANKS = {field.name: field.rank for field in _FIELDS if field.rank is not None}
_TENSORS = [field.name for field in _FIELDS if field.type == "Tensor?"]
_SINGLE = len(_FIELDS) - 1  # fields besides the parameters
_INDEX = {field.name: index for index, field in enumerate(_FIELDS)}
_DEFAULTS = [field.default for field in _FIELDS]
# Under what option a field's tensor was given.
_GIVEN_AS = {f.name: name for name, option in OPTIONS.items() for f in option.fields}


def _named() -> Any:
    names, defaults = zip(*((field.name, field.default) for field in _FIELDS), strict=True)
    return namedtuple("Call", names, defaults=defaults)


class Call(_named()):
    """The fields of one call, each with a value."""

    __slots__ = ()

    @classmethod
    def of(cls, function: str, query: Tensor, key: Tensor, options: Mapping[str, Any]) -> "Call":
        """Checks the options that a function was given, except where their tensors lie; an option
        that is not given costs nothing."""
        if lowers(options.get("position")):
            parts = lowered(query, key, options)
            options = {**options, "position": parts}
        sinks = options.get("sinks")
        if sinks is not None:
            parts = [*flatten(options.get("position")), part_of_sinks(sinks, query)]
            options = {**options, "position": parts}
        values = _DEFAULTS.copy()
        for name, value in options.items():
            option = OPTIONS.get(name)
            if option is None or function in option.not_of:
                refuse(function, name)
            if value is option.default:
                continue
            if option.convert is not None:
                values[_INDEX[name]] = option.convert(name, value)
            else:
                for field, held in option.spread(name, value, query).items():
                    values[_INDEX[field]] = held
        return cls._make(values)

    def flat(self) -> tuple[Any, ...]:
        """All fields, with the parameters one by one: an autograd Function does not look into
        lists."""
        return (*self[:-1], *self.parameters)

    @classmethod
    def unflat(cls, flat: Sequence[Any]) -> "Call":
        """The inverse of flat, also for other values that there are for each argument."""
        return cls(*flat[:_SINGLE], tuple(flat[_SINGLE:]))

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors in order, for with_tensors."""
        return (*[getattr(self, name) for name in _TENSORS], *self.parameters)

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "Call":
        named = dict(zip(_TENSORS, tensors, strict=False))
        return self._replace(**named, parameters=tuple(tensors[len(_TENSORS) :]))

    def without_tensors(self) -> "Call":
        return self.with_tensors([None] * len(_TENSORS))

    def check_memory(self, query: Tensor) -> None:
        """Raises unless all tensors are dense and on the device of query."""
        for field in _TENSORS:
            tensor = getattr(self, field)
            if tensor is not None and field != "seed":
                check_memory(_GIVEN_AS.get(field, field), tensor, query)
        check_parameters(self.position, self.parameters, query)


_core.read_fields(Call._fields)
