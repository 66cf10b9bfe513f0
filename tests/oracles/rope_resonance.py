"""Wang et al. 2024 (Resonance RoPE): each pair comes round after a whole number of tokens."""

import math

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {},
        {"layout": "interleaved", "base": 100.0},
        {"angle": "float32"},
    )


def terms(options, parameters, pos_q, pos_k):
    frequency = inverse_frequencies(options, dims_of(options))
    turn = torch.tensor(2 * math.pi, dtype=frequency.dtype)
    return rotation(options, turn / (turn / frequency).round())
