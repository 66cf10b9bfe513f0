"""Li et al. 2026 (Clipped RoPE): the last pairs turn (1 + cos(linspace(0, pi, n))) / 2 times as
fast, as the authors' code has it."""

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {},
        {"layout": "interleaved", "clipped": 3, "base": 500000.0},
        {"clipped": 1},
        {"clipped": 0},
        {"clipped": 5, "angle": "float32", "base": 100.0},
    )


def terms(options, parameters, pos_q, pos_k):
    dims = dims_of(options)
    frequency = inverse_frequencies(options, dims)
    clipped = min(options.get("clipped", 20), dims // 2)
    kept = 0.5 * (1 + torch.linspace(0, torch.pi, clipped, dtype=frequency.dtype).cos())
    ones = torch.ones(dims // 2 - clipped, dtype=frequency.dtype)
    return rotation(options, frequency * torch.cat([ones, kept]))
