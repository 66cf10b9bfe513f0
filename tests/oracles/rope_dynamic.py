"""emozilla 2023 (dynamic NTK scaling): the base grows with the length of the call."""

from oracles.rope import dims_of, rotation
from oracles.rope_ntk import stretched

ROTATES = READS_LENGTH = True


def configs(heads, head_dim, value_dim):
    even = head_dim - head_dim % 2
    if even == 0:
        return [None] * 3
    sizes = {"head_dim": head_dim, "rotary_dim": even}
    return [
        sizes | {"layout": "interleaved", "factor": 4.0, "length": 9000},
        sizes | {"layout": "half", "factor": 2.0, "max_position_embeddings": 20},
        sizes | {"layout": "half", "factor": 1.5, "max_position_embeddings": 1},
    ]


def terms(options, parameters, pos_q, pos_k):
    most, factor = options.get("max_position_embeddings", 2048), options["factor"]
    length = max(options.get("length") or options["call_length"], most)
    growth = factor * length / most - (factor - 1)
    return rotation(options, stretched(options, dims_of(options), growth))
