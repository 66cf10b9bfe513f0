"""One call as the operators take it: its options and its position, by name.

The fields of Call give the schema of the operators, the order of their flat arguments, the rule
for vmap and what relpos._core reads.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from relpos import _core
from relpos._call.options import OPTIONS, Field, library_of, refuse

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
TENSORS = [field.name for field in _FIELDS if field.type == "Tensor?"]
_tensors = attrgetter(*TENSORS)
_INDEX = {field.name: index for index, field in enumerate(_FIELDS)}
_PLACES = [_INDEX[name] for name in TENSORS]  # the parameters are last
_DEFAULTS = [field.default for field in _FIELDS]


def _named() -> Any:
    names, defaults = zip(*((field.name, field.default) for field in _FIELDS), strict=True)
    return namedtuple("Call", names, defaults=defaults)


class Call(_named()):
    """The fields of one call, each with a value."""

    __slots__ = ()

    @classmethod
    def of(cls, function: str, query: Any, key: Any, options: Mapping[str, Any]) -> "Call":
        """Checks the options that a function was given, except where their tensors lie; an option
        that is not given costs nothing."""
        if options.get("position") is not None or options.get("sinks") is not None:
            options = library_of(query).prepared(query, key, options)
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

    def apart(self) -> tuple["Call", tuple[Any, ...]]:
        """The call without its tensors, and what with_tensors takes: all of them in order, or
        nothing where there are none. An autograd Function does not look into a call."""
        tensors = (*_tensors(self), *self.parameters)
        for tensor in tensors:
            if tensor is not None:
                return self.with_tensors([None] * len(TENSORS)), tensors
        return self, ()

    def with_tensors(self, tensors: Sequence[Any]) -> "Call":
        """With tensors, or with other values that there are for each; without any, as it is."""
        if not tensors:
            return self
        values = list(self)
        for place, tensor in zip(_PLACES, tensors, strict=False):
            values[place] = tensor
        values[-1] = tuple(tensors[len(_PLACES) :])
        return self._make(values)


_core.read_fields(Call._fields)
