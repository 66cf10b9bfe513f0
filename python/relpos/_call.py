"""The options that all operators share, by name.

The fields of Call give the schema of the operators, the order of their flat arguments, the rule
for vmap and what relpos._core reads. An option is one field here, one reader in
python/bind_attention.cc, and an argument of relpos.attention.
"""

import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

from relpos import _core
from relpos._memory import check_memory, is_alike
from relpos._rank import check_rank

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Call(NamedTuple):
    """The options and the position of one call. Annotated tensors may have a batch axis; the
    number is their rank with this axis."""

    attn_mask: Annotated[Tensor | None, 4] = None
    key_padding_mask: Annotated[Tensor | None, 2] = None
    q_offsets: Annotated[Tensor | None, 1] = None
    k_offsets: Annotated[Tensor | None, 1] = None
    q_positions: Annotated[Tensor | None, 2] = None
    k_positions: Annotated[Tensor | None, 2] = None
    key_lo: Annotated[Tensor | None, 2] = None
    key_hi: Annotated[Tensor | None, 2] = None
    seed: Tensor | None = None
    position: str = ""  # its canonical text
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    float32_products: bool = False
    enable_gqa: bool = False
    window: Sequence[int] | None = None
    q_offset: int | None = None
    k_offset: int = 0
    # Where the call is a piece of a larger one (relpos.distributed): its first head of so many, the
    # length of the larger one, the numbers of its rows and columns by which dropout counts, and
    # whether the position's sinks join the softmax here.
    first_head: int = 0
    all_heads: int = 0
    length: int = 0
    dropout_rows: Tensor | None = None
    dropout_columns: Tensor | None = None
    adds_sinks: bool = True
    parameters: Sequence[Tensor] = ()  # of each part of the position: parameters, then inputs

    @classmethod
    def of(
        cls,
        query: Tensor,
        *,
        position: Any = None,
        attn_mask: Any = None,
        key_padding_mask: Any = None,
        seed: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        float32_products: bool = False,
        enable_gqa: bool = False,
        window: Any = None,
        q_offset: Any = None,
        k_offset: Any = 0,
        q_positions: Any = None,
        k_positions: Any = None,
        key_range: Any = None,
    ) -> "Call":
        """Checks the arguments of relpos.attention, except where their tensors lie; an argument
        that is not given costs nothing."""
        said: dict[str, Any] = {}
        if position is not None or sinks is not None:
            said["position"], said["parameters"] = _position_of(position, sinks, query)
        if attn_mask is not None:
            said["attn_mask"] = _tensor("attn_mask", attn_mask, (torch.bool, *FLOATING))
        if key_padding_mask is not None:
            said["key_padding_mask"] = _tensor("key_padding_mask", key_padding_mask, (torch.bool,))
        if seed is not None:
            said["seed"] = seed
        if type(dropout_p) is not float or dropout_p:
            said["dropout_p"] = number("dropout_p", dropout_p)
        if is_causal is not False:
            said["is_causal"] = flag("is_causal", is_causal)
        if scale is not None:
            said["scale"] = number("scale", scale)
        if softcap is not None:
            said["softcap"] = number("softcap", softcap)
        if float32_products is not False:
            said["float32_products"] = flag("float32_products", float32_products)
        if enable_gqa is not False:
            said["enable_gqa"] = flag("enable_gqa", enable_gqa)
        if window is not None:
            pair = _pair("window", window, "(left, right)")
            said["window"] = [_integer("window", bound) for bound in pair]
        if q_offset is not None:
            said.update(_offset("q_offset", q_offset, query))
        if type(k_offset) is not int or k_offset:
            said.update(_offset("k_offset", k_offset, query))
        if q_positions is not None:
            said["q_positions"] = _integers("q_positions", q_positions)
        if k_positions is not None:
            said["k_positions"] = _integers("k_positions", k_positions)
        if key_range is not None:
            pair = _pair("key_range", key_range, "(lo, hi)")
            said["key_lo"], said["key_hi"] = (_integers("key_range", bound) for bound in pair)
        return cls(**said)

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


_SCHEMA_TYPES = {
    Tensor | None: "Tensor?",
    str: "str",
    float: "float",
    float | None: "float?",
    bool: "bool",
    int: "SymInt",
    int | None: "SymInt?",
    Sequence[int] | None: "SymInt[]?",
    Sequence[Tensor]: "Tensor[]",
}
_HINTS = get_type_hints(Call)
SCHEMA = ", ".join(f"{_SCHEMA_TYPES[_HINTS[name]]} {name}" for name in Call._fields)
RANKS: dict[str, int] = {
    name: get_args(hint)[-1]
    for name, hint in get_type_hints(Call, include_extras=True).items()
    if hint is not _HINTS[name] and get_args(hint)[-1:] and isinstance(get_args(hint)[-1], int)
}
_TENSORS = [name for name in Call._fields if _HINTS[name] == Tensor | None]
_SINGLE = len(Call._fields) - 1  # fields besides the parameters
# Under what argument a field's tensor was given, where they differ.
_GIVEN_AS = {
    "q_offsets": "q_offset",
    "k_offsets": "k_offset",
    "key_lo": "key_range",
    "key_hi": "key_range",
}
_core.read_fields(Call._fields)


def flatten(position: Any) -> list[Any]:
    """The parts of None, a position, or a list of them."""
    if position is None:
        return []
    if hasattr(position, "_parts"):
        if isinstance(position, type):
            raise TypeError(
                f"position: expected a relpos position, got the class {position.__name__}: make "
                f"one, as help(relpos.{position.__name__}) says"
            )
        return position._parts()
    if isinstance(position, Iterable) and not isinstance(position, (str, Tensor)):
        return [part for member in position for part in flatten(member)]
    raise TypeError(
        "position: expected None, a relpos position or a list of them, got "
        f"{type(position).__name__}"
    )


def flat(position: Any) -> tuple[str, Sequence[Tensor]]:
    """The canonical text of a position and its tensors, as the operators take them."""
    if position is None:
        return "", ()
    parts = flatten(position)
    if len(parts) == 1:
        return parts[0]._text, parts[0]._values()
    text = "+".join([part._text for part in parts])
    return text, [value for part in parts for value in part._values()]


def _position_of(position: Any, sinks: Any, query: Tensor) -> tuple[str, Sequence[Tensor]]:
    """The text and the tensors of a position and of scores `sinks`, [H] or [B, H, Lq], if any."""
    text, tensors = flat(position)
    if sinks is not None:
        _tensor("sinks", sinks, FLOATING)
        check_rank("query", query, 4, "[B, H, Lq, D]")
        check_memory("sinks", sinks, query)
        heads = query.shape[1]
        if tuple(sinks.shape) not in ((heads,), tuple(query.shape[:3])):
            raise ValueError(
                f"sinks: expected [{heads}] or {list(query.shape[:3])}, got {list(sinks.shape)}"
            )
        per_query = "false" if sinks.dim() == 1 else "true"
        part = f"attention_sink(heads={heads}, per_query={per_query})"
        text, tensors = f"{text}+{part}" if text else part, (*tensors, sinks)
    return text, tensors


def check_parameters(text: str, tensors: Sequence[Any], like: Tensor, of: str = "query") -> None:
    """Raises, with the parameter's name, unless all tensors of a position lie where `like` does."""
    for n, tensor in enumerate(tensors):
        if not is_alike(tensor, like):
            name, *_ = _core.list_tensors(text)[n]
            check_memory(f"position: {name}", tensor, like, of)


def _tensor(name: str, tensor: Any, dtypes: tuple[torch.dtype, ...]) -> Tensor:
    expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a {expected} tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name}: expected {expected}, got {tensor.dtype}")
    return tensor


def _integers(name: str, tensor: Any) -> Tensor:
    return _tensor(name, tensor, (torch.int64, torch.int32)).to(torch.int64)


def _pair(name: str, pair: Any, what: str) -> Sequence[Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"{name}: expected a pair {what}, got {pair!r}")
    return pair


def _integer(name: str, value: Any) -> Any:
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"{name}: expected an int, got {value!r}") from None
    if not torch.compiler.is_compiling() and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: expected an int of 64 bits, got {value}")
    return value


def number(name: str, value: Any) -> float:
    if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
            raise TypeError(f"{name}: expected a number, got {value!r}")
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(
                f"{name}: expected a number, got a tensor that requires grad, whose gradient would "
                f"be lost: give {name}.item()"
            )
    return float(value)


def flag(name: str, value: Any) -> bool:
    """A bool, also one of NumPy."""
    if isinstance(value, (bool, torch.SymBool)):
        return bool(value)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name}: expected a bool, got {value!r}")


def plain_option(name: str, value: Any) -> Any:
    """An option as the registry takes it. Numbers and tensors of other libraries are converted."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise ValueError(
                f"{name}: expected a tensor without requires_grad, whose gradient would be lost: "
                "give its values, and train the module's own parameter"
            )
        value = value.detach().tolist()
    if isinstance(value, (list, tuple)):
        return [number(name, v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "tolist"):
        return plain_option(name, value.tolist())
    raise TypeError(f"{name}: expected a number, a text or numbers, got {type(value).__name__}")


def _offset(name: str, offset: Any, query: Any) -> dict[str, Any]:
    """One offset for each batch row, or one number."""
    if not isinstance(offset, Tensor):
        if offset is None:
            raise TypeError(f"{name}: expected an int or an int64 tensor, got None")
        return {name: _integer(name, offset)}
    rows = _integers(name, offset)
    return {f"{name}s": rows if rows.dim() else rows.expand(len(query))}
