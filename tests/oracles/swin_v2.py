"""Liu et al. 2022 (Swin V2), section 3.3: the bias of an offset is 16 sigmoid of a small network."""

import torch

from oracles import swin

NONLINEAR = True
place = swin.place


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads, "window": 7, "hidden": 16},
        {"heads": heads, "window": [3, 4], "hidden": 3, "pretrained_window": 8},
        {"heads": heads, "window": [1, 5], "hidden": 8},
    ]


def logarithm(offset, side):
    share = 8.0 * offset.double() / max(side - 1, 1)
    return share.sign() * torch.log2(share.abs() + 1.0) / 3.0


def terms(options, parameters, pos_q, pos_k):
    height, width = swin.sides(options)
    stride = 2 * width - 1
    delta = pos_q[:, None] - pos_k[None, :]
    y = (delta + width - 1).div(stride, rounding_mode="floor")
    x = delta - y * stride
    side = options.get("pretrained_window")
    name = "continuous_position_bias_mlp."
    first = parameters[name + "0.weight"]
    offsets = torch.stack([logarithm(y, side or height), logarithm(x, side or width)], dim=-1)
    hidden = torch.relu(offsets.to(first.dtype) @ first.mT + parameters[name + "0.bias"])
    bias = 16.0 * torch.sigmoid(hidden @ parameters[name + "2.weight"].mT)
    held = (y.abs() < height)[None]
    return {"bias": torch.where(held, bias.permute(2, 0, 1), bias.new_zeros(()))}
