"""RoPE with the frequencies of Llama 3.1: those of long waves are divided by a factor, those of
short ones are kept, and in between they are blended."""

import math

import torch

from tests.oracles.rope import dims_of, half_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    short = {"original_max_position_embeddings": 64, "base": 100.0}
    part = {"rotary_dim": half_of(head_dim - head_dim % 2), "angle": "float32"}
    whole = {"head_dim": head_dim, "layout": "interleaved", **short}
    return [
        *sized(
            head_dim,
            {},
            {"layout": "interleaved", "factor": 32.0},
            {**short, "factor": 4.0},
            {**short, "low_freq_factor": 0.5, "high_freq_factor": 16.0},
            {"layout": "interleaved", **short, **part},
        ),
        None if head_dim % 2 else whole,
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
