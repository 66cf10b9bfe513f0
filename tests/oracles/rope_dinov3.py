"""Simeoni et al. 2025 (DINOv3): axial RoPE by the centres of patches, from -1 to 1 in the image."""

import math

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized
from tests.oracles.rope_axial import place, row_and_column, sides  # noqa: F401

ROTATES = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {"grid": [5, 7]},
        {"grid": 4, "layout": "interleaved", "base": 10.0},
        {"grid": [14, 12], "prefix": 5},
        {"grid": [3, 6], "prefix": 1, "angle": "float32"},
        multiple=4,
    )


def terms(options, parameters, pos_q, pos_k):
    dims = dims_of(options)
    ladder = inverse_frequencies({"base": 100.0} | options, dims // 2).double()
    height, width = sides(options)

    def axes(position):
        before = (position < 0) & (options.get("prefix", 0) > 0)
        pairs = zip(row_and_column(options, position), (height, width), strict=True)
        found = [torch.where(before, 0, 2 * at + 1 - side) for at, side in pairs]
        return torch.cat([at[:, None].expand(-1, dims // 4) for at in found], dim=-1)

    frequency = torch.cat([2 * math.pi / side * ladder for side in (height, width)])
    if options.get("angle", "double") == "float32":
        frequency = frequency.float()
    return rotation(options, frequency, axes=axes)
