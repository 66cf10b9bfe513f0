"""bloc97 2023 (NTK-aware scaling): the slowest pair turns slower, the fastest as before."""

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {"factor": 8.0},
        {"layout": "interleaved", "factor": 1.5, "base": 100.0},
        {"factor": 3.0, "angle": "float32"},
    )


def stretched(options, dims, factor):
    """The frequencies of the base with which the slowest pair is `factor` times slower."""
    base = options.get("base", 10000.0)
    if dims > 2:
        base = base * factor ** (dims / (dims - 2))
    return inverse_frequencies(options | {"base": base}, dims)


def terms(options, parameters, pos_q, pos_k):
    return rotation(options, stretched(options, dims_of(options), options["factor"]))
