"""The plan of models whose ALiBi is a dense tensor that a method of the model builds."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import relpos
from relpos.hf._adapter import Plan
from relpos.hf._lazy import Bias, Mask
from relpos.hf._trial import agree, copied, numbers


def first_query(mask: Mask | Tensor | None, query: Tensor, key: Tensor) -> int | Tensor:
    """Position of query 0: a cache of a fixed size has room for keys after the last query."""
    return mask.q_start if isinstance(mask, Mask) else key.shape[2] - query.shape[2]


def alibi_plan(
    mixin: type,
    owner: nn.Module,
    builder: str,
    arguments: Callable[[int], tuple],
    lazy: Callable[..., Bias],
) -> Plan:
    """ALiBi with the slopes that owner's method `builder` gives for arguments(length). `lazy`
    replaces this method. The mixin reads _relpos_position."""
    build = getattr(copied(owner, children=False), builder)
    two = build(*arguments(2))
    slopes = two[:, 0, 1] - two[:, 0, 0]
    for length in (1, 2, 3, 16, 33, 130, *(n + 1 for n in numbers(owner.config)), 4096):
        bias = build(*arguments(length))[:, 0]
        line = slopes[:, None] * torch.arange(length)
        off = (bias - bias[:, :1] - line).abs().max() / line.abs().max().clamp(min=1.0)
        agree(off.item(), "ALiBi, which is linear in the distance", attention=False)
    return Plan(
        "ALiBi in the kernel",
        mixin,
        {"_relpos_position": relpos.ALiBi(len(slopes), slopes=slopes)},
        also=((owner, {builder: lazy}),),
    )
