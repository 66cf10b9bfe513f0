"""Peng et al. 2023 (YaRN), section 3.2: slow pairs turn slower, fast ones as before, a ramp in
between; cosines and sines grow."""

import math

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    short = {"factor": 4.0, "original_max_position_embeddings": 64, "base": 100.0}
    return sized(
        head_dim,
        {"factor": 16.0},
        {"layout": "interleaved", **short, "beta_fast": 8.0},
        {**short, "truncate": False, "attention_factor": 0.5},
        {**short, "mscale": 0.7, "mscale_all_dim": 1.5},
        {**short, "angle": "float32", "beta_fast": 4.0},
        {**short, "factor": 0.5, "beta_fast": 1.0},
    )


def pair_of(options, dims, turns):
    """The pair, as a fraction, that makes so many turns in the original context."""
    context = options.get("original_max_position_embeddings", 4096)
    base = options.get("base", 10000.0)
    return dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))


def blended(options, frequency):
    dims = 2 * len(frequency)
    low = pair_of(options, dims, options.get("beta_fast", 32.0))
    high = pair_of(options, dims, options.get("beta_slow", 1.0))
    if options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(dims // 2, dtype=frequency.dtype) - low) / (high - low)
    slow = ramp.clamp(0, 1)
    return frequency / options["factor"] * slow + frequency * (1 - slow)


def magnitude(options):
    def grown(times):
        return 1.0 if options["factor"] <= 1 else 0.1 * times * math.log(options["factor"]) + 1.0

    if options.get("attention_factor") is not None:
        return options["attention_factor"]
    if options.get("mscale") and options.get("mscale_all_dim"):
        return grown(options["mscale"]) / grown(options["mscale_all_dim"])
    return grown(1.0)


def terms(options, parameters, pos_q, pos_k):
    frequency = blended(options, inverse_frequencies(options, dims_of(options)))
    return rotation(options, frequency, magnitude(options))
