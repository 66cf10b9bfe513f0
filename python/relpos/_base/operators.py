"""Operators torch.ops.relpos.*: checked by the C++ library, opaque to PyTorch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from relpos import _core
from relpos._base.derivatives import final_kernel
from relpos._base.tensors import check_device, check_parameters

# "relpos", or another where the package has another name, as a kernel of the Kernel Hub.
NAMESPACE = __name__.removesuffix("._base.operators").replace(".", "_")
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_KEPT = 1 << 18  # bytes from which malloc gives the system back what is freed


def empty_like(tensor: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Uninitialised and contiguous, of the dtype and the device of `tensor`. On the CPU what is
    large is a block that the library keeps: new pages take 5 % of a step of B 8 H 8 L 128."""
    if shape is None:
        shape = tensor.shape
        if not tensor.is_cpu or tensor.nbytes < _KEPT:
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
    elif not tensor.is_cpu or math.prod(shape) * tensor.itemsize < _KEPT:
        return tensor.new_empty(shape)
    return from_dlpack(_core.kept_tensor(shape, tensor))


def define(
    name: str,
    arguments: str,
    returns: str,
    run: Any,
    fake: Any,
    keys: Sequence[str] = ("CPU",),
) -> Any:
    """The operator; fake(*arguments) makes results of the right shapes, run(*arguments) computes
    them for these keys of the dispatcher."""
    LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=torch.Tag.pt2_compliant_tag)
    for key in keys:
        LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", _on_one_device(name, fake), lib=LIBRARY)
    torch.library.register_vmap(f"{NAMESPACE}::{name}", _loop(name), lib=LIBRARY)
    return _operator(name)


def _operator(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def define_gradient(
    name: str,
    given: str,
    arguments: str,
    inputs: Callable[..., Sequence[Tensor | None]],
    run: Callable[..., None],
    keys: Sequence[str] = ("CPU",),
) -> Any:
    """The operator of tensors `given`, which flags say which gradients are needed, and `arguments`.

    It returns the gradients of those of inputs(given, arguments) that are needed, in their order.
    run(given, arguments, gradients) writes them; None is one that is not needed. Its own gradient
    raises an error.
    """
    count = given.count("Tensor")

    def made(empty: Any, args: Sequence[Any]) -> list[Tensor | None]:
        of = inputs(args[:count], args[count + 1 :])
        return [empty(t) if need else None for need, t in zip(args[count], of, strict=True)]

    def needed(gradients: list[Tensor | None]) -> list[Tensor]:
        return [gradient for gradient in gradients if gradient is not None]

    def computed(*args: Any) -> list[Tensor]:
        gradients = made(empty_like, args)
        run(args[:count], args[count + 1 :], gradients)
        return needed(gradients)

    operator = define(
        name,
        f"{given}, bool[] needs, {arguments}",
        "Tensor[]",
        computed,
        lambda *args: needed(made(lambda t: t.new_empty(t.shape), args)),
        keys,
    )
    LIBRARY.impl(name, final_kernel(operator), "Autograd")
    return operator


def _on_one_device(name: str, fake: Any) -> Any:
    """PyTorch calls `fake` where any argument is on meta, and beside those the real ones of a call
    would get results of no meaning. As in its own operators, a number on the CPU may stand beside
    tensors of any device."""

    def checked(*args: Any) -> Any:
        names = [a.name for a in _operator(name)._schema.arguments]
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

        overload = _operator(name)
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
