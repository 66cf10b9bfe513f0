"""Dai et al. 2020 (Funnel-Transformer), appendix A.2, and its released code: XLNet's attention, in
which [CLS] meets neither distances nor segments; row 1 of the segments is that of the same one.

Token 0 is [CLS], with segment 2. Where it is apart, it stands so that it is max_length or more from
every other token; else it is in the same segment as all.
"""

import torch

from tests.oracles.transformer_xl import distances, waves
from tests.oracles.xlnet import projected

SPANS = True


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [
        sizes | {"width": 8, "max_length": 150},
        sizes | {"width": 34, "max_length": 9},
        sizes | {"width": 6, "separate_cls": False},
    ]


def inputs(options, batch, heads, queries, keys, normal):
    def drawn(length):
        return (normal(batch, length) > 0.5).long() + (normal(batch, length) > 1.2).long()

    return {"q_segments": drawn(queries).clamp(max=2), "k_segments": drawn(keys).clamp(max=2)}


def places(options):
    return options.get("separate_cls", True)


def place(options, tokens):
    return torch.where(tokens == 0, 2 * options.get("max_length", 512), tokens)


def place_keys(options, tokens):
    return torch.where(tokens <= 0, tokens - options.get("max_length", 512), tokens)


def terms(options, parameters, pos_q, pos_k):
    n, at = distances(options, pos_q, pos_k)
    features = waves(options, n)
    of_q, of_k = parameters["q_segments"][:, None], parameters["k_segments"][None, :]
    cls = (of_q == 2) | (of_k == 2)
    same = (of_q == of_k) | cls
    rows = parameters["seg_embed"].transpose(0, 1)[:, same.long()]
    if options.get("separate_cls", True):
        features = features * (n.abs() < options.get("max_length", 512))[:, None]
        rows = rows * ~cls[None, :, :, None]
    return {
        "query_added": parameters["r_w_bias"],
        "key_rows": projected(parameters["r_kernel"], features)[:, at],
        "key_rows_added": parameters["r_r_bias"],
        "segment_rows": rows,
        "segment_rows_added": parameters["r_s_bias"],
    }
