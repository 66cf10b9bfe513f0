"""Thinking Machines 2026 (Inkling): each query mixes profiles over the distance into the past."""

import torch


def configs(heads, head_dim, value_dim):
    return [{"rank": 3, "extent": 20}, {"rank": 1, "extent": 1}, {"rank": 16, "extent": 150}]


def inputs(options, batch, heads, queries, keys, normal):
    return {"c": normal(batch, heads, queries, options["rank"])}


def terms(options, parameters, pos_q, pos_k):
    n = pos_q[:, None] - pos_k[None, :]
    profiles = parameters["c"] @ parameters["proj"]  # [H, Lq, extent]
    heads = len(profiles)
    index = n.clamp(0, options["extent"] - 1).expand(heads, -1, -1)
    seen = (n >= 0) & (n < options["extent"])
    return {"bias": torch.where(seen, profiles.gather(-1, index), 0.0)}
