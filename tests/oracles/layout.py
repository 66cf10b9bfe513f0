"""Xu et al. 2021 (LayoutLMv2), section 3.2: T5's buckets of distances in text, in x and in y."""

from tests.oracles import t5


def configs(heads, head_dim, value_dim):
    small = {"buckets": 8, "max_distance": 20, "buckets_2d": 12, "max_distance_2d": 60}
    return [{"heads": heads}, {"heads": heads, "bias_scale": 0.3} | small]


def inputs(options, batch, heads, queries, keys, normal):
    def drawn(length):
        return (100.0 * normal(batch, 2, length)).long()

    return {"q_coordinates": drawn(queries), "k_coordinates": drawn(keys)}


def bucket(options, suffix, default, at_q, at_k):
    own = {n: options.get(n + suffix, d) for n, d in default.items()}
    return t5.bucket(own | {"bidirectional": True}, at_q, at_k)


def terms(options, parameters, pos_q, pos_k):
    text, page = {"buckets": 32, "max_distance": 128}, {"buckets": 64, "max_distance": 256}
    bias = parameters["rel_pos_bias.weight"][:, bucket(options, "", text, pos_q, pos_k)]
    sides = zip("xy", parameters["q_coordinates"], parameters["k_coordinates"], strict=True)
    for axis, at_q, at_k in sides:
        table = parameters[f"rel_pos_{axis}_bias.weight"]
        bias = bias + table[:, bucket(options, "_2d", page, at_q, at_k)]
    return {"bias": options.get("bias_scale", 1.0) * bias}
