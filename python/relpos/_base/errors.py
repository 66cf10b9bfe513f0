"""The wording of an error: what was expected, what came, and what to do."""

from typing import Any

from relpos._base.optional import Tensor


def wrong_type(name: str, expected: str, got: Any, then: str = "") -> TypeError:
    return TypeError(_text(name, expected, got, then))


def wrong_value(name: str, expected: str, got: Any, then: str = "") -> ValueError:
    return ValueError(_text(name, expected, got, then))


def kind_of(value: Any) -> str:
    return type(value).__name__


def shape_of(value: Any) -> str:
    """The shape of a tensor, or what the value is instead."""
    return str(list(value.shape)) if isinstance(value, Tensor) else kind_of(value)


def dtype_of(value: Any) -> str:
    """The dtype of a tensor, or what the value is instead."""
    return str(value.dtype) if isinstance(value, Tensor) else kind_of(value)


def _text(name: str, expected: str, got: Any, then: str) -> str:
    return f"{name}: expected {expected}, got {got}{then and f': {then}'}"
