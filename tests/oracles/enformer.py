"""Avsec et al. 2021 (Enformer), methods: features of the distance, as enformer-pytorch computes
them."""

import math

import torch

from tests.oracles.transformer_xl import by_head

SPANS = READS_LENGTH = True


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [
        sizes | {"features": 12, "length": 40},
        sizes | {"features": 6},
        sizes | {"features": 24, "length": 1000},
    ]


def features_of(n, length, count):
    """(features [N, 3 count] of magnitudes n, a bound of the logarithms that they come from)."""
    half_life = 2.0 ** torch.linspace(3.0, math.log2(length), count, dtype=torch.float64)
    falling = torch.exp(-math.log(2.0) / half_life * n[:, None])
    width = 2.0 ** torch.arange(1, count + 1, dtype=torch.float64) - 1
    mask = (width > n[:, None]).double()
    mean = torch.linspace(length / count, length, count, dtype=torch.float64)
    deviation = length / (2 * count)
    shape, rate = (mean / deviation) ** 2, mean / deviation**2
    log = torch.xlogy(shape - 1, n[:, None]) - rate * n[:, None]
    density = torch.exp(log - (torch.lgamma(shape) - shape * rate.log())) + 1e-8
    gamma = density / density.amax(-1, keepdim=True)
    size = shape * (n[:, None] + 1).log() + rate * n[:, None] + torch.lgamma(shape)
    size = size + shape * rate.log().abs() + 10.0
    sizes = torch.cat([1 + n[:, None] + 0 * size, 0 * size, size], -1)
    return torch.cat([falling, mask, gamma], -1), sizes


def terms(options, parameters, pos_q, pos_k):
    weight, count = parameters["to_rel_k.weight"], options["features"] // 6
    length = max(options.get("length") or options["call_length"], 1)
    delta, at = torch.unique(pos_k[None, :] - pos_q[:, None], return_inverse=True)
    found, size = features_of(delta.abs().double(), length, count)
    found = torch.cat([found, delta.sign()[:, None] * found], -1)
    if "sizes" in options:  # of an exponential, whose argument in double is off by 2^-53 of itself
        found = found.abs() * (1.0 + 8 * torch.cat([size, size], -1) * 2.0**-53 / options["sizes"])
    root = math.sqrt(options["head_dim"])
    return {
        "query_added": root * parameters["rel_content_bias"],
        "key_rows": by_head(weight, options["heads"], found)[:, at],
        "key_rows_added": root * parameters["rel_pos_bias"],
    }
