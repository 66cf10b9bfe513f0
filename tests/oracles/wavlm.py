"""Chen et al. 2022 (WavLM), section 3.1: T5 buckets of two directions, gated by each query."""

from tests.oracles import t5


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads},
        {"heads": heads, "buckets": 8, "max_distance": 20},
        {"heads": heads, "buckets": 4, "max_distance": 9},
    ]


def inputs(options, batch, heads, queries, keys, normal):
    return {"gate": normal(batch, heads, queries, 1)}


def terms(options, parameters, pos_q, pos_k):
    own = {"buckets": options.get("buckets", 320), "max_distance": options.get("max_distance", 800)}
    index = t5.bucket(own | {"bidirectional": True}, pos_q, pos_k)
    return {"bias": parameters["gate"] * parameters["rel_attn_embed.weight"].T[:, index]}
