"""Huang et al. 2018 (Music Transformer), section 3.4: unclipped rows, zero beyond the table."""

import torch


def configs(heads, head_dim, value_dim):
    return [
        {"max_length": 48, "head_dim": head_dim},
        {"max_length": 1, "head_dim": head_dim},
        {"max_length": 6, "head_dim": head_dim, "heads": heads},
        {"max_length": 9, "head_dim": head_dim, "bidirectional": True},
        {"max_length": 140, "head_dim": head_dim, "heads": heads, "bidirectional": True},
    ]


def terms(options, parameters, pos_q, pos_k):
    table = parameters["Er"]
    length = options["max_length"]
    last = length - 1 if options.get("bidirectional", False) else 0
    distance = pos_k[None, :] - pos_q[:, None]
    held = (distance > -length) & (distance <= last)
    row = torch.where(held, distance + length - 1, 0)
    rows = table[..., row, :]
    return {"key_rows": torch.where(held[..., None], rows, torch.zeros_like(rows))}
