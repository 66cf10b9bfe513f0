"""Heo et al. 2024 (RoPE-Mixed): pair p of head h turns by freqs[0, h, p] x + freqs[1, h, p] y."""

import torch

from tests.oracles.rope import pairs
from tests.oracles.rope_axial import place, row_and_column  # noqa: F401

ROTATES = NONLINEAR = KEY_HEADS = True


def configs(heads, head_dim, value_dim, key_heads):
    most = head_dim - head_dim % 4
    if most == 0:
        return [None] * 4
    sizes = {"heads": heads, "head_dim": head_dim, "rotary_dim": most}
    if key_heads != heads:
        sizes["kv_heads"] = key_heads
    return [
        sizes | own
        for own in (
            {"grid": [5, 7]},
            {"grid": 4, "layout": "half", "indexing": "ij"},
            {"grid": 9, "prefix": 3, "kv_heads": 1},
            {"grid": [7, 2], "rotary_dim": 4, "start": head_dim - 4},
        )
    ]


def coordinates(options, position):
    """[2, L] in double, of freqs[0] and of freqs[1]."""
    row, column = row_and_column(options, position)
    before = (position < 0) & (options.get("prefix", 0) > 0)
    both = [row, column] if options.get("indexing", "xy") == "ij" else [column, row]
    return torch.stack(both).masked_fill(before, 0).double()


def terms(options, parameters, pos_q, pos_k):
    freqs = parameters["freqs"].double()

    def angles(at, heads):
        """[heads, L, pairs]; a query turns as the key head of its group."""
        angle = torch.einsum("al,ahp->hlp", at, freqs)
        return angle.repeat_interleave(heads // angle.shape[0], dim=0)

    def rotate(x, position):
        angle = angles(coordinates(options, position), x.shape[-3])
        return pairs(options, x, angle.cos().to(x.dtype), angle.sin().to(x.dtype), -1)

    def rotate_sizes(x, position):
        """|cos| and |sin|, and the same as derivatives of each other."""
        at = coordinates(options, position)
        angle, change = angles(at, x.shape[-3]).detach(), angles(at.abs(), x.shape[-3])
        change = change - change.detach()
        cos, sin = angle.cos().abs() + 2.0**-20, angle.sin().abs() + 2.0**-20
        return pairs(options, x, cos + sin * change, sin + cos * change, 1)

    return {"rotate": rotate, "rotate_sizes": rotate_sizes}
