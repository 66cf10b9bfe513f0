"""Proportional RoPE (Gemma 4): exponents over the whole head; slow pairs do not turn."""

import torch

from oracles.rope import dims_of, inverse_frequencies, rotation

ROTATES = True


def configs(heads, head_dim, value_dim):
    even = head_dim - head_dim % 2
    if even == 0:
        return [None] * 4
    sizes = {"head_dim": head_dim, "rotary_dim": even}
    return [
        sizes | {"layout": "half", "partial_rotary_factor": 0.5},
        sizes | {"layout": "interleaved", "partial_rotary_factor": 0.25, "base": 100.0},
        sizes | {"layout": "half", "partial_rotary_factor": 0.7, "factor": 4.0},
        sizes | {"layout": "half", "partial_rotary_factor": 0.0},
    ]


def terms(options, parameters, pos_q, pos_k):
    dims = dims_of(options)
    turning = int(options["partial_rotary_factor"] * dims // 2)
    frequency = inverse_frequencies(options, dims) / options.get("factor", 1.0)
    return rotation(options, torch.where(torch.arange(dims // 2) < turning, frequency, 0.0))
