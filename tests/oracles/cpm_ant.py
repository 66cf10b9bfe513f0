"""CPM-Ant: T5's buckets within a segment, a number for each pair of segments between two."""

import torch

from tests.oracles import t5

NEAR = True


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads},
        {"heads": heads, "segments": 3, "buckets": 8, "max_distance": 20},
        {"heads": heads, "segments": 1, "buckets": 4, "max_distance": 10},
        {"heads": heads, "segments": 2, "buckets": 2, "max_distance": 200},
    ]


def inputs(options, batch, heads, queries, keys, normal):
    kinds = options.get("segments", 32)

    def drawn(length):
        return (2.0 * normal(batch, length)).long() % kinds

    return {"q_segments": drawn(queries), "k_segments": drawn(keys)}


def terms(options, parameters, pos_q, pos_k):
    own = {"buckets": 512, "max_distance": 2048} | options
    near = t5.bucket(own, pos_q, pos_k)
    of_q, of_k = parameters["q_segments"][:, None], parameters["k_segments"][None, :]
    pair = own["buckets"] + options.get("segments", 32) * of_q + of_k
    index = torch.where(of_q == of_k, near, pair)
    return {"bias": parameters["relative_attention_bias"][index].permute(2, 0, 1)}
