"""The operators torch.ops.relpos.*: checked by the C++ library, opaque to PyTorch.

relpos._autograd gives them their derivatives.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _core

_DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.bool: 6,
}

# Name and schema type of what every call shares, tensors first: the order of bind_attention.cc.
OPTIONS = (
    ("attn_mask", "Tensor?"),
    ("key_padding_mask", "Tensor?"),
    ("q_offsets", "Tensor?"),
    ("k_offsets", "Tensor?"),
    ("q_positions", "Tensor?"),
    ("k_positions", "Tensor?"),
    ("key_lo", "Tensor?"),
    ("key_hi", "Tensor?"),
    ("seed", "Tensor?"),
    ("position", "str"),
    ("dropout_p", "float"),
    ("is_causal", "bool"),
    ("scale", "float?"),
    ("enable_gqa", "bool"),
    ("window", "SymInt[]?"),
    ("q_offset", "SymInt?"),
    ("k_offset", "SymInt"),
)
OPTION_TENSORS = sum(kind == "Tensor?" for _, kind in OPTIONS)


def view(tensor: Tensor | None) -> tuple[int, int, Sequence[int], Sequence[int]] | None:
    """A tensor as relpos._core reads it: address, dtype, shape, strides in elements."""
    if tensor is None:
        return None
    if not tensor.is_cpu:
        raise ValueError(f"expected a tensor on the CPU, got {tensor.device}: move it with .cpu()")
    code = _DTYPES.get(tensor.dtype)
    if code is None:
        raise TypeError(f"expected a floating, integer or bool tensor, got {tensor.dtype}")
    return tensor.data_ptr(), code, tensor.shape, tensor.stride()


def views(tensors: Sequence[Tensor | None]) -> list:
    return [view(tensor) for tensor in tensors]


_ZERO = array("d", [0.0])


def zeros(*shape: int) -> tuple[int, int, Sequence[int], Sequence[int]]:
    """The view of a float64 tensor of zeros, of no memory and whatever mode torch is in."""
    return _ZERO.buffer_info()[0], _DTYPES[torch.float64], shape, (0,) * len(shape)


def option_views(options: Sequence[Any]) -> tuple:
    """The shared options with their tensors as views, as relpos._core reads them."""
    scalars = list(options[OPTION_TENSORS:])
    if scalars[5] is not None:
        scalars[5] = tuple(scalars[5])
    return (*views(options[:OPTION_TENSORS]), *scalars)


def _empty_like(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _empty_where(needs: Sequence[bool], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [_empty_like(t) if need else None for need, t in zip(needs, tensors, strict=True)]


def _given(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


LIBRARY = torch.library.Library("relpos", "DEF")
_SHARED = ", ".join(["Tensor[] parameters", *(f"{kind} {name}" for name, kind in OPTIONS)])


def _define(name: str, arguments: str, returns: str, run: Any, fake: Any, key: str = "CPU") -> Any:
    LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"relpos::{name}", fake, lib=LIBRARY)
    torch.library.register_vmap(f"relpos::{name}", _loop(name), lib=LIBRARY)
    return getattr(torch.ops.relpos, name).default


def _loop(name: str) -> Any:
    """The batching rule of every operator: one call for each slice."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        def slices(value: Any, dim: Any, n: int) -> Any:
            if isinstance(dim, (list, tuple)):
                return [slices(v, d, n) for v, d in zip(value, dim, strict=True)]
            return value if dim is None else value.select(dim, n)

        overload = getattr(torch.ops.relpos, name).default
        results = [
            overload(*(slices(a, d, n) for a, d in zip(args, in_dims, strict=True)))
            for n in range(info.batch_size)
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = [torch.stack(column) for column in zip(*results, strict=True)]
        if isinstance(results[0], tuple):
            return tuple(stacked), (0,) * len(stacked)
        return stacked, [0] * len(stacked)

    return rule


def _attention_out(query: Tensor, value: Tensor) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


def _attention_lse(query: Tensor) -> Tensor:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(query.shape[:3], dtype=wide)


def _attention_softmax(query: Tensor) -> Tensor:
    """For what the forward pass leaves of the softmax to the backward pass: two numbers a row."""
    return _attention_lse(query).new_empty((*query.shape[:3], 2))


def _attention_outputs(
    query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _attention_out(query, value), _attention_lse(query), _attention_softmax(query)


def run_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameters: Any,
    *options: Any,
    want_lse: bool = True,
    want_softmax: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(out, lse, softmax), past the dispatcher; None for what is not wanted."""
    out = _attention_out(query, value)
    lse = _attention_lse(query) if want_lse else None
    softmax = _attention_softmax(query) if want_softmax else None
    _core.attention(
        view(query),
        view(key),
        view(value),
        option_views(options),
        views(parameters),
        view(out),
        view(lse),
        view(softmax),
    )
    return out, lse, softmax


attention = _define(
    "attention",
    f"Tensor query, Tensor key, Tensor value, {_SHARED}",
    "(Tensor out, Tensor lse, Tensor softmax)",
    run_attention,
    _attention_outputs,
)


def _attention_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    softmax: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    needs: Sequence[bool],
    parameters: Sequence[Tensor],
    attn_mask: Tensor | None,
    *_: Any,
) -> list[Tensor | None]:
    return _empty_where(needs, [query, key, value, attn_mask, *parameters])


def _attention_backward(*args: Any) -> list[Tensor]:
    query, key, value, out, softmax, dout, dlse, _, parameters, *options = args
    gradients = _attention_gradients(*args)
    _core.attention_backward(
        tuple(views((query, key, value, out, softmax, dout, dlse))),
        option_views(options),
        views(parameters),
        tuple(views(gradients[:4])),
        views(gradients[4:]),
    )
    return _given(gradients)


# needs: query, key, value, attn_mask, then each parameter. Returns the needed ones in that order.
attention_backward = _define(
    "attention_backward",
    "Tensor query, Tensor key, Tensor value, Tensor out, Tensor softmax, Tensor dout, "
    f"Tensor? dlse, bool[] needs, {_SHARED}",
    "Tensor[]",
    _attention_backward,
    lambda *args: _given(_attention_gradients(*args)),
)


def _dense_pairs(query: Tensor, key: Tensor, *_: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], key.shape[2]))


def _weights(query: Tensor, key: Tensor, softmax: Tensor, parameters: Any, *options: Any) -> Tensor:
    weights = _dense_pairs(query, key)
    _core.attention_weights(
        view(query),
        view(key),
        view(softmax),
        option_views(options),
        views(parameters),
        view(weights),
    )
    return weights


weights = _define(
    "weights",
    f"Tensor query, Tensor key, Tensor softmax, {_SHARED}",
    "Tensor",
    _weights,
    _dense_pairs,
)


def _scores(query: Tensor, key: Tensor, parameters: Any, *options: Any) -> Tensor:
    out = _dense_pairs(query, key)
    _core.scores(view(query), view(key), option_views(options), views(parameters), view(out))
    return out


scores = _define("scores", f"Tensor query, Tensor key, {_SHARED}", "Tensor", _scores, _dense_pairs)


def _scores_gradients(
    query: Tensor,
    key: Tensor,
    dscores: Tensor,
    needs: Sequence[bool],
    parameters: Sequence[Tensor],
    attn_mask: Tensor | None,
    *_: Any,
) -> list[Tensor | None]:
    return _empty_where(needs, [query, key, attn_mask, *parameters])


def _scores_backward(*args: Any) -> list[Tensor]:
    query, key, dscores, _, parameters, *options = args
    gradients = _scores_gradients(*args)
    _core.scores_backward(
        view(query),
        view(key),
        view(dscores),
        option_views(options),
        views(parameters),
        tuple(views(gradients[:3])),
        views(gradients[3:]),
    )
    return _given(gradients)


# needs: query, key, attn_mask, then each parameter. Returns the needed ones in that order.
scores_backward = _define(
    "scores_backward",
    f"Tensor query, Tensor key, Tensor dscores, bool[] needs, {_SHARED}",
    "Tensor[]",
    _scores_backward,
    lambda *args: _given(_scores_gradients(*args)),
)


def _grid_dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    if not parameters:
        return torch.get_default_dtype()
    dtype = parameters[0].dtype
    for parameter in parameters[1:]:
        dtype = torch.promote_types(dtype, parameter.dtype)
    return dtype


def _dense_output(
    parameters: Sequence[Tensor], position: str, queries: int, keys: int, q_offset: int, which: str
) -> Tensor:
    # The shape follows from the parameters' shapes, never from what they hold.
    shapes = [(0, _DTYPES.get(p.dtype, -1), p.shape, p.stride()) for p in parameters]
    shape = _core.dense_shape(position, shapes, int(queries), int(keys), int(q_offset), which)
    device = parameters[0].device if parameters else "cpu"
    return torch.empty(shape, dtype=_grid_dtype(parameters), device=device)


def _dense(
    parameters: Sequence[Tensor], position: str, queries: int, keys: int, q_offset: int, which: str
) -> Tensor:
    out = _dense_output(parameters, position, queries, keys, q_offset, which)
    _core.dense(position, views(parameters), queries, keys, q_offset, which, view(out))
    return out


_GRID = "str position, SymInt queries, SymInt keys, SymInt q_offset, str which"
dense = _define(
    "dense",
    f"Tensor[] parameters, {_GRID}",
    "Tensor",
    _dense,
    _dense_output,
    "CompositeExplicitAutograd",
)


def _dense_backward(
    dout: Tensor,
    needs: Sequence[bool],
    parameters: Sequence[Tensor],
    position: str,
    *grid: Any,
) -> list[Tensor]:
    gradients = _empty_where(needs, parameters)
    _core.dense_backward(position, views(parameters), *grid, view(dout), views(gradients))
    return _given(gradients)


dense_backward = _define(
    "dense_backward",
    f"Tensor dout, bool[] needs, Tensor[] parameters, {_GRID}",
    "Tensor[]",
    _dense_backward,
    lambda dout, needs, parameters, *_: _given(_empty_where(needs, parameters)),
)


def _rotate(
    x: Tensor, parameters: Any, position: str, offset: int, positions: Any, inverse: bool
) -> Tensor:
    out = _empty_like(x)
    _core.rotate(position, views(parameters), view(x), offset, view(positions), inverse, view(out))
    return out


rotate = _define(
    "rotate",
    "Tensor x, Tensor[] parameters, str position, SymInt offset, Tensor? positions, bool inverse",
    "Tensor",
    _rotate,
    lambda x, *_: _empty_like(x),
)


def _tables_outputs(
    parameters: Any, position: str, length: int, offset: int, dims: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    shape = (length, dims)
    return (
        torch.empty(shape, dtype=dtype, device="cpu"),
        torch.empty(shape, dtype=dtype, device="cpu"),
    )


def _tables(
    parameters: Any, position: str, length: int, offset: int, dims: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    cos, sin = _tables_outputs(parameters, position, length, offset, dims, dtype)
    _core.rotary_tables(position, views(parameters), length, offset, view(cos), view(sin))
    return cos, sin


rotary_tables = _define(
    "rotary_tables",
    "Tensor[] parameters, str position, SymInt length, SymInt offset, int dims, ScalarType dtype",
    "(Tensor cos, Tensor sin)",
    _tables,
    _tables_outputs,
    "CompositeExplicitAutograd",
)
