"""How the parameters and fixed values of a position start."""

import math

import torch
from torch import Tensor

from relpos._position.registry import ParameterSpec


def initial(spec: ParameterSpec, dtype: torch.dtype = torch.float32) -> Tensor:
    if spec.init == "values":
        values = torch.tensor(spec.values, dtype=dtype)
        return (
            (values.expand(math.prod(spec.shape)) if len(spec.values) == 1 else values)
            .reshape(spec.shape)
            .clone()
        )
    if spec.init == "turned":  # the vectors [2, n] of one head, each head's by a random angle
        of = torch.tensor(spec.values, dtype=dtype).view(2, 1, -1)
        angle = torch.empty(spec.shape[1], 1, dtype=dtype).uniform_(0.0, 2.0 * math.pi)
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([cos * of[0] - sin * of[1], sin * of[0] + cos * of[1]])
    values = torch.empty(spec.shape, dtype=dtype)
    if spec.init == "uniform":
        return values.uniform_(spec.low, spec.high)
    return values.normal_(0.0, spec.deviation)
