"""The checks of where a tensor argument lies."""

from typing import Any

import torch
from torch import Tensor

DEVICES = ("cpu", "meta")


def is_alike(tensor: Any, like: Tensor) -> bool:
    """Whether `tensor` is a dense one on the device of `like`."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.device == like.device
    )


def check_memory(name: str, tensor: Any, like: Tensor | None = None, of: str = "query") -> None:
    """Raises unless `tensor` is dense, and on the CPU or of a shape alone (meta); where `like` is
    given, on its device."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_nested:
        got = "a nested one" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name}: expected a dense tensor, got {got}")
    if not tensor.is_cpu and tensor.device.type not in DEVICES:
        raise ValueError(
            f"{name}: expected a tensor on the CPU, got {tensor.device}; relpos computes on "
            "the CPU: move it with .cpu()"
        )
    if like is not None:
        check_device(name, tensor, like, of)


def check_device(name: str, tensor: Tensor, like: Tensor, of: str = "query") -> None:
    """Raises unless two tensors are on one device. PyTorch computes the shape alone where one of
    them is on meta, and the result may be memory that nobody wrote."""
    if tensor.device != like.device:
        raise ValueError(
            f"{name}: expected a tensor on {like.device}, as {of} is, got {tensor.device}"
        )
