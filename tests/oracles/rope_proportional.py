"""Proportional RoPE (Gemma 4): exponents over the whole head; slow pairs do not turn."""

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {"partial_rotary_factor": 0.5},
        {"layout": "interleaved", "partial_rotary_factor": 0.25, "base": 100.0},
        {"partial_rotary_factor": 0.7, "factor": 4.0},
        {"partial_rotary_factor": 0.0},
    )


def terms(options, parameters, pos_q, pos_k):
    dims = dims_of(options)
    turning = int(options["partial_rotary_factor"] * dims // 2)
    frequency = inverse_frequencies(options, dims) / options.get("factor", 1.0)
    return rotation(options, torch.where(torch.arange(dims // 2) < turning, frequency, 0.0))
