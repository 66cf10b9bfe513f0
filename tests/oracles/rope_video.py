"""Yang et al. 2024 (CogVideoX), 3D-RoPE: a pair turns by the frame, row or column of a patch."""

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    pairs = head_dim // 2
    return sized(
        head_dim,
        {"grid": [3, 5]},
        {"grid": 2, "layout": "interleaved", "prefix": 4, "base": 256.0},
        {"grid": [4, 3], "section": [pairs, 0, 0], "angle": "float32"},
        {"grid": [5, 2], "section": [0, pairs - pairs // 2, pairs // 2], "prefix": 1},
    )


def place(options, tokens):
    return tokens - options.get("prefix", 0)


def terms(options, parameters, pos_q, pos_k):
    grid, pairs = options["grid"], dims_of(options) // 2
    height, width = (grid, grid) if isinstance(grid, int) else grid
    third = pairs // 3
    section = options.get("section") or [pairs - 2 * third, third, third]
    frequency = torch.cat([inverse_frequencies(options, 2 * n) for n in section])

    def axes(position):
        if options.get("prefix", 0):
            position = position.clamp(min=0)
        row, column = position.div(width, rounding_mode="floor"), position % width
        found = (row.div(height, rounding_mode="floor"), row % height, column)
        return torch.cat(
            [at[:, None].expand(-1, n) for at, n in zip(found, section, strict=True)], dim=-1
        )

    return rotation(options, frequency, axes=axes)
