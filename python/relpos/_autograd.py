"""Derivatives of the operators in relpos._ops, as kernels of their Autograd key.

Forward mode and second derivatives raise: a Function has no jvp, and every gradient operator has a
backward of its own that raises, so that no saved tensor can lose a derivative in silence.

Eager calls go to the Functions directly, which saves a hop. Compiled ones go to the operators:
Dynamo leaves those whole, so that transforms inside a compiled region meet the kernels too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from relpos import _ops

_OPTIONS = len(_ops.OPTIONS)
_DROPOUT = [name for name, _ in _ops.OPTIONS].index("dropout_p")
# Of the option tensors that may have a batch axis, in order: their rank with it.
_BATCHED_RANKS = (4, 2, 1, 1, 2, 2, 2, 2)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    want_lse: bool,
    want_weights: bool,
    options: Sequence[Any],
    parameters: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """(out, lse), and the weights where wanted; lse may be None where it is not."""
    if not torch.compiler.is_compiling():
        tensors = (query, key, value, *options[: _ops.OPTION_TENSORS], *parameters)
        if not want_weights and _unobserved(tensors):
            return _ops.run_attention(
                query, key, value, parameters, *options, want_lse=want_lse, want_softmax=False
            )[:2]
        results = _apply(Attention, query, key, value, want_weights, *options, *parameters)
        return (*results[:2], *results[3:])
    out, lse, softmax = _ops.attention(query, key, value, parameters, *options)
    if not want_weights:
        return out, lse
    return out, lse, _ops.weights(query, key, softmax, parameters, *options)


def scores(
    query: Tensor, key: Tensor, options: Sequence[Any], parameters: Sequence[Tensor]
) -> Tensor:
    if not torch.compiler.is_compiling():
        return _apply(Scores, query, key, *options, *parameters)
    return _ops.scores(query, key, parameters, *options)


def dense(parameters: Sequence[Tensor], *grid: Any) -> Tensor:
    if not torch.compiler.is_compiling():
        return _apply(Dense, *grid, *parameters)
    return _ops.dense(parameters, *grid)


def rotate(x: Tensor, parameters: Sequence[Tensor], *setting: Any) -> Tensor:
    if not torch.compiler.is_compiling():
        return _apply(Rotate, x, *setting, *parameters)
    return _ops.rotate(x, parameters, *setting)


_PLAIN = (Tensor, torch.nn.Parameter)


def _unobserved(tensors: Sequence[Tensor | None]) -> bool:
    """Whether nobody would see the operator: no gradient, transform, mode, trace or profiler, and
    tensors that are memory of the CPU and no more. Its dispatch costs 25 us."""
    grad = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in _PLAIN
            or not tensor.is_cpu
            or (grad and tensor.requires_grad)
            or tensor.layout is not torch.strided
            or tensor.is_neg()
        ):
            return False
    return not (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state()
        or torch.autograd._profiler_enabled()
        or forward_ad._current_level >= 0
    )


def _apply(function: Any, *args: Any) -> Any:
    """function.apply(*args), without the signature that it binds on every call: 14 us of 19."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    return super(torch.autograd.Function, function).apply(*args)


def _record(function: Any, *args: Any) -> Any:
    """The Function at this level alone: functorch has brought an Autograd kernel to its own."""
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*args)


def _below(operator: Any, *args: Any) -> Any:
    """The operator without its Autograd kernel."""
    if not torch._C._are_functorch_transforms_active():
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)
    # A Function's forward runs without gradients; the transforms outside this one must record.
    with (
        torch.enable_grad(),
        forward_ad._set_fwd_grad_enabled(True),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        return operator(*args)


class _Once(torch.autograd.Function):
    """A gradient operator, on what `build` makes of its flat arguments; its gradient raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator: Any, build: Any, *args: Any) -> tuple[Tensor, ...]:
        return tuple(_below(operator, *build(args)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "relpos: second derivatives are not implemented; compute them without relpos, "
            "from a dense formula"
        )


def _gradient(operator: Any, *args: Any) -> Any:
    """A gradient operator; differentiable, in order to raise, where a graph is asked for."""
    return operator(*args) if torch.is_grad_enabled() else _below(operator, *args)


def _deal(needs: Any, gradients: Any) -> list[Tensor | None]:
    """Puts the gradients of the needed inputs at their places."""
    following = iter(gradients)
    return [next(following) if need else None for need in needs]


class Attention(torch.autograd.Function):
    """(out, lse, softmax), and the weights where `want_weights`, of (query, key, value,
    want_weights, *options, *parameters); options as in _ops.OPTIONS."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, want_weights: bool, *rest: Any
    ) -> tuple[Tensor, ...]:
        options, parameters = rest[:_OPTIONS], list(rest[_OPTIONS:])
        results = _below(_ops.attention, query, key, value, parameters, *options)
        if not want_weights:
            return tuple(results)
        return *results, _below(_ops.weights, query, key, results[2], parameters, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        query, key, value, _, *rest = inputs
        tensors, ctx.scalars = rest[: _ops.OPTION_TENSORS], rest[_ops.OPTION_TENSORS : _OPTIONS]
        ctx.save_for_backward(query, key, value, output[0], output[2], *tensors, *rest[_OPTIONS:])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any, *_: Any) -> Any:
        query, key, value, out, softmax, *rest = ctx.saved_tensors
        tensors, parameters = rest[: _ops.OPTION_TENSORS], rest[_ops.OPTION_TENSORS :]
        wanted = ctx.needs_input_grad
        needs = [*wanted[:3], wanted[4], *wanted[4 + _OPTIONS :]]
        if dout is None and dlse is None:
            return (None,) * len(wanted)
        if dout is None:
            dout = torch.zeros_like(out)
        head = (query, key, value, out, softmax, dout, dlse, needs)
        gradients = _gradient(_ops.attention_backward, *head, parameters, *tensors, *ctx.scalars)
        dq, dk, dv, dmask, *dparameters = _deal(needs, gradients)
        return dq, dk, dv, None, dmask, *[None] * (_OPTIONS - 1), *dparameters

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _fold(Attention, 3, 4, info, in_dims, args)


class Scores(torch.autograd.Function):
    """Dense scores of (query, key, *options, *parameters)."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, *rest: Any) -> Tensor:
        return _below(_ops.scores, query, key, list(rest[_OPTIONS:]), *rest[:_OPTIONS])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        query, key, *rest = inputs
        tensors, ctx.scalars = rest[: _ops.OPTION_TENSORS], rest[_ops.OPTION_TENSORS : _OPTIONS]
        ctx.save_for_backward(query, key, *tensors, *rest[_OPTIONS:])

    @staticmethod
    def backward(ctx: Any, dscores: Tensor) -> Any:
        query, key, *rest = ctx.saved_tensors
        tensors, parameters = rest[: _ops.OPTION_TENSORS], rest[_ops.OPTION_TENSORS :]
        wanted = ctx.needs_input_grad
        needs = [*wanted[:3], *wanted[2 + _OPTIONS :]]
        head = (query, key, dscores, needs)
        gradients = _gradient(_ops.scores_backward, *head, parameters, *tensors, *ctx.scalars)
        dq, dk, dmask, *dparameters = _deal(needs, gradients)
        return dq, dk, dmask, *[None] * (_OPTIONS - 1), *dparameters

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _fold(Scores, 2, 2, info, in_dims, args)


def _fold(function: Any, tensors: int, options_at: int, info: Any, in_dims: Any, args: Any) -> Any:
    """Folds the mapped axis into the batch. Mapped parameters, and dropout, whose mask depends on
    the batch row, take one call for each slice."""
    n = info.batch_size
    mapped_parameters = any(dim is not None for dim in in_dims[options_at + _OPTIONS :])
    if mapped_parameters or args[options_at + _DROPOUT] > 0:
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

    def lead(at: int) -> Tensor:
        return args[at].unsqueeze(0) if in_dims[at] is None else args[at].movedim(in_dims[at], 0)

    def fold(at: int, rank: int) -> Tensor:
        """[n, batch, ...] as [n * batch, ...], from a tensor whose batch axis may be missing."""
        whole = lead(at)
        while whole.dim() < rank + 1:
            whole = whole.unsqueeze(1)
        return whole.expand(n, batch, *whole.shape[2:]).flatten(0, 1)

    batch = lead(0).shape[1]
    folded = list(args)
    for at in range(tensors):
        folded[at] = fold(at, 4)
    for at, rank in enumerate(_BATCHED_RANKS, options_at):
        if args[at] is None:
            continue
        alike = in_dims[at] is None and (
            args[at].dim() < rank or (rank == 4 and args[at].shape[0] == 1)
        )
        if not alike:
            folded[at] = fold(at, rank)
    results = function.apply(*folded)
    if isinstance(results, Tensor):
        return results.unflatten(0, (n, batch)), 0
    return tuple(r.unflatten(0, (n, batch)) for r in results), (0,) * len(results)


class Dense(torch.autograd.Function):
    """A part's dense form of (position, queries, keys, q_offset, which, *parameters)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        position: str, queries: int, keys: int, q_offset: int, which: str, *parameters: Tensor
    ) -> Tensor:
        grid = (position, queries, keys, q_offset, which)
        return _below(_ops.dense, list(parameters), *grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.grid = inputs[:5]
        ctx.save_for_backward(*inputs[5:])

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        parameters = list(ctx.saved_tensors)
        needs = list(ctx.needs_input_grad[5:])
        gradients = _gradient(_ops.dense_backward, dout, needs, parameters, *ctx.grid)
        return *[None] * 5, *_deal(needs, gradients)


class Rotate(torch.autograd.Function):
    """R(positions) x; linear in x, so that it may be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, position: str, offset: int, positions: Tensor | None, inverse: bool, *rest: Any
    ) -> Tensor:
        return _below(_ops.rotate, x, list(rest), position, offset, positions, inverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.position, ctx.offset, positions, ctx.inverse, *parameters = inputs
        ctx.save_for_backward(positions, *parameters)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        positions, *parameters = ctx.saved_tensors
        setting = (ctx.position, ctx.offset, positions, not ctx.inverse)
        return _gradient(_ops.rotate, dout, parameters, *setting), *[None] * (4 + len(parameters))


def _attention_kernel(query: Any, key: Any, value: Any, parameters: Any, *options: Any) -> Any:
    return _record(Attention, query, key, value, False, *options, *parameters)


def _once_kernel(operator: Any, list_at: int) -> Any:
    """`list_at`: where the operator takes its list of parameters."""

    def kernel(*args: Any) -> list[Tensor]:
        count = len(args[list_at])

        def build(flat: Any) -> list[Any]:
            at = list_at + count
            return [*flat[:list_at], list(flat[list_at:at]), *flat[at:]]

        flat = (*args[:list_at], *args[list_at], *args[list_at + 1 :])
        return list(_record(_Once, operator, build, *flat))

    return kernel


for _name, _kernel in {
    "attention": _attention_kernel,
    "scores": lambda query, key, parameters, *options: _record(
        Scores, query, key, *options, *parameters
    ),
    "dense": lambda parameters, *grid: _record(Dense, *grid, *parameters),
    "rotate": lambda x, parameters, *setting: _record(Rotate, x, *setting, *parameters),
    "weights": lambda *args: _below(_ops.weights, *args),
    "rotary_tables": lambda *args: _below(_ops.rotary_tables, *args),
    "attention_backward": _once_kernel(_ops.attention_backward, 8),
    "scores_backward": _once_kernel(_ops.scores_backward, 4),
    "dense_backward": _once_kernel(_ops.dense_backward, 2),
}.items():
    _ops.LIBRARY.impl(_name, _kernel, "Autograd")
