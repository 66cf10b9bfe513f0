"""What is asked of a tensor argument: its dtype, its rank, and where it lies."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.errors import kind_of, shape_of, wrong_type, wrong_value

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32)
DEVICES = ("cpu", "cuda", "meta")


def is_alike(tensor: Any, like: Tensor) -> bool:
    """Whether `tensor` is a dense one on the device of `like`."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.device == like.device
    )


def check_rank(name: str, tensor: Any, rank: int, layout: str, *, or_more: bool = False) -> None:
    """Raises unless `tensor` is one of rank `rank`, or more where said, laid out as `layout`."""
    if not isinstance(tensor, Tensor):
        raise wrong_type(name, "a torch.Tensor", kind_of(tensor))
    if tensor.is_nested:
        raise TypeError(
            f"{name}: expected a dense tensor, got a nested one; relpos.attention_varlen takes "
            "sequences of many lengths, one after another"
        )
    if tensor.dim() != rank and not (or_more and tensor.dim() > rank):
        expected = f"rank {rank} or more" if or_more else f"rank {rank}"
        raise wrong_value(name, f"{expected}, {layout}", shape_of(tensor))


def check_heads(**tensors: Any) -> None:
    """Raises unless query, and key and value where given, are of rank 4."""
    for name, tensor in tensors.items():
        check_rank(name, tensor, 4, "[B, H, Lq, D]" if name == "query" else "[B, Hk, Lk, D]")


def check_shape(name: str, tensor: Any, *shapes: Sequence[int]) -> None:
    """Raises unless `tensor` is one of these shapes."""
    if not isinstance(tensor, Tensor):
        raise wrong_type(name, "a torch.Tensor", kind_of(tensor))
    if tuple(tensor.shape) not in shapes:
        raise wrong_value(name, " or ".join(str([*shape]) for shape in shapes), shape_of(tensor))


def check_memory(name: str, tensor: Any, like: Tensor | None = None, of: str = "query") -> None:
    """Raises unless `tensor` is dense, and on the CPU, on CUDA or of a shape alone (meta); where
    `like` is given, on its device."""
    if not isinstance(tensor, Tensor):
        raise wrong_type(name, "a torch.Tensor", kind_of(tensor))
    if tensor.layout != torch.strided or tensor.is_nested:
        got = "a nested one" if tensor.is_nested else tensor.layout
        raise wrong_type(name, "a dense tensor", got)
    if not tensor.is_cpu and tensor.device.type not in DEVICES:
        raise ValueError(
            f"{name}: expected a tensor on the CPU or on CUDA, got {tensor.device}: move it with "
            ".cpu() or .cuda()"
        )
    if like is not None:
        check_device(name, tensor, like, of)


def check_device(name: str, tensor: Tensor, like: Tensor, of: str = "query") -> None:
    """Raises unless two tensors are on one device. PyTorch computes the shape alone where one of
    them is on meta, and the result may be memory that nobody wrote."""
    if tensor.device != like.device:
        raise wrong_value(name, f"a tensor on {like.device}, as {of} is", tensor.device)


def check_parameters(text: str, tensors: Sequence[Any], like: Tensor, of: str = "query") -> None:
    """Raises, with the parameter's name, unless all tensors of a position lie where `like` does."""
    for n, tensor in enumerate(tensors):
        if not is_alike(tensor, like):
            name, *_ = _core.list_tensors(text)[n]
            check_memory(f"position: {name}", tensor, like, of)


def tensor_of(name: str, tensor: Any, dtypes: Sequence[torch.dtype]) -> Tensor:
    """The tensor, if it is one of these dtypes."""
    expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if not isinstance(tensor, Tensor):
        raise wrong_type(name, f"a {expected} tensor", kind_of(tensor))
    if tensor.dtype not in dtypes:
        raise wrong_type(name, expected, tensor.dtype)
    return tensor


def integers(name: str, tensor: Any) -> Tensor:
    return tensor_of(name, tensor, INTEGERS).to(torch.int64)
