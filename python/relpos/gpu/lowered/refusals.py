"""What no kernel computes, by name."""

from typing import Any, NoReturn

import torch
from torch import Tensor

MOST_HEAD_DIM = 256
# The fields of a call that the kernels read. Others must be as they are where nothing is given.
_READ = {
    *("position", "is_causal", "scale", "enable_gqa", "window", "q_offset", "q_offsets"),
    *("k_offset", "k_offsets", "parameters", "q_positions", "k_positions", "key_lo", "key_hi"),
    *("key_padding_mask", "attn_mask", "softcap", "dropout_p", "seed"),
    *("tile_ranges", "tile_entries", "tile_words", "tile_lengths"),
}


def check_options(query: Tensor, value: Tensor | None, call: Any) -> None:
    default = type(call)()
    for name, given, held in zip(call._fields, call, default, strict=True):
        if name not in _READ and given != held:
            refuse(name)
    if query.dtype == torch.float64:
        refuse("query", "float64 has no kernel")
    for name, tensor in (("query", query), ("value", value)):
        if tensor is not None and tensor.dim() == 4 and tensor.shape[3] > MOST_HEAD_DIM:
            refuse(name, f"a head size above {MOST_HEAD_DIM} has no kernel", tensor.shape[3])


def refuse(name: str, why: str = "has no kernel", got: Any = None) -> NoReturn:
    came = "" if got is None else f", got {got}"
    raise NotImplementedError(
        f"{name}: {why} on the GPU yet{came}; docs/gpu.md lists what has. relpos computes "
        "the call on the CPU: move its tensors with .cpu()"
    )
