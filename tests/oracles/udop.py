"""Tang et al. 2023 (UDOP), section 3.2: T5's buckets of distances in text, across and down a page.

On the page a distance is a whole number of hundredths of its side, rounded towards 0. Coordinates
here have `unit` units in a hundredth.
"""

import torch

from tests.oracles import t5


def configs(heads, head_dim, value_dim):
    small = {"buckets": 8, "max_distance": 20, "max_distance_2d": 12}
    return [
        {"heads": heads},
        {"heads": heads, "unit": 3} | small,
        {"heads": heads, "unit": 1, "buckets": 2} | {"max_distance": 9, "max_distance_2d": 10},
    ]


def inputs(options, batch, heads, queries, keys, normal):
    def drawn(length):
        return (20.0 * options.get("unit", 20) * normal(batch, 2, length)).long()

    return {"q_coordinates": drawn(queries), "k_coordinates": drawn(keys)}


def terms(options, parameters, pos_q, pos_k):
    buckets, unit = options.get("buckets", 32), options.get("unit", 20)
    far = {"max_distance": options.get("max_distance", 128)}
    index = [t5.bucket({"buckets": buckets} | far, pos_q, pos_k)]
    far = {"max_distance": options.get("max_distance_2d", 100)}
    for at_q, at_k in zip(parameters["q_coordinates"], parameters["k_coordinates"], strict=True):
        units = (at_k[None, :] - at_q[:, None]).div(unit, rounding_mode="trunc")
        pairs = [t5.bucket({"buckets": buckets} | far, torch.zeros(1).long(), row) for row in units]
        index.append(torch.cat([*pairs, torch.empty(0, len(at_k)).long()]))
    tables = [parameters[f"biases.{n}.relative_attention_bias.weight"] for n in range(3)]
    return {"bias": sum(t[at] for t, at in zip(tables, index, strict=True)).permute(2, 0, 1)}
