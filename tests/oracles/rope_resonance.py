"""Wang et al. 2024 (Resonance RoPE): each pair comes round after a whole number of tokens."""

import math

import torch

from oracles.rope import dims_of, inverse_frequencies, rotation

ROTATES = True


def configs(heads, head_dim, value_dim):
    even = head_dim - head_dim % 2
    if even == 0:
        return [None] * 3
    sizes = {"head_dim": head_dim, "rotary_dim": even}
    return [
        sizes | {"layout": "half"},
        sizes | {"layout": "interleaved", "base": 100.0},
        sizes | {"layout": "half", "angle": "float32"},
    ]


def terms(options, parameters, pos_q, pos_k):
    frequency = inverse_frequencies(options, dims_of(options))
    turn = torch.tensor(2 * math.pi, dtype=frequency.dtype)
    return rotation(options, turn / (turn / frequency).round())
