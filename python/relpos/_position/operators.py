"""The operators of a position by itself: its dense form, its rotation, where it places tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.derivatives import apply, below, deal, flat_kernel, gradient, record
from relpos._base.operators import LIBRARY, define, define_gradient


def rotate(*args: Any) -> Tensor:
    """The rotated x, from (x, position, offset, positions, inverse, parameters)."""
    if not torch.compiler.is_compiling():
        return apply(Rotate, *args[:-1], *args[-1])
    return rotate_operator(*args)


def _place_tokens(position: str, keys: bool, tokens: Tensor) -> Tensor:
    placed = tokens.flatten().clone()
    _core.place_tokens(position, keys, placed)
    return placed.view(tokens.shape)


# Where a position places queries, or keys, by their numbers, int64 of any shape.
place_tokens = define(
    "place_tokens",
    "str position, bool keys, Tensor tokens",
    "Tensor",
    _place_tokens,
    lambda position, keys, tokens: tokens.new_empty(tokens.shape),
)


def _empty(
    parameters: Sequence[Tensor], shape: Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    """For what is made of parameters alone."""
    if dtype is None:
        dtype = parameters[0].dtype if parameters else torch.get_default_dtype()
        for parameter in parameters[1:]:
            dtype = torch.promote_types(dtype, parameter.dtype)
    return torch.empty(shape, dtype=dtype, device=parameters[0].device if parameters else "cpu")


def _dense_output(
    position: str, queries: int, keys: int, q_offset: int, which: str, parameters: Sequence[Tensor]
) -> Tensor:
    # The shape follows from the parameters' shapes, never from what they hold.
    grid = int(queries), int(keys), int(q_offset)
    return _empty(
        parameters, _core.dense_shape(position, *grid, which, [p.shape for p in parameters])
    )


def _dense(*args: Any) -> Tensor:
    out = _dense_output(*args)
    _core.dense(*args, out)
    return out


_GRID = "str position, SymInt queries, SymInt keys, SymInt q_offset, str which, Tensor[] parameters"
dense_operator = define(
    "dense", _GRID, "Tensor", _dense, _dense_output, ("CompositeExplicitAutograd",)
)
dense_backward = define_gradient(
    "dense_backward",
    "Tensor dout",
    _GRID,
    lambda given, arguments: arguments[-1],
    lambda given, arguments, gradients: _core.dense_backward(*arguments, *given, gradients),
)


def _rotate(x: Tensor, *setting: Any) -> Tensor:
    out = x.new_empty(x.shape)
    _core.rotate(x, *setting, out)
    return out


_SETTING = "str position, SymInt offset, Tensor? positions, bool inverse, Tensor[] parameters"
rotate_operator = define(
    "rotate", f"Tensor x, {_SETTING}", "Tensor", _rotate, lambda x, *_: x.new_empty(x.shape)
)
rotate_backward = define_gradient(
    "rotate_backward",
    "Tensor dout",
    f"Tensor x, {_SETTING}",
    lambda given, arguments: arguments[-1],
    lambda given, arguments, gradients: _core.rotate_backward(*arguments, *given, gradients),
)


class Rotate(torch.autograd.Function):
    """R(positions) x, from (x, position, offset, positions, inverse, *parameters). It is linear in
    x, so that its gradient can be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *args: Any) -> Tensor:
        return below(rotate_operator, x, *args[:4], args[4:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.position, ctx.offset, positions, ctx.inverse, *parameters = inputs
        ctx.trains = any(ctx.needs_input_grad[5:])
        ctx.save_for_backward(x if ctx.trains else None, positions, *parameters)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        x, positions, *parameters = ctx.saved_tensors
        setting = (ctx.position, ctx.offset, positions)
        turned = gradient(rotate_operator, dout, *setting, not ctx.inverse, parameters)
        needs, gradients = list(ctx.needs_input_grad[5:]), []
        if ctx.trains:
            rest = (x, *setting, ctx.inverse, parameters)
            gradients = gradient(rotate_backward, dout, needs, *rest)
        return turned, *[None] * 4, *deal(needs, gradients)


def _tables_outputs(
    position: str,
    length: int,
    offset: int,
    heads: int,
    dims: int,
    dtype: torch.dtype,
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    shape = (heads, length, dims) if heads else (length, dims)
    return _empty(parameters, shape, dtype), _empty(parameters, shape, dtype)


def _tables(position: str, length: int, offset: int, *args: Any) -> tuple[Tensor, Tensor]:
    cos, sin = _tables_outputs(position, length, offset, *args)
    _core.rotary_tables(position, offset, args[-1], cos, sin)
    return cos, sin


# heads: 0 where all turn alike, else the first axis of the tables.
_ROWS = (
    "str position, SymInt length, SymInt offset, int heads, int dims, ScalarType dtype, "
    "Tensor[] parameters"
)
tables_operator = define(
    "rotary_tables",
    _ROWS,
    "(Tensor cos, Tensor sin)",
    _tables,
    _tables_outputs,
    ("CompositeExplicitAutograd",),
)
tables_backward = define_gradient(
    "rotary_tables_backward",
    "Tensor dcos, Tensor dsin",
    _ROWS,
    lambda given, arguments: arguments[-1],
    lambda given, arguments, gradients: _core.rotary_tables_backward(
        arguments[0], arguments[2], arguments[-1], *given, gradients
    ),
)


class Made(torch.autograd.Function):
    """What an operator makes of parameters alone, from (operator, its gradient, how many settings,
    *settings, *parameters)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator: Any, backward: Any, count: int, *args: Any) -> Any:
        return below(operator, *args[:count], args[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.operator, ctx.count, *args = inputs
        ctx.settings = args[: ctx.count]
        ctx.save_for_backward(*args[ctx.count :])

    @staticmethod
    def backward(ctx: Any, *douts: Tensor) -> Any:
        before = 3 + ctx.count
        needs = list(ctx.needs_input_grad[before:])
        gradients = gradient(ctx.operator, *douts, needs, *ctx.settings, ctx.saved_tensors)
        return *[None] * before, *deal(needs, gradients)


def _making(name: str, operator: Any, backward: Any) -> Callable[..., Any]:
    def flat(*args: Any) -> tuple[Any, ...]:
        return operator, backward, len(args) - 1, *args[:-1], *args[-1]

    def make(*args: Any) -> Any:
        return operator(*args) if torch.compiler.is_compiling() else apply(Made, *flat(*args))

    LIBRARY.impl(name, lambda *args: record(Made, *flat(*args)), "Autograd")
    return make


# The dense form, from (position, queries, keys, q_offset, which, parameters).
dense = _making("dense", dense_operator, dense_backward)
# (cos, sin), from (position, length, offset, heads, dims, dtype, parameters).
rotary_tables = _making("rotary_tables", tables_operator, tables_backward)
LIBRARY.impl("rotate", flat_kernel(Rotate), "Autograd")
