"""What the C++ registry says about its schemes; needs no PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from relpos import _core
from relpos.gpu.mode import installed


@dataclass(frozen=True)
class Option:
    """One option of a scheme; `positional` ones may be given by place."""

    name: str
    type: str  # "bool", "int", "float", "choice", "choice or values"
    default: Any
    required: bool
    positional: bool
    choices: tuple[str, ...]
    doc: str
    aliases: tuple[str, ...]  # earlier names, which are read as `name`


@dataclass(frozen=True)
class Origin:
    """A name under which a parameter lives in other code."""

    project: str
    name: str
    transposed: bool  # whether its last two axes are swapped there


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter of a scheme under given options."""

    name: str  # dotted, as in the scheme's origin
    # Of an input: "batch", "heads", "queries", "keys" and "head_dim" are the call's; "any".
    shape: tuple[int | str, ...]
    init: str  # "values", "uniform", "normal", "turned"
    low: float  # bounds of the uniform
    high: float
    deviation: float  # of the normal
    values: tuple[float, ...]
    trainable: bool
    doc: str
    origins: tuple[Origin, ...]
    input: bool  # given with each call: position(tensor)
    cumulative: bool  # read as its sums along the last axis
    example: tuple[int | str, ...]  # the shape of one to draw, where nobody gives it
    integer: str  # the dtype of an input of integers, "int64" or "uint8"; "": of floating numbers


@dataclass(frozen=True)
class Description:
    """A scheme under given options."""

    text: str  # canonical, as the command line reads it
    options: dict[str, Any]
    parameters: tuple[ParameterSpec, ...]
    terms: tuple[str, ...]  # their kinds: "rotation", "distance bias", "row table", ...
    rotary_dims: int  # 0: no rotation
    rotary_heads: int  # key heads with frequencies of their own; 0: all turn alike
    reads_length: bool  # terms depend on the length of the call
    reads_positions: bool  # terms depend on where tokens stand
    places_tokens: bool  # tokens stand elsewhere than at their numbers
    arguments: str  # what stands in the parentheses of the text


@dataclass(frozen=True)
class Scheme:
    """One scheme of the registry, whose class is relpos.<class_name>; or a term of its own, which
    relpos.terms.<class_name> makes."""

    name: str
    class_name: str
    summary: str
    source: str
    headline: str  # the summary, and what a call needs to know besides
    family: str  # "rotation", "rows", "bias", "other": decided by its terms
    options: tuple[Option, ...]

    def signature(self) -> Signature:
        """The signature of the class."""
        placed = [option for option in self.options if option.positional]
        named = [option for option in self.options if not option.positional]
        return Signature(
            [_parameter(o, Parameter.POSITIONAL_OR_KEYWORD) for o in placed]
            + [_parameter(o, Parameter.KEYWORD_ONLY) for o in named]
        )

    def by_name(self, given: dict[str, Any]) -> dict[str, Any]:
        """`given` with the name of each option in place of an alias."""
        names = {alias: option.name for option in self.options for alias in option.aliases}
        named: dict[str, Any] = {}
        for key, value in given.items():
            name = names.get(key, key)
            if name in named:
                raise TypeError(f"multiple values for argument {name!r}")
            named[name] = value
        return named

    def example(self) -> dict[str, Any]:
        """The smallest options that construct it: required ones only."""
        return _core.example_options(self.name)

    def describe(self, **options: Any) -> Description:
        """Checks the options and names the parameters."""
        found = _core.describe(self.name, options)
        parameters = tuple(
            ParameterSpec(**{**spec, "origins": tuple(Origin(*o) for o in spec["origins"])})
            for spec in found["parameters"]
        )
        arguments = found["text"][len(self.name) + 1 : -1]
        return Description(**{**found, "parameters": parameters, "arguments": arguments})


def _parameter(option: Option, kind: Any) -> Parameter:
    return Parameter(
        option.name, kind, default=Parameter.empty if option.required else option.default
    )


def sizes(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _read(entries: Any) -> tuple[Scheme, ...]:
    return tuple(
        Scheme(**{**entry, "options": tuple(Option(**option) for option in entry["options"])})
        for entry in entries
    )


_SCHEMES = _read(_core.schemes())


def schemes() -> tuple[Scheme, ...]:
    """Every scheme of this build, with its class name, options and source."""
    return _SCHEMES


def term_schemes() -> tuple[Scheme, ...]:
    """The terms whose numbers are all given with the call, which relpos.terms make."""
    return _read(_core.term_schemes())


def show_config() -> dict[str, str]:
    """The SIMD target, threads, state after fork, what runs on the reference path, and by which
    Triton tensors of a GPU are computed."""
    return _core.show_config() | {"GPU": installed()}
