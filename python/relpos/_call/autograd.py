"""Derivatives of attention and scores."""

from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.derivatives import apply, below, deal, flat_kernel, gradient, record
from relpos._base.operators import LIBRARY
from relpos._call import ops
from relpos._call.call import RANKS, Call


def attention(
    query: Tensor, key: Tensor, value: Tensor, want_weights: bool, call: Call
) -> tuple[Tensor, ...]:
    """(out, lse), and the weights if `want_weights`."""
    if not torch.compiler.is_compiling():
        results = apply(Attention, query, key, value, want_weights, *call.flat())
        return (*results[:2], *results[3:])
    out, lse, softmax = ops.attention(query, key, value, *call)
    if not want_weights:
        return out, lse
    return out, lse, ops.weights(query, key, softmax, *call)


def scores(query: Tensor, key: Tensor, call: Call) -> Tensor:
    if not torch.compiler.is_compiling():
        return apply(Scores, query, key, *call.flat())
    return ops.scores(query, key, *call)


class Attention(torch.autograd.Function):
    """(out, lse, softmax), and the weights if `want_weights`, from (query, key, value,
    want_weights, *call.flat())."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, want_weights: bool, *flat: Any
    ) -> tuple[Tensor, ...]:
        call = Call.unflat(flat)
        results = below(ops.attention, query, key, value, *call)
        if not want_weights:
            return tuple(results)
        return *results, below(ops.weights, query, key, results[2], *call)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        query, key, value, _, *flat = inputs
        call = Call.unflat(flat)
        ctx.call = call.without_tensors()
        ctx.save_for_backward(query, key, value, output[0], output[2], *call.tensors())
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any, *_: Any) -> Any:
        query, key, value, out, softmax, *tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if dout is None and dlse is None:
            return (None,) * len(wanted)
        if dout is None:
            dout = torch.zeros_like(out)
        shared = Call.unflat(wanted[4:])
        needs = [*wanted[:3], shared.attn_mask, *shared.parameters]
        head = (query, key, value, out, softmax, dout, dlse, needs)
        call = ctx.call.with_tensors(tensors)
        dq, dk, dv, *others = deal(needs, gradient(ops.attention_backward, *head, *call))
        return dq, dk, dv, None, *_to_call(*others)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _fold(Attention, 3, 4, info, in_dims, args)


class Scores(torch.autograd.Function):
    """Dense scores of (query, key, *call.flat())."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, *flat: Any) -> Tensor:
        return below(ops.scores, query, key, *Call.unflat(flat))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call = Call.unflat(inputs[2:])
        ctx.call = call.without_tensors()
        ctx.save_for_backward(*inputs[:2], *call.tensors())

    @staticmethod
    def backward(ctx: Any, dscores: Tensor) -> Any:
        query, key, *tensors = ctx.saved_tensors
        shared = Call.unflat(ctx.needs_input_grad[2:])
        needs = [*ctx.needs_input_grad[:2], shared.attn_mask, *shared.parameters]
        head = (query, key, dscores, needs)
        call = ctx.call.with_tensors(tensors)
        dq, dk, *others = deal(needs, gradient(ops.scores_backward, *head, *call))
        return dq, dk, *_to_call(*others)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _fold(Scores, 2, 2, info, in_dims, args)


_NO_OPTIONS: list[Any] = [None] * (len(Call._fields) - 1)


def _to_call(dmask: Tensor | None, *dparameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients at their places in call.flat()."""
    return Call(*_NO_OPTIONS, parameters=dparameters)._replace(attn_mask=dmask).flat()


def _fold(function: Any, tensors: int, call_at: int, info: Any, in_dims: Any, args: Any) -> Any:
    """Folds the mapped axis into the batch. There is one call for each slice instead where
    parameters are mapped, with dropout, whose mask depends on the batch row, and with inputs that
    have their own batch axis."""
    n = info.batch_size
    call, dims = Call.unflat(args[call_at:]), Call.unflat(in_dims[call_at:])
    mapped_parameters = any(dim is not None for dim in dims.parameters)
    if mapped_parameters or call.dropout_p > 0 or _core.takes_batch_inputs(call.position):
        calls = []
        for i in range(n):
            slices = (
                a.select(d, i) if isinstance(a, Tensor) and d is not None else a
                for a, d in zip(args, in_dims, strict=True)  # a window is a list, and so is its d
            )
            calls.append(function.apply(*slices))
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        columns = [torch.stack(column) for column in zip(*calls, strict=True)]
        return tuple(columns), (0,) * len(columns)

    def lead(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)

    batch = lead(args[0], in_dims[0]).shape[1]

    def fold(tensor: Tensor, dim: int | None, rank: int) -> Tensor:
        """[n, batch, ...] as [n * batch, ...], from a tensor whose batch axis may be missing."""
        whole = lead(tensor, dim)
        while whole.dim() < rank + 1:
            whole = whole.unsqueeze(1)
        return whole.expand(n, batch, *whole.shape[2:]).flatten(0, 1)

    folded = {}
    for name, rank in RANKS.items():
        tensor, dim = getattr(call, name), getattr(dims, name)
        alike = tensor is None or (
            dim is None and (tensor.dim() < rank or (rank == 4 and tensor.shape[0] == 1))
        )
        if not alike:
            folded[name] = fold(tensor, dim, rank)
    inputs = [fold(args[at], in_dims[at], 4) for at in range(tensors)]
    rest = args[tensors:call_at]
    results = function.apply(*inputs, *rest, *call._replace(**folded).flat())
    if isinstance(results, Tensor):
        return results.unflatten(0, (n, batch)), 0
    return tuple(r.unflatten(0, (n, batch)) for r in results), (0,) * len(results)


def _attention_kernel(query: Tensor, key: Tensor, value: Tensor, *call: Any) -> Any:
    return record(Attention, query, key, value, False, *Call(*call).flat())


LIBRARY.impl("attention", _attention_kernel, "Autograd")
LIBRARY.impl("scores", flat_kernel(Scores), "Autograd")
LIBRARY.impl("weights", lambda *args: below(ops.weights, *args), "Autograd")
