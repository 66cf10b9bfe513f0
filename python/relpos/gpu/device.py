"""The device of a call, and what it needs."""

import contextlib
import re
import subprocess
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_SAFE_PTXAS = (13, 3)  # before it, products on Hopper whose input is in registers are wrong
_chips: dict[torch.device, int] = {}
_copies = WeakTensorKeyDictionary()


def on(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def uploaded(tensor: Tensor, device: torch.device) -> Tensor:
    """The numbers on the device, of a tensor that is kept and does not change: they are copied
    once, since a copy waits for the device."""
    if tensor.device == device:
        return tensor
    held = _copies.setdefault(tensor, {})
    if device not in held:
        held[device] = tensor.to(device)
    return held[device]


def chip(device: torch.device) -> int:
    """The row of the table of tiles for a device."""
    if device not in _chips:
        _chips[device] = _found(device)
    return _chips[device]


def _found(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise NotImplementedError(
            f"query: {device} has compute capability {major}.{minor}; the kernels need 8.0 or later"
        )
    if major == 9:
        _check_ptxas()
    return {9: 90, 10: 100}.get(major, 80)


def _check_ptxas() -> None:
    from triton.backends.nvidia.compiler import get_ptxas

    found = get_ptxas(90).path
    text = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.search(r"release (\d+)\.(\d+)", text).groups()
    if (int(major), int(minor)) < _SAFE_PTXAS:
        raise RuntimeError(
            f"{found}: version {major}.{minor} of ptxas compiles products on Hopper wrongly "
            "(triton #11781): install triton 3.9 or later, or set TRITON_PTXAS_PATH to a ptxas "
            "from 13.3 on"
        )
