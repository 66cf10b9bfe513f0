"""Liu et al. 2022 (Swin V2), section 3.3: the bias of an offset is 16 sigmoid of a network."""

import torch

from tests.oracles import swin

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


def network(offsets, first, first_bias, second):
    hidden = torch.relu(offsets @ first.mT + first_bias)
    return 16.0 * torch.sigmoid(hidden @ second.mT)


def sizes_of_changes(eps, offsets, first, first_bias, second):
    """0, with the derivatives of the network's bias as sums of magnitudes: heads that share a
    hidden number pull it in two directions. A sigmoid near 1 is off by 2^-53, here too."""
    bias = network(offsets, first, first_bias, second).detach()
    slope = bias * (1.0 - bias / 16.0) + bias * 2.0**-53 / eps
    hidden = torch.relu(offsets @ first.mT + first_bias).detach()
    first, first_bias, second, held = (
        first - first.detach(),
        first_bias - first_bias.detach(),
        second - second.detach(),
        second.detach().abs(),
    )
    changed = (hidden > 0) * (offsets.abs() @ first.mT + first_bias)
    slope = slope * (1.0 + hidden @ held.mT)  # far out a sigmoid is an exponential of its argument
    return slope * (changed @ held.mT + hidden @ second.mT)


def terms(options, parameters, pos_q, pos_k):
    height, width = swin.sides(options)
    y, x = swin.offsets(options, pos_q, pos_k)
    side = options.get("pretrained_window")
    name = "continuous_position_bias_mlp."
    first = parameters[name + "0.weight"]
    offsets = torch.stack([logarithm(y, side or height), logarithm(x, side or width)], dim=-1)
    offsets = offsets.to(first.dtype)
    parts = [first, parameters[name + "0.bias"], parameters[name + "2.weight"]]
    bias = network(offsets, *parts)
    if "sizes" in options:
        bias = bias.detach() + sizes_of_changes(options["sizes"], offsets, *parts)
    held = (y.abs() < height)[None]
    return {"bias": torch.where(held, bias.permute(2, 0, 1), bias.new_zeros(()))}
