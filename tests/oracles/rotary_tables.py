"""Queries and keys turn by cosines and sines that are inputs of the call."""

import torch

from tests.oracles.rope import dims_of, pairs, sized

ROTATES = KEY_HEADS = True
NAMES = ("q_cos", "q_sin", "k_cos", "k_sin")


def configs(heads, head_dim, value_dim, key_heads):
    return sized(
        head_dim,
        {},
        {"layout": "interleaved"},
        {"layout": "interleaved", "rotary_dim": 2, "start": head_dim - 2},
        {"kv_heads": key_heads},
        {"layout": "interleaved", "kv_heads": 1},
    )


def inputs(options, batch, heads, queries, keys, normal):
    """Cosines and sines of lengths about 1."""
    lengths = (queries, queries, keys, keys)
    own = [options["kv_heads"]] if "kv_heads" in options else []
    return {
        name: 0.7 * normal(batch, *own, length, dims_of(options) // 2)
        for name, length in zip(NAMES, lengths, strict=True)
    }


def terms(options, parameters, pos_q, pos_k):
    q_cos, q_sin, k_cos, k_sin = (parameters[name] for name in NAMES)

    def rotate(x, at, minus=-1):
        if at.dim() == 4:  # [2, key heads, L, pairs]; a query turns as the key head of its group
            at = at.repeat_interleave(x.shape[-3] // at.shape[1], 1)
        return pairs(options, x, *at, minus)

    def rotate_sizes(x, at):
        return rotate(x, at, 1)

    return {
        "rotate": rotate,
        "rotate_sizes": rotate_sizes,
        "q_coordinates": torch.stack([q_cos, q_sin]),
        "k_coordinates": torch.stack([k_cos, k_sin]),
    }
