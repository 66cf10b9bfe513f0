"""Derivatives of the operators in relpos._ops, as kernels of their Autograd key.

Forward mode and second derivatives raise an error: a Function has no jvp, and every gradient
operator has a backward that raises, so that no derivative is lost silently.

Eager calls use the Functions directly, which saves one dispatch. Compiled calls use the operators:
Dynamo does not trace into them, so that transforms inside a compiled region also use these kernels.
"""

from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from relpos import _core, _ops
from relpos._call import RANKS, Call


def attention(
    query: Tensor, key: Tensor, value: Tensor, want_weights: bool, call: Call
) -> tuple[Tensor, ...]:
    """(out, lse), and the weights if `want_weights`."""
    if not torch.compiler.is_compiling():
        results = _apply(Attention, query, key, value, want_weights, *call.flat())
        return (*results[:2], *results[3:])
    out, lse, softmax = _ops.attention(query, key, value, *call)
    if not want_weights:
        return out, lse
    return out, lse, _ops.weights(query, key, softmax, *call)


def scores(query: Tensor, key: Tensor, call: Call) -> Tensor:
    if not torch.compiler.is_compiling():
        return _apply(Scores, query, key, *call.flat())
    return _ops.scores(query, key, *call)


def dense(*args: Any) -> Tensor:
    """The dense form, from (position, queries, keys, q_offset, which, parameters)."""
    if not torch.compiler.is_compiling():
        return _apply(Dense, *args[:-1], *args[-1])
    return _ops.dense(*args)


def rotate(*args: Any) -> Tensor:
    """The rotated x, from (x, position, offset, positions, inverse, parameters)."""
    if not torch.compiler.is_compiling():
        return _apply(Rotate, *args[:-1], *args[-1])
    return _ops.rotate(*args)


# If all of these return something false, nothing observes the operator, and it may be bypassed.
_OBSERVERS = (
    torch._C._are_functorch_transforms_active,
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._get_tracing_state,
    torch.autograd._profiler_enabled,
    torch._C._is_any_autocast_enabled,
    lambda: forward_ad._current_level >= 0,
)
_core.use_torch(
    getattr(Tensor, "__dlpack_c_exchange_api__", None),
    (Tensor, torch.nn.Parameter),
    torch.is_grad_enabled,
    _OBSERVERS,
)


def _apply(function: Any, *args: Any) -> Any:
    """function.apply(*args) without binding a signature on every call, which takes 14 of 19 us."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    return super(torch.autograd.Function, function).apply(*args)


def _record(function: Any, *args: Any) -> Any:
    """Applies the Function at one level only: functorch calls Autograd kernels at their level."""
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*args)


def _below(operator: Any, *args: Any) -> Any:
    """The operator without its Autograd kernel."""
    if not torch._C._are_functorch_transforms_active():
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)
    # A Function's forward runs without gradients, but the transforms outside this one must record.
    with (
        torch.enable_grad(),
        forward_ad._set_fwd_grad_enabled(True),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        return operator(*args)


class Final(torch.autograd.Function):
    """run(*args), a tensor or a tuple of tensors; its derivative raises an error with `message`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(run: Any, message: str, *args: Any) -> Any:
        return run(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.message = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(ctx.message)


def _gradient(operator: Any, *args: Any) -> Any:
    """A gradient operator. With a graph it is differentiable, so that its derivative raises."""
    return operator(*args) if torch.is_grad_enabled() else _below(operator, *args)


def _deal(needs: Any, gradients: Any) -> list[Tensor | None]:
    """Puts the gradients of the needed inputs at their places."""
    following = iter(gradients)
    return [next(following) if need else None for need in needs]


class Attention(torch.autograd.Function):
    """(out, lse, softmax), and the weights if `want_weights`, from (query, key, value,
    want_weights, *call.flat())."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, want_weights: bool, *flat: Any
    ) -> tuple[Tensor, ...]:
        call = Call.unflat(flat)
        results = _below(_ops.attention, query, key, value, *call)
        if not want_weights:
            return tuple(results)
        return *results, _below(_ops.weights, query, key, results[2], *call)

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
        dq, dk, dv, *others = _deal(needs, _gradient(_ops.attention_backward, *head, *call))
        return dq, dk, dv, None, *_to_call(*others)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _fold(Attention, 3, 4, info, in_dims, args)


class Scores(torch.autograd.Function):
    """Dense scores of (query, key, *call.flat())."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, *flat: Any) -> Tensor:
        return _below(_ops.scores, query, key, *Call.unflat(flat))

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
        dq, dk, *others = _deal(needs, _gradient(_ops.scores_backward, *head, *call))
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
    parameters are mapped, with dropout, whose mask depends on the batch row, and with inputs, which
    have their own batch axis."""
    n = info.batch_size
    call, dims = Call.unflat(args[call_at:]), Call.unflat(in_dims[call_at:])
    mapped_parameters = any(dim is not None for dim in dims.parameters)
    if mapped_parameters or call.dropout_p > 0 or _core.takes_inputs(call.position):
        calls = []
        for i in range(n):
            slices = (
                a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)
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


class Dense(torch.autograd.Function):
    """A part's dense form, from (position, queries, keys, q_offset, which, *parameters)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Tensor:
        return _below(_ops.dense, *args[:5], args[5:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.grid = inputs[:5]
        ctx.save_for_backward(*inputs[5:])

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        needs = list(ctx.needs_input_grad[5:])
        gradients = _gradient(_ops.dense_backward, dout, needs, *ctx.grid, ctx.saved_tensors)
        return *[None] * 5, *_deal(needs, gradients)


class Rotate(torch.autograd.Function):
    """R(positions) x, from (x, position, offset, positions, inverse, *parameters). It is linear in
    x, so that its gradient can be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *args: Any) -> Tensor:
        return _below(_ops.rotate, x, *args[:4], args[4:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.position, ctx.offset, positions, ctx.inverse, *parameters = inputs
        ctx.trains = any(ctx.needs_input_grad[5:])
        ctx.save_for_backward(x if ctx.trains else None, positions, *parameters)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        x, positions, *parameters = ctx.saved_tensors
        setting = (ctx.position, ctx.offset, positions)
        turned = _gradient(_ops.rotate, dout, *setting, not ctx.inverse, parameters)
        needs, gradients = list(ctx.needs_input_grad[5:]), []
        if ctx.trains:
            rest = (x, *setting, ctx.inverse, parameters)
            gradients = _gradient(_ops.rotate_backward, dout, needs, *rest)
        return turned, *[None] * 4, *_deal(needs, gradients)


class Tables(torch.autograd.Function):
    """Cosines and sines, from (position, length, offset, heads, dims, dtype, *parameters)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _below(_ops.rotary_tables, *args[:6], args[6:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.position, _, ctx.offset, *_ = inputs[:6]
        ctx.save_for_backward(*inputs[6:])

    @staticmethod
    def backward(ctx: Any, dcos: Tensor, dsin: Tensor) -> Any:
        needs = list(ctx.needs_input_grad[6:])
        rest = (ctx.position, ctx.offset, ctx.saved_tensors)
        gradients = _gradient(_ops.rotary_tables_backward, dcos, dsin, needs, *rest)
        return *[None] * 6, *_deal(needs, gradients)


def rotary_tables(*args: Any) -> Any:
    """(cos, sin), from (position, length, offset, heads, dims, dtype, parameters)."""
    if not torch.compiler.is_compiling():
        return _apply(Tables, *args[:-1], *args[-1])
    return _ops.rotary_tables(*args)


_NO_SECOND = (
    "relpos: second derivatives are not implemented; compute them without relpos, from a dense "
    "formula"
)


def _flat_kernel(function: Any) -> Any:
    """The Function of an operator whose last argument is a list."""
    return lambda *args: _record(function, *args[:-1], *args[-1])


def _final_kernel(operator: Any) -> Any:
    """A gradient operator whose last argument is a list. Its own gradient raises an error."""

    def kernel(*args: Any) -> list[Tensor]:
        single = len(args) - 1

        def run(*flat: Any) -> tuple[Tensor, ...]:
            return tuple(_below(operator, *flat[:single], flat[single:]))

        return list(_record(Final, run, _NO_SECOND, *args[:-1], *args[-1]))

    return kernel


def _attention_kernel(query: Tensor, key: Tensor, value: Tensor, *call: Any) -> Any:
    return _record(Attention, query, key, value, False, *Call(*call).flat())


for _name, _kernel in {
    "attention": _attention_kernel,
    "scores": _flat_kernel(Scores),
    "dense": _flat_kernel(Dense),
    "rotate": _flat_kernel(Rotate),
    "weights": lambda *args: _below(_ops.weights, *args),
    "rotary_tables": _flat_kernel(Tables),
    "attention_backward": _final_kernel(_ops.attention_backward),
    "scores_backward": _final_kernel(_ops.scores_backward),
    "dense_backward": _final_kernel(_ops.dense_backward),
    "rotate_backward": _final_kernel(_ops.rotate_backward),
    "rotary_tables_backward": _final_kernel(_ops.rotary_tables_backward),
}.items():
    _ops.LIBRARY.impl(_name, _kernel, "Autograd")
