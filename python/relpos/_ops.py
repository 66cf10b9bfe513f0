"""The operators torch.ops.relpos.*: checked by the C++ library, opaque to PyTorch.

relpos._autograd gives them their derivatives.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._call import SCHEMA, Call, check_parameters
from relpos._memory import check_device


def _empty_like(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _empty_where(needs: Sequence[bool], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [_empty_like(t) if need else None for need, t in zip(needs, tensors, strict=True)]


def _given(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


LIBRARY = torch.library.Library("relpos", "DEF")


def _define(name: str, arguments: str, returns: str, run: Any, fake: Any, key: str = "CPU") -> Any:
    LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"relpos::{name}", _on_one_device(name, fake), lib=LIBRARY)
    torch.library.register_vmap(f"relpos::{name}", _loop(name), lib=LIBRARY)
    return getattr(torch.ops.relpos, name).default


def _on_one_device(name: str, fake: Any) -> Any:
    """PyTorch calls `fake` where any argument is on meta, and beside those the real ones of a call
    would get results of no meaning. As in its own operators, a number on the CPU may stand beside
    tensors of any device."""

    def checked(*args: Any) -> Any:
        names = [a.name for a in getattr(torch.ops.relpos, name).default._schema.arguments]
        given = dict(zip(names, args, strict=False))
        text, parameters = given.pop("position"), given.pop("parameters", ())
        first, of = None, ""
        for argument, value in given.items():
            if isinstance(value, Tensor) and first is None:
                first, of = value, argument
            elif isinstance(value, Tensor) and (value.dim() or not value.is_cpu):
                check_device(argument, value, first, of)
        if parameters:
            like = parameters[0] if first is None else first
            check_parameters(text, parameters, like, of or "the first parameter")
        return fake(*args)

    return checked


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
    if query.shape == value.shape:  # three times as fast
        return torch.empty_like(query, memory_format=torch.contiguous_format)
    return query.new_empty((*query.shape[:3], value.shape[3]))


def _attention_lse(query: Tensor) -> Tensor:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(query.shape[:3], dtype=wide)


def _attention_softmax(query: Tensor) -> Tensor:
    """Two numbers for each query, which the forward pass leaves for the backward pass."""
    return _attention_lse(query).new_empty((*query.shape[:3], 2))


def _attention_outputs(
    query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _attention_out(query, value), _attention_lse(query), _attention_softmax(query)


def run_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Call,
    want_lse: bool = True,
    want_softmax: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(out, lse, softmax), without the dispatcher; None for what is not requested."""
    out = _attention_out(query, value)
    lse = _attention_lse(query) if want_lse else None
    softmax = _attention_softmax(query) if want_softmax else None
    _core.attention(query, key, value, call, out, lse, softmax)
    return out, lse, softmax


attention = _define(
    "attention",
    f"Tensor query, Tensor key, Tensor value, {SCHEMA}",
    "(Tensor out, Tensor lse, Tensor softmax)",
    lambda query, key, value, *call: run_attention(query, key, value, Call(*call)),
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
    *call: Any,
) -> list[Tensor | None]:
    shared = Call(*call)
    return _empty_where(needs, [query, key, value, shared.attn_mask, *shared.parameters])


def _attention_backward(*args: Any) -> list[Tensor]:
    gradients = _attention_gradients(*args)
    _core.attention_backward(args[:7], Call(*args[8:]), gradients)
    return _given(gradients)


# needs: query, key, value, attn_mask, then each parameter. Returns the needed ones in that order.
attention_backward = _define(
    "attention_backward",
    "Tensor query, Tensor key, Tensor value, Tensor out, Tensor softmax, Tensor dout, "
    f"Tensor? dlse, bool[] needs, {SCHEMA}",
    "Tensor[]",
    _attention_backward,
    lambda *args: _given(_attention_gradients(*args)),
)


def _dense_pairs(query: Tensor, key: Tensor, *_: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], key.shape[2]))


def _weights(query: Tensor, key: Tensor, softmax: Tensor, *call: Any) -> Tensor:
    weights = _dense_pairs(query, key)
    _core.attention_weights(query, key, softmax, Call(*call), weights)
    return weights


weights = _define(
    "weights",
    f"Tensor query, Tensor key, Tensor softmax, {SCHEMA}",
    "Tensor",
    _weights,
    _dense_pairs,
)


def _scores(query: Tensor, key: Tensor, *call: Any) -> Tensor:
    out = _dense_pairs(query, key)
    _core.scores(query, key, Call(*call), out)
    return out


scores = _define("scores", f"Tensor query, Tensor key, {SCHEMA}", "Tensor", _scores, _dense_pairs)


def _scores_gradients(
    query: Tensor, key: Tensor, dscores: Tensor, needs: Sequence[bool], *call: Any
) -> list[Tensor | None]:
    shared = Call(*call)
    return _empty_where(needs, [query, key, shared.attn_mask, *shared.parameters])


def _scores_backward(*args: Any) -> list[Tensor]:
    gradients = _scores_gradients(*args)
    _core.scores_backward(args[:3], Call(*args[4:]), gradients)
    return _given(gradients)


# needs: query, key, attn_mask, then each parameter. Returns the needed ones in that order.
scores_backward = _define(
    "scores_backward",
    f"Tensor query, Tensor key, Tensor dscores, bool[] needs, {SCHEMA}",
    "Tensor[]",
    _scores_backward,
    lambda *args: _given(_scores_gradients(*args)),
)


def _place_tokens(position: str, keys: bool, tokens: Tensor) -> Tensor:
    placed = tokens.flatten().clone()
    _core.place_tokens(position, keys, placed)
    return placed.view(tokens.shape)


# Where a position places queries, or keys, by their numbers, int64 of any shape.
place_tokens = _define(
    "place_tokens",
    "str position, bool keys, Tensor tokens",
    "Tensor",
    _place_tokens,
    lambda position, keys, tokens: tokens.new_empty(tokens.shape),
)


def _grid_dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    if not parameters:
        return torch.get_default_dtype()
    dtype = parameters[0].dtype
    for parameter in parameters[1:]:
        dtype = torch.promote_types(dtype, parameter.dtype)
    return dtype


def _dense_output(
    position: str,
    queries: int,
    keys: int,
    q_offset: int,
    which: str,
    parameters: Sequence[Tensor],
) -> Tensor:
    # The shape follows from the parameters' shapes, never from what they hold.
    grid = int(queries), int(keys), int(q_offset)
    shape = _core.dense_shape(position, *grid, which, [p.shape for p in parameters])
    device = parameters[0].device if parameters else "cpu"
    return torch.empty(shape, dtype=_grid_dtype(parameters), device=device)


def _dense(*args: Any) -> Tensor:
    out = _dense_output(*args)
    _core.dense(*args, out)
    return out


_GRID = "str position, SymInt queries, SymInt keys, SymInt q_offset, str which, Tensor[] parameters"
dense = _define("dense", _GRID, "Tensor", _dense, _dense_output, "CompositeExplicitAutograd")


def _dense_gradients(dout: Tensor, needs: Sequence[bool], *args: Any) -> list[Tensor | None]:
    return _empty_where(needs, args[-1])


def _dense_backward(dout: Tensor, needs: Sequence[bool], *args: Any) -> list[Tensor]:
    gradients = _dense_gradients(dout, needs, *args)
    _core.dense_backward(*args, dout, gradients)
    return _given(gradients)


dense_backward = _define(
    "dense_backward",
    f"Tensor dout, bool[] needs, {_GRID}",
    "Tensor[]",
    _dense_backward,
    lambda *args: _given(_dense_gradients(*args)),
)


def _rotate(x: Tensor, *setting: Any) -> Tensor:
    out = _empty_like(x)
    _core.rotate(x, *setting, out)
    return out


rotate = _define(
    "rotate",
    "Tensor x, str position, SymInt offset, Tensor? positions, bool inverse, Tensor[] parameters",
    "Tensor",
    _rotate,
    lambda x, *_: _empty_like(x),
)


# needs: each parameter. Returns the needed ones in that order.
def _rotate_backward(dout: Tensor, needs: Sequence[bool], *args: Any) -> list[Tensor]:
    gradients = _empty_where(needs, args[-1])
    _core.rotate_backward(*args, dout, gradients)
    return _given(gradients)


rotate_backward = _define(
    "rotate_backward",
    "Tensor dout, bool[] needs, Tensor x, str position, SymInt offset, Tensor? positions, "
    "bool inverse, Tensor[] parameters",
    "Tensor[]",
    _rotate_backward,
    lambda dout, needs, *args: _given(_empty_where(needs, args[-1])),
)


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
    device = parameters[0].device if parameters else "cpu"
    cos, sin = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
    return cos, sin


def _tables(position: str, length: int, offset: int, *args: Any) -> tuple[Tensor, Tensor]:
    cos, sin = _tables_outputs(position, length, offset, *args)
    _core.rotary_tables(position, offset, args[-1], cos, sin)
    return cos, sin


# heads: 0 where all turn alike, else the first axis of the tables.
rotary_tables = _define(
    "rotary_tables",
    "str position, SymInt length, SymInt offset, int heads, int dims, ScalarType dtype, "
    "Tensor[] parameters",
    "(Tensor cos, Tensor sin)",
    _tables,
    _tables_outputs,
    "CompositeExplicitAutograd",
)


def _tables_backward(
    dcos: Tensor, dsin: Tensor, needs: Sequence[bool], position: str, offset: int, parameters: Any
) -> list[Tensor]:
    gradients = _empty_where(needs, parameters)
    _core.rotary_tables_backward(position, offset, parameters, dcos, dsin, gradients)
    return _given(gradients)


rotary_tables_backward = _define(
    "rotary_tables_backward",
    "Tensor dcos, Tensor dsin, bool[] needs, str position, SymInt offset, Tensor[] parameters",
    "Tensor[]",
    _tables_backward,
    lambda dcos, dsin, needs, position, offset, parameters: _given(_empty_where(needs, parameters)),
)
