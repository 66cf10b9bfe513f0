"""Heo et al. 2024 (axial RoPE): half of the pairs turn by a row, half by a column."""

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {"grid": [5, 7]},
        {"grid": 4, "first": "x", "layout": "interleaved", "base": 100.0},
        {"grid": [3, 6], "ladder": "shared"},
        {"grid": [7, 2], "prefix": 3, "origin": 1},
        {"grid": 12, "ladder": "shared", "first": "x", "prefix": 1},
        {"rotary_dim": 4, "grid": 9, "angle": "float32"},
        multiple=4,
    )


def sides(options):
    grid = options["grid"]
    return (grid, grid) if isinstance(grid, int) else grid


def place(options, tokens):
    """Patches stand as in swin, after the tokens that belong to no patch."""
    _, width = sides(options)
    patch = tokens - options.get("prefix", 0)
    return patch.div(width, rounding_mode="floor") * (2 * width - 1) + patch % width


def row_and_column(options, position):
    stride = 2 * sides(options)[1] - 1
    return position.div(stride, rounding_mode="floor"), position % stride


def terms(options, parameters, pos_q, pos_k):
    dims, angle = dims_of(options), options.get("angle", "double")
    own = {"base": options.get("base", 10000.0), "angle": angle}
    if options.get("ladder", "each") == "each":
        of_y = of_x = inverse_frequencies(own, dims // 2)
    else:
        whole = inverse_frequencies(own, dims)
        of_y, of_x = whole[0::2], whole[1::2]
    y_first = options.get("first", "y") == "y"

    def axes(position):
        before = (position < 0) & (options.get("prefix", 0) > 0)
        found = [
            torch.where(before, 0, at + options.get("origin", 0))[:, None].expand(-1, dims // 4)
            for at in row_and_column(options, position)
        ]
        return torch.cat(found if y_first else found[::-1], dim=-1)

    frequency = torch.cat([of_y, of_x] if y_first else [of_x, of_y])
    return rotation(options, frequency, axes=axes)
