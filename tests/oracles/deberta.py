"""He et al. 2021 (DeBERTa), equation 4: content to position and position to content.

Both meet in row m = clamp(bucket(pos_q - pos_k) + span, 0, 2 span - 1). The bucket of a distance x
beyond mid = buckets / 2 is mid + ceil(ln(x / mid) / ln((max_distance - 1) / mid) (mid - 1)), with
the sign of the distance. That ceiling is the least k with (max_distance - 1)^k mid^(mid - 1) >=
x^(mid - 1) mid^k: integers decide.
"""

from functools import lru_cache

import torch


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [
        sizes,
        sizes | {"buckets": 6, "max_distance": 20},
        sizes | {"buckets": 0, "max_distance": 5},
        sizes | {"buckets": 32, "max_distance": 128, "terms": "c2p"},
        sizes | {"buckets": 64, "max_distance": 100, "terms": "p2c"},
        sizes | {"buckets": 2, "max_distance": 10, "terms": "both"},
        sizes | {"buckets": 0, "max_distance": 140, "terms": "p2c"},
    ]


@lru_cache
def buckets_of_distances(buckets, far):
    """The bucket of 0, 1, ...; all beyond share the last one, or its row."""
    mid = buckets // 2
    found = list(range(mid + 1))
    k = 0
    while mid > 1 and found[-1] < buckets:
        x = len(found)
        while (far - 1) ** k * mid ** (mid - 1) < x ** (mid - 1) * mid**k:
            k += 1
        found.append(mid + k)
    return torch.tensor(found)


def rows(options, pos_q, pos_k):
    """[Lq, Lk]: m."""
    buckets = options.get("buckets", 256)
    distance = pos_q[:, None] - pos_k[None, :]
    span = buckets or options.get("max_distance", 512)
    if buckets:
        table = buckets_of_distances(buckets, options.get("max_distance", 512))
        distance = distance.sign() * table[distance.abs().clamp(max=len(table) - 1)]
    return (distance + span).clamp(0, 2 * span - 1)


def terms(options, parameters, pos_q, pos_k):
    at = rows(options, pos_q, pos_k)
    named = {"key_rows": "pos_key", "column_rows": "pos_query"}
    return {term: parameters[name][:, at] for term, name in named.items() if name in parameters}
