"""Chen et al. 2023 (position interpolation): RoPE at positions divided by a factor."""

from oracles.rope import dims_of, inverse_frequencies, rotation

ROTATES = True


def configs(heads, head_dim, value_dim):
    even = head_dim - head_dim % 2
    if even == 0:
        return [None] * 3
    sizes = {"head_dim": head_dim, "rotary_dim": even}
    return [
        sizes | {"layout": "half", "factor": 8.0},
        sizes | {"layout": "interleaved", "factor": 0.5, "base": 100.0},
        sizes | {"layout": "half", "factor": 3.0, "angle": "float32"},
    ]


def terms(options, parameters, pos_q, pos_k):
    return rotation(options, inverse_frequencies(options, dims_of(options)) / options["factor"])
