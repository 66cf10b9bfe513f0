"""emozilla 2023 (dynamic NTK scaling): the base grows with the length of the call."""

from tests.oracles.rope import dims_of, rotation, sized
from tests.oracles.rope_ntk import stretched

ROTATES = READS_LENGTH = True


def configs(heads, head_dim, value_dim):
    return sized(
        head_dim,
        {"layout": "interleaved", "factor": 4.0, "length": 9000},
        {"factor": 2.0, "max_position_embeddings": 20},
        {"factor": 1.5, "max_position_embeddings": 1},
    )


def terms(options, parameters, pos_q, pos_k):
    most, factor = options.get("max_position_embeddings", 2048), options["factor"]
    length = max(options.get("length") or options["call_length"], most)
    growth = factor * length / most - (factor - 1)
    return rotation(options, stretched(options, dims_of(options), growth))
