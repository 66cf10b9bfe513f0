"""Vectors of each head that join the queries where these meet keys: u of Transformer-XL."""

from typing import Any

import torch
from torch import Tensor

from relpos.gpu.lowered.numbers import Numbers
from relpos.gpu.sums.targets import Targets


def with_added(run: Any, query: Tensor) -> Tensor:
    """The sum in float32, rounded to query's type."""
    if not run.lowered.added:
        return query
    total = query.float()
    for numbers in run.lowered.added:
        vectors = numbers.view(run.parameter(numbers)).float() * numbers.multiplier
        total = total + vectors[:, None, :]
    return total.to(query.dtype)


def write_added_gradient(numbers: Numbers, dq: Tensor, targets: Targets) -> None:
    """From the gradient of the sum, float32 [B, H, Lq, D]."""
    total = dq.sum((0, 2), dtype=torch.float64) * numbers.multiplier
    numbers.view(targets.to(numbers.parameter)).copy_(total)
