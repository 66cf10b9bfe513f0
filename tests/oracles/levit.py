"""Graham et al. 2021 (LeViT), section 4.2: a number for each head and pair of absolute offsets."""

import torch

from tests.oracles import swin


def configs(heads, head_dim, value_dim):
    return [{"heads": heads, "grid": grid} for grid in (7, [3, 4], [1, 5], 1, [12, 11])]


def place(options, tokens):
    return swin.place({"window": options["grid"]}, tokens)


def terms(options, parameters, pos_q, pos_k):
    table = parameters["attention_biases"]
    window = {"window": options["grid"]}
    height, width = swin.sides(window)
    y, x = swin.offsets(window, pos_q, pos_k)
    held = y.abs() < height
    row = y.abs().clamp(max=height - 1) * width + x.abs()
    return {"bias": torch.where(held, table[:, row], 0.0)}
