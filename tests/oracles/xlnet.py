"""Yang et al. 2019 (XLNet), section 2.5: Transformer-XL's attention and relative segments.

score = scale (<q_i + r_w_bias, k_j> + <q_i + r_r_bias, r R(pos_q - pos_k)> + <q_i + r_s_bias, e_s>)
with s = 0 for tokens of one segment and 1 for tokens of two.
"""

import torch

from tests.oracles.transformer_xl import distances, waves

SPANS = True


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [
        sizes | {"width": 8},
        sizes | {"width": 2, "clamp_len": 1},
        sizes | {"width": 34, "clamp_len": 40},
        sizes | {"width": 6, "segments": False},
    ]


def inputs(options, batch, heads, queries, keys, normal):
    def drawn(length):
        return (normal(batch, length) > 0.5).long() + (normal(batch, length) > 1.5).long()

    if not options.get("segments", True):
        return {}
    return {"q_segments": drawn(queries), "k_segments": drawn(keys)}


def projected(weight, features):
    """[H, n, D] of a weight [width, H, D] and features [n, width]."""
    return torch.einsum("nw,whd->hnd", features.to(weight.dtype), weight)


def terms(options, parameters, pos_q, pos_k):
    n, at = distances(options, pos_q, pos_k)
    rows = projected(parameters["r"], waves(options, n))
    found = {
        "query_added": parameters["r_w_bias"],
        "key_rows": rows[:, at],
        "key_rows_added": parameters["r_r_bias"],
    }
    if options.get("segments", True):
        other = parameters["q_segments"][:, None] != parameters["k_segments"][None, :]
        found["segment_rows"] = parameters["seg_embed"].transpose(0, 1)[:, other.long()]
        found["segment_rows_added"] = parameters["r_s_bias"]
    return found
