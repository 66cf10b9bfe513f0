"""Ding et al. 2024 (LongRoPE): a factor for each pair, by the length of the call."""

import math

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = READS_LENGTH = True


def configs(heads, head_dim, value_dim):
    near = [1.0 + 0.1 * p for p in range(head_dim // 2)]
    far = [1.0 + 3.0 * p for p in range(head_dim // 2)]
    lists = {"short_factor": near, "long_factor": far}
    before = {"original_max_position_embeddings": 40}
    return sized(
        head_dim,
        lists | {"length": 4097, "attention_factor": 1.5, "layout": "interleaved"},
        lists | before | {"factor": 32.0},
        {"long_factor": far, "factor": 0.5} | before,
        lists | before | {"angle": "float32", "length": 40},
    )


def terms(options, parameters, pos_q, pos_k):
    dims = dims_of(options)
    before = options.get("original_max_position_embeddings", 4096)
    long = (options.get("length") or options["call_length"]) > before
    slower = options.get("long_factor" if long else "short_factor") or [1.0] * (dims // 2)
    frequency = inverse_frequencies(options, dims)
    frequency = 1 / (torch.tensor(slower, dtype=frequency.dtype) * (1 / frequency))
    grown = options.get("attention_factor")
    if grown is None:
        factor = options.get("factor", 1.0)
        grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(before))
    return rotation(options, frequency, grown)
