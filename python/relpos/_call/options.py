"""The options of a call: the one list from which attention, scores, attention_varlen, the cache,
MultiheadAttention, the ring, the functions for Hugging Face and relpos.numpy take theirs.

A new option is three places: an entry here, one of its field in src/call/call_options.cc, and a
member of relpos::Options, which the kernels' side acts on. The entry says its type for users, its
default, how it is checked and by which fields it reaches the operators.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, NoReturn, Protocol, TypedDict, TypeVar

from relpos._base.arguments import flag, integer, number, two_of
from relpos._base.errors import wrong_type, wrong_value

try:
    from torch import Tensor

    from relpos._mask.tile_mask import TileMask
    from relpos._position.sum import Composed
except ModuleNotFoundError:  # torch is; these are said to users of torch alone
    Tensor = TileMask = Composed = Any  # type: ignore[assignment, misc]

Function = TypeVar("Function", bound=Callable[..., Any])


class Field(NamedTuple):
    """One argument of the operators, which relpos._core reads by its name."""

    name: str
    type: str  # in a schema of torch.library
    default: Any = None
    rank: int | None = None  # of a tensor that may have a batch axis, with this axis


class Option(NamedTuple):
    """How an option enters a call."""

    fields: tuple[Field, ...] = ()
    default: Any = None
    compared: str = ""  # between ranks: "value", "given" (whether it is), or not
    # The checked value of its field, from its name and its value, or else
    convert: Callable[[str, Any], Any] | None = None
    # its fields, from its name, its value and the query.
    spread: Callable[[str, Any, Any], Mapping[str, Any]] | None = None
    not_of: frozenset[str] = frozenset()  # the functions that do not take it


class Tensors(Protocol):
    """What options ask of the tensors of one library. Errors start with the name."""

    def tensor(self, name: str, value: Any, kinds: Sequence[str]) -> Any:
        """The tensor, if it is of one of these kinds: "bool", "floating"."""

    def integers(self, name: str, value: Any) -> Any:
        """int64, of a tensor of integers."""

    def rows(self, name: str, value: Any, query: Any) -> Any:
        """int64 [B], of one number for each batch row or for all; None of what is no tensor."""

    def tiles(self, name: str, value: Any, query: Any) -> tuple[Any, ...] | None:
        """(ranges, entries, words, lengths) of a TileMask; None of another mask."""

    def seed(self) -> Any:
        """What a call with dropout draws by; None where it is given."""

    def position(self, value: Any) -> tuple[str, Sequence[Any]]:
        """The canonical text and the tensors."""

    def prepared(self, query: Any, key: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options, with positions that are terms, and sinks among them."""


# By the type of a call's query. PyTorch's is the first where it is installed.
LIBRARIES: dict[type, Tensors] = {}


def library_of(query: Any) -> Tensors:
    """Of what is no tensor of any, the first, since the call refuses it."""
    known = LIBRARIES.get(type(query))
    if known is not None:
        return known
    found = (each for kind, each in LIBRARIES.items() if isinstance(query, kind))
    return next(found, None) or next(iter(LIBRARIES.values()))


def _flag(name: str) -> Option:
    return Option((Field(name, "bool", False),), False, "value", flag)


def _number(name: str) -> Option:
    return Option((Field(name, "float?"),), None, "value", number)


def _integers(name: str) -> Option:
    def spread(name: str, value: Any, query: Any) -> dict[str, Any]:
        return {name: library_of(query).integers(name, value)}

    return Option((Field(name, "Tensor?", None, 2),), None, "given", spread=spread)


def _offset(name: str, type: str, default: int | None) -> Option:
    fields = (Field(name, type, default), Field(f"{name}s", "Tensor?", None, 1))
    return Option(fields, default, "value", spread=offset_fields)


def offset_fields(name: str, offset: Any, query: Any) -> dict[str, Any]:
    """One offset for each batch row, or one number."""
    if offset is None:
        raise wrong_type(name, "an int or an int64 tensor", None)
    rows = library_of(query).rows(name, offset, query)
    return {name: integer(name, offset)} if rows is None else {f"{name}s": rows}


def _mask(name: str, value: Any, query: Any) -> Mapping[str, Any]:
    library = library_of(query)
    tiles = library.tiles(name, value, query)
    if tiles is None:
        return {name: library.tensor(name, value, ("bool", "floating"))}
    names = ("tile_ranges", "tile_entries", "tile_words", "tile_lengths")
    return dict(zip(names, tiles, strict=True))


def _padding(name: str, value: Any, query: Any) -> Mapping[str, Any]:
    return {name: library_of(query).tensor(name, value, ("bool",))}


def _dropout(name: str, value: Any, query: Any) -> Mapping[str, Any]:
    probability = number(name, value)
    if not 0.0 <= probability <= 1.0:
        raise wrong_value(name, "0 <= dropout_p <= 1", value)
    if probability == 0.0:
        return {}
    return {name: probability, "seed": library_of(query).seed()}


def _window(name: str, value: Any) -> list[int]:
    return [integer(name, bound) for bound in two_of(name, value, "(left, right)")]


def _key_range(name: str, value: Any, query: Any) -> Mapping[str, Any]:
    library = library_of(query)
    lo, hi = (library.integers(name, bound) for bound in two_of(name, value, "(lo, hi)"))
    return {"key_lo": lo, "key_hi": hi}


def _position(name: str, value: Any, query: Any) -> Mapping[str, Any]:
    text, tensors = library_of(query).position(value)
    return {name: text, "parameters": tensors}


def sinks_text(shape: Sequence[int]) -> str:
    """The part of a position that sinks [H] or [B, H, Lq] are."""
    per_query, heads = ("false", shape[0]) if len(shape) == 1 else ("true", shape[1])
    return f"attention_sink(heads={heads}, per_query={per_query})"


def with_sinks(position: str, sinks: Any, query: Any) -> str:
    """The text of a position and of sinks, whose shape is checked."""
    if tuple(sinks.shape) not in ((query.shape[1],), tuple(query.shape[:3])):
        wanted = f"{[query.shape[1]]} or {[*query.shape[:3]]}"
        raise wrong_value("sinks", wanted, str([*sinks.shape]))
    return "+".join(filter(None, (position, sinks_text(sinks.shape))))


class Common(TypedDict, total=False):
    """What all functions take."""

    position: Annotated[
        Composed | Sequence[Composed] | None,
        Option((Field("position", "str", ""),), spread=_position),
    ]
    is_causal: Annotated[bool, _flag("is_causal")]
    scale: Annotated[float | None, _number("scale")]
    enable_gqa: Annotated[bool, _flag("enable_gqa")]
    window: Annotated[
        tuple[int, int] | None,
        Option((Field("window", "SymInt[]?"),), None, "value", _window),
    ]
    q_offset: Annotated[int | Tensor | None, _offset("q_offset", "SymInt?", None)]
    softcap: Annotated[float | None, _number("softcap")]


class OfPairs(Common, total=False):
    """What those take that have one sequence of queries and one of keys in each batch row."""

    attn_mask: Annotated[
        Tensor | TileMask | None,
        Option(
            (
                Field("attn_mask", "Tensor?", None, 4),
                Field("tile_ranges", "Tensor?", None, 4),
                Field("tile_entries", "Tensor?"),
                Field("tile_words", "Tensor?"),
                Field("tile_lengths", "SymInt[]?"),  # queries and keys
            ),
            spread=_mask,
        ),
    ]
    key_padding_mask: Annotated[
        Tensor | None,
        Option((Field("key_padding_mask", "Tensor?", None, 2),), None, "given", spread=_padding),
    ]
    k_offset: Annotated[int | Tensor, _offset("k_offset", "SymInt", 0)]
    q_positions: Annotated[Tensor | None, _integers("q_positions")]
    k_positions: Annotated[Tensor | None, _integers("k_positions")]
    key_range: Annotated[
        tuple[Tensor, Tensor] | None,
        Option(
            (Field("key_lo", "Tensor?", None, 2), Field("key_hi", "Tensor?", None, 2)),
            None,
            "given",
            spread=_key_range,
        ),
    ]


class OfSoftmax(Common, total=False):
    """What those take that have a softmax and values."""

    dropout_p: Annotated[
        float, Option((Field("dropout_p", "float", 0.0),), 0.0, "value", spread=_dropout)
    ]
    # Call.of makes them a part of the position.
    sinks: Annotated[Tensor | None, Option(spread=lambda *_: {})]
    float32_products: Annotated[bool, _flag("float32_products")]


class Options(OfPairs, OfSoftmax, total=False):
    """All of them."""


def _listed() -> dict[str, Option]:
    found = {}
    for name, hint in Options.__annotations__.items():
        functions = {"attention_varlen": OfSoftmax, "scores": OfPairs}
        without = {f for f, group in functions.items() if name not in group.__annotations__}
        found[name] = hint.__metadata__[0]._replace(not_of=frozenset(without))
    return found


OPTIONS = _listed()
PLACES = ("q_offset", "k_offset", "q_positions", "k_positions")  # where queries and keys stand


def check_names(
    function: str, options: Mapping[str, Any], instead: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises TypeError unless the function takes options of these names. instead: what to give in
    place of some that it does not take."""
    for name in options:
        option = OPTIONS.get(name)
        if option is None or function in option.not_of:
            refuse(function, name, instead.get(name, ""))


def refuse(function: str, name: str, instead: str = "") -> NoReturn:
    then = f": {instead}" if instead else ""
    raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{then}")


def takes(
    group: Any, *, without: Sequence[str] = (), **defaults: Any
) -> Callable[[Function], Function]:
    """Writes the options of a group into the signature of a function that takes them by
    **options, for help() and inspect."""

    def shown(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {*without, *(p.name for p in own)}
        hints = group.__annotations__
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, option.default),
                annotation=hints[name].__origin__,
            )
            for name, option in OPTIONS.items()
            if name in hints and name not in taken
        ]
        placed = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        named = [p for p in own if p.kind is p.KEYWORD_ONLY]
        parameters = [*placed, *added, *named]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return shown
