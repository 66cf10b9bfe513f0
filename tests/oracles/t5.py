"""Raffel et al. 2020, section 2.1, and the released code's buckets, decided in integers.

Bucket of a backward distance n >= exact: exact + floor(ln(n/exact) / ln(far/exact) * rest),
clipped. That floor is the largest k with n^rest * exact^k >= far^k * exact^rest: integers decide.
"""

from functools import lru_cache

import torch


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads},
        {"heads": heads, "bidirectional": False},
        {"heads": heads, "buckets": 6, "max_distance": 20, "bidirectional": False},
        {"heads": heads, "buckets": 6, "max_distance": 20, "bias_scale": 0.125},
        {"heads": heads, "buckets": 48, "max_distance": 81},
        {
            "heads": heads,
            "buckets": 36,
            "max_distance": 32,
            "bidirectional": False,
            "bias_scale": 3.0,
        },
        {"heads": heads, "buckets": 4, "max_distance": 200},
        {"heads": heads, "buckets": 9, "max_distance": 30, "bidirectional": False},
        {"heads": heads, "buckets": 2, "max_distance": 10},
    ]


@lru_cache
def buckets_of_backward_distances(buckets, far):
    """The bucket of n = 0 .. far; all beyond share the last one."""
    exact = buckets // 2
    rest = buckets - exact
    found, k = [], 0
    for n in range(far + 1):
        if n < exact:
            found.append(n)
            continue
        while k < rest and n**rest * exact ** (k + 1) >= far ** (k + 1) * exact**rest:
            k += 1
        found.append(min(buckets - 1, exact + k))
    return torch.tensor(found)


def bucket(options, pos_q, pos_k):
    """[Lq, Lk] of each pair."""
    buckets = options.get("buckets", 32)
    far = options.get("max_distance", 128)
    distance = pos_k[None, :] - pos_q[:, None]
    if options.get("bidirectional", True):
        half = buckets // 2
        side = half * (distance > 0).long()
        return side + buckets_of_backward_distances(half, far)[distance.abs().clamp(max=far)]
    return buckets_of_backward_distances(buckets, far)[(-distance).clamp(0, far)]


def terms(options, parameters, pos_q, pos_k):
    index = bucket(options, pos_q, pos_k)
    table = parameters["relative_attention_bias.weight"]
    return {"bias": options.get("bias_scale", 1.0) * table[index].permute(2, 0, 1)}
