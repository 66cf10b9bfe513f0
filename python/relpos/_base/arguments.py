"""Arguments that are no tensors, as PyTorch, NumPy and plain Python give them."""

import numbers
import operator
from collections.abc import Sequence
from typing import Any

from relpos._base.errors import kind_of, wrong_type, wrong_value
from relpos._base.optional import SymBool, SymFloat, SymInt, Tensor, is_compiling

_BOOLS = (bool, SymBool)
_INTS = (int, SymInt)
_NUMBERS = (float, *_INTS, SymFloat)


def number(name: str, value: Any) -> float:
    if not isinstance(value, _NUMBERS):
        if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
            raise wrong_type(name, "a number", repr(value))
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(
                f"{name}: expected a number, got a tensor that requires grad, whose gradient would "
                f"be lost: give {name}.item()"
            )
    return float(value)


def flag(name: str, value: Any) -> bool:
    """A bool, also one of NumPy."""
    if isinstance(value, _BOOLS):
        return bool(value)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    raise wrong_type(name, "a bool", repr(value))


def integer(name: str, value: Any, least: int | None = None) -> Any:
    if not isinstance(value, _INTS) or isinstance(value, bool):
        try:
            value = operator.index(value)
        except TypeError:
            raise wrong_type(name, "an int", repr(value)) from None
    if not is_compiling() and not -(2**63) <= value < 2**63:
        raise wrong_value(name, "an int of 64 bits", value)
    if least is not None and value < least:
        raise wrong_value(name, f"an int from {least} on", value)
    return value


def two_of(name: str, value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise wrong_type(name, f"a pair {what}", repr(value))
    return value


def one_of(name: str, value: Any, choices: Sequence[str]) -> Any:
    if value not in choices:
        raise wrong_value(name, f"one of {', '.join(choices)}", repr(value))
    return value


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
    raise wrong_type(name, "a number, a text or numbers", kind_of(value))
