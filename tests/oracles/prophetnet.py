"""Qi et al. 2020 (ProphetNet): each query brings a number for every bucket."""

from tests.oracles import t5


def configs(heads, head_dim, value_dim):
    return [{}, {"buckets": 6, "max_distance": 20}, {"buckets": 4, "max_distance": 9}]


def inputs(options, batch, heads, queries, keys, normal):
    return {"bias": normal(batch, heads, queries, options.get("buckets", 32))}


def terms(options, parameters, pos_q, pos_k):
    buckets, far = options.get("buckets", 32), options.get("max_distance", 128)
    own = {"buckets": buckets, "max_distance": far, "bidirectional": False}
    index = t5.bucket(own, pos_q, pos_k)
    return {"bias": parameters["bias"].gather(-1, index.expand(len(parameters["bias"]), -1, -1))}
