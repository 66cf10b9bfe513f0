"""Derivatives of attention and scores."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.derivatives import NOBODY, apply, below, deal, gradient, record
from relpos._base.operators import LIBRARY
from relpos._call import ops
from relpos._call.call import RANKS, TENSORS, Call
from relpos._call.options import OPTIONS, PLACES


def attention(
    query: Tensor, key: Tensor, value: Tensor, want_lse: bool, want_weights: bool, call: Call
) -> tuple[Tensor, ...]:
    """(out, lse), and the weights if `want_weights`; lse may be None unless `want_lse`."""
    if not torch.compiler.is_compiling():
        options, tensors = call.apart()
        results = apply(Attention, query, key, value, want_lse, want_weights, options, *tensors)
        return (*results[:2], *results[3:])
    out, lse, softmax = ops.attention(query, key, value, *call)
    if not want_weights:
        return out, lse
    return out, lse, ops.weights(query, key, softmax, *call)


def scores(query: Tensor, key: Tensor, call: Call) -> Tensor:
    if not torch.compiler.is_compiling():
        options, tensors = call.apart()
        return apply(Scores, query, key, options, *tensors)
    return ops.scores(query, key, *call)


class Attention(torch.autograd.Function):
    """(out, lse, softmax), and the weights if `want_weights`, from (query, key, value, want_lse,
    want_weights, *call.apart()); lse may be None unless `want_lse`. Where nobody would
    notice, each pass is one call of _core: with operators a step of 12 tokens takes twice as long.
    """

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        want_lse: bool,
        want_weights: bool,
        options: Call,
        *tensors: Any,
    ) -> tuple[Tensor | None, ...]:
        call = options.with_tensors(tensors)
        if not want_weights and _core.seen_by(query, key, value, call) == NOBODY:
            return _core.attend(query, key, value, call, want_lse, True)
        results = below(ops.attention, query, key, value, *call)
        if not want_weights:
            return tuple(results)
        return *results, below(ops.weights, query, key, results[2], *call)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        query, key, value, _, _, ctx.options, *tensors = inputs
        ctx.save_for_backward(query, key, value, output[0], output[2], *tensors)
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
        needs = [*wanted[:3], *_differentiable(wanted[6:])]
        given = (query, key, value, out, softmax, dout, dlse)
        call = ctx.options.with_tensors(tensors)
        if _core.seen_by(query, key, value, (*given[3:], *tensors)) == NOBODY:
            gradients = _core.attend_backward(given, needs, call)
        else:
            gradients = deal(needs, gradient(ops.attention_backward, *given, needs, *call))
        return *gradients[:3], None, None, None, *_at_places(gradients[3:], len(tensors))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _fold(Attention, 3, 5, info, in_dims, args)


class Scores(torch.autograd.Function):
    """Dense scores of (query, key, *call.apart())."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, options: Call, *tensors: Any) -> Tensor:
        return below(ops.scores, query, key, *options.with_tensors(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        query, key, ctx.options, *tensors = inputs
        ctx.save_for_backward(query, key, *tensors)

    @staticmethod
    def backward(ctx: Any, dscores: Tensor) -> Any:
        query, key, *tensors = ctx.saved_tensors
        needs = [*ctx.needs_input_grad[:2], *_differentiable(ctx.needs_input_grad[3:])]
        head = (query, key, dscores, needs)
        call = ctx.options.with_tensors(tensors)
        gradients = deal(needs, gradient(ops.scores_backward, *head, *call))
        return *gradients[:2], None, *_at_places(gradients[2:], len(tensors))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _fold(Scores, 2, 2, info, in_dims, args)


_MASK = TENSORS.index("attn_mask")


def _differentiable(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Of the tensors of Call.apart(), or of values for each: attn_mask and the parameters."""
    return (tensors[_MASK], *tensors[len(TENSORS) :]) if tensors else (False,)


def _at_places(gradients: Sequence[Any], count: int) -> list[Any]:
    """Gradients of attn_mask and the parameters, at their places among `count` such tensors."""
    places = [None] * min(count, len(TENSORS))
    if places:
        places[_MASK] = gradients[0]
    return [*places, *gradients[1:]]


_PLACED_BY = [
    field.name for name in PLACES for field in OPTIONS[name].fields if field.name in RANKS
]

# A call for the values of vmap, of which there is one for each tensor.
_NO_VALUES = Call(*[None] * len(Call._fields))._replace(parameters=())


def _fold(function: Any, tensors: int, call_at: int, info: Any, in_dims: Any, args: Any) -> Any:
    """Folds the mapped axis into the batch. There is one call for each slice instead where
    parameters are mapped, with dropout, whose mask depends on the batch row, and where positions
    are no rows of one call."""
    n = info.batch_size
    call = args[call_at].with_tensors(args[call_at + 1 :])
    dims = _NO_VALUES.with_tensors(in_dims[call_at + 1 :])
    mapped_parameters = any(dim is not None for dim in dims.parameters)
    placed = n > 0 and any(getattr(dims, name) is not None for name in _PLACED_BY)
    if mapped_parameters or call.dropout_p > 0 or _core.stays_apart(call.position, placed):
        calls = []
        for i in range(n):
            slices = (
                a.select(d, i) if isinstance(a, Tensor) and d is not None else a
                for a, d in zip(args, in_dims, strict=True)
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
    options, others = call._replace(**folded).apart()
    results = function.apply(*inputs, *rest, options, *others)
    if isinstance(results, Tensor):
        return results.unflatten(0, (n, batch)), 0
    return tuple(r.unflatten(0, (n, batch)) for r in results), (0,) * len(results)


def _attention_kernel(query: Tensor, key: Tensor, value: Tensor, *call: Any) -> Any:
    options, tensors = Call(*call).apart()
    return record(Attention, query, key, value, True, False, options, *tensors)


def _scores_kernel(query: Tensor, key: Tensor, *call: Any) -> Any:
    options, tensors = Call(*call).apart()
    return record(Scores, query, key, options, *tensors)


LIBRARY.impl("attention", _attention_kernel, "Autograd")
LIBRARY.impl("scores", _scores_kernel, "Autograd")
LIBRARY.impl("weights", lambda *args: below(ops.weights, *args), "Autograd")
