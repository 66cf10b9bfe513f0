"""The operators of a call. relpos._call.autograd gives them their derivatives. relpos._core
computes them on the CPU, relpos.gpu on CUDA."""

from typing import Any

import torch
from torch import Tensor

from relpos import _core, gpu
from relpos._base.operators import define, define_gradient, empty_like
from relpos._call.call import SCHEMA, Call

_DEVICES = ("CPU", "CUDA")


def _kernels(query: Tensor) -> Any:
    return gpu.kernels() if gpu.takes(query) else _core


def _of_queries(query: Tensor, *numbers: int) -> Tensor:
    """Memory for numbers of each query, at least float32."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty((*query.shape[:3], *numbers), dtype=wide)


def _attention_lse(query: Tensor) -> Tensor:
    return _of_queries(query)


def _attention_softmax(query: Tensor) -> Tensor:
    """Two numbers for each query, which the forward pass leaves for the backward pass."""
    return _of_queries(query, 2)


def _attention_outputs(
    query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    return out, _attention_lse(query), _attention_softmax(query)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, *call: Any
) -> tuple[Tensor, Tensor, Tensor]:
    alike = query.shape == value.shape
    out = empty_like(query, None if alike else (*query.shape[:3], value.shape[3]))
    lse, softmax = _attention_lse(query), _attention_softmax(query)
    _kernels(query).attention(query, key, value, Call(*call), out, lse, softmax)
    return out, lse, softmax


attention = define(
    "attention",
    f"Tensor query, Tensor key, Tensor value, {SCHEMA}",
    "(Tensor out, Tensor lse, Tensor softmax)",
    _attention,
    _attention_outputs,
    _DEVICES,
)


def _with_call(tensors: Any, call: Any) -> list[Tensor | None]:
    """The tensors that may need gradients, with those of the call."""
    shared = Call(*call)
    return [*tensors, shared.attn_mask, *shared.parameters]


attention_backward = define_gradient(
    "attention_backward",
    "Tensor query, Tensor key, Tensor value, Tensor out, Tensor softmax, Tensor dout, Tensor? dlse",
    SCHEMA,
    lambda given, call: _with_call(given[:3], call),
    lambda given, call, gradients: _kernels(given[0]).attention_backward(
        given, Call(*call), gradients
    ),
    _DEVICES,
)


def _dense_pairs(query: Tensor, key: Tensor, *_: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], key.shape[2]))


def _weights(query: Tensor, key: Tensor, softmax: Tensor, *call: Any) -> Tensor:
    weights = _dense_pairs(query, key)
    _kernels(query).attention_weights(query, key, softmax, Call(*call), weights)
    return weights


weights = define(
    "weights",
    f"Tensor query, Tensor key, Tensor softmax, {SCHEMA}",
    "Tensor",
    _weights,
    _dense_pairs,
    _DEVICES,
)


def _scores(query: Tensor, key: Tensor, *call: Any) -> Tensor:
    out = _dense_pairs(query, key)
    _kernels(query).scores(query, key, Call(*call), out)
    return out


scores = define(
    "scores", f"Tensor query, Tensor key, {SCHEMA}", "Tensor", _scores, _dense_pairs, _DEVICES
)
scores_backward = define_gradient(
    "scores_backward",
    "Tensor query, Tensor key, Tensor dscores",
    SCHEMA,
    lambda given, call: _with_call(given[:2], call),
    lambda given, call, gradients: _kernels(given[0]).scores_backward(
        given, Call(*call), gradients
    ),
    _DEVICES,
)
