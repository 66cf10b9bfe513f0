"""The plan of models whose ALiBi is a dense tensor that a method of the model builds."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import relpos
from relpos.hf._adapter import Plan
from relpos.hf._lazy import Bias, Mask


def first_query(mask: Mask | Tensor | None, query: Tensor, key: Tensor) -> int | Tensor:
    """Position of query 0: a cache of a fixed size has room for keys after the last query."""
    return mask.q_start if isinstance(mask, Mask) else key.shape[2] - query.shape[2]


def alibi_plan(
    mixin: type, owner: nn.Module, builder: str, arguments: tuple, lazy: Callable[..., Bias]
) -> Plan:
    """ALiBi with the slopes that owner's method `builder` gives for the `arguments` of two keys.
    `lazy` replaces this method. The mixin reads _relpos_position."""
    with torch.no_grad():
        two = getattr(owner, builder)(*arguments)
    slopes = two[:, 0, 1] - two[:, 0, 0]
    return Plan(
        "ALiBi in the kernel",
        mixin,
        {"_relpos_position": relpos.ALiBi(len(slopes), slopes=slopes)},
        also=((owner, {builder: lazy}),),
    )
