"""Chen et al. 2023 (position interpolation): RoPE at positions divided by a factor."""

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {"factor": 8.0},
        {"layout": "interleaved", "factor": 0.5, "base": 100.0},
        {"factor": 3.0, "angle": "float32"},
    )


def terms(options, parameters, pos_q, pos_k):
    return rotation(options, inverse_frequencies(options, dims_of(options)) / options["factor"])
