"""RoPE with the frequencies of Llama 3.1: those of long waves are divided by a factor, those of
short ones are kept, and in between they are blended."""

import math

import torch

from oracles.rope import dims_of, inverse_frequencies, rotation

ROTATES = True


def configs(heads, head_dim, value_dim):
    even = head_dim - head_dim % 2
    if even == 0:
        return [None] * 6
    sizes = {"head_dim": head_dim, "rotary_dim": even}
    part = max(2, even // 2 - even // 2 % 2)
    short = {"original_max_position_embeddings": 64, "base": 100.0}
    return [
        sizes | {"layout": "half"},
        sizes | {"layout": "interleaved", "factor": 32.0},
        sizes | {"layout": "half", **short, "factor": 4.0},
        sizes | {"layout": "half", **short, "low_freq_factor": 0.5, "high_freq_factor": 16.0},
        sizes | {"layout": "interleaved", **short, "rotary_dim": part, "angle": "float32"},
        None if head_dim % 2 else {"head_dim": head_dim, "layout": "interleaved", **short},
    ]


def blended(options, frequency):
    """Every step in the dtype of `frequency`."""
    low, high = options.get("low_freq_factor", 1.0), options.get("high_freq_factor", 4.0)
    factor = options.get("factor", 8.0)
    before = options.get("original_max_position_embeddings", 8192)
    wave = 2 * math.pi / frequency
    smooth = (before / wave - low) / (high - low)
    between = (1 - smooth) * frequency / factor + smooth * frequency
    scaled = torch.where(wave > before / low, frequency / factor, between)
    return torch.where(wave < before / high, frequency, scaled)


def terms(options, parameters, pos_q, pos_k):
    plain = {"base": 500000.0} | options
    return rotation(options, blended(options, inverse_frequencies(plain, dims_of(options))))
