"""How the operators of relpos get derivatives: as kernels of their Autograd key.

Forward mode and second derivatives raise an error: a Function has no jvp, and every gradient
operator has a backward that raises, so that no derivative is lost silently.

Eager calls use the Functions directly, which saves one dispatch; that of attention computes without
an operator where nobody would notice. Compiled calls use the operators: Dynamo does not trace into
them, so that transforms inside a compiled region also use these kernels.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from relpos import _core
from relpos.gpu.mode import INTERPRETS

# Who would notice that a call bypasses its operator, by _core.seen_by. Others do where one of
# OBSERVERS returns something true, or where a tensor is more than memory of the CPU.
NOBODY, AUTOGRAD, OTHERS = _core.NOBODY, _core.AUTOGRAD, _core.OTHERS
OBSERVERS = (
    torch._C._are_functorch_transforms_active,
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._get_tracing_state,
    torch.autograd._profiler_enabled,
    torch._C._is_any_autocast_enabled,
    lambda: forward_ad._current_level >= 0,
    *((lambda: True,) if INTERPRETS else ()),  # Triton's interpreter, which _core is not
)
_core.use_torch(
    getattr(Tensor, "__dlpack_c_exchange_api__", None),
    (Tensor, torch.nn.Parameter),
    torch.is_grad_enabled,
    OBSERVERS,
)
_NO_SECOND = (
    "relpos: second derivatives are not implemented; compute them without relpos, from a dense "
    "formula"
)


def apply(function: Any, *args: Any) -> Any:
    """function.apply(*args) without binding a signature on every call, which takes 14 of 19 us."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    return super(torch.autograd.Function, function).apply(*args)


def record(function: Any, *args: Any) -> Any:
    """Applies the Function at one level only: functorch calls Autograd kernels at their level."""
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*args)


def below(operator: Any, *args: Any) -> Any:
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


def gradient(operator: Any, *args: Any) -> Any:
    """A gradient operator. With a graph it is differentiable, so that its derivative raises."""
    return operator(*args) if torch.is_grad_enabled() else below(operator, *args)


def deal(needs: Sequence[bool], gradients: Iterable[Tensor]) -> list[Tensor | None]:
    """Puts the gradients of the needed inputs at their places."""
    following = iter(gradients)
    return [next(following) if need else None for need in needs]


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


def flat_kernel(function: Any) -> Callable[..., Any]:
    """The kernel of an operator whose last argument is a list, which its Function takes flat."""
    return lambda *args: record(function, *args[:-1], *args[-1])


def final_kernel(operator: Any) -> Callable[..., Any]:
    """The kernel of a gradient operator, whose last argument is a list: its gradient raises."""

    def kernel(*args: Any) -> list[Tensor]:
        single = len(args) - 1

        def run(*flat: Any) -> tuple[Tensor, ...]:
            return tuple(below(operator, *flat[:single], flat[single:]))

        return list(record(Final, run, _NO_SECOND, *args[:-1], *args[-1]))

    return kernel
