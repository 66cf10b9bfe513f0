"""Networks of a feature of the distance: their results, and sizes of what they add up."""

import torch


def relu(x):
    return x.clamp(min=0), (x > 0).to(x.dtype)


def silu(x):
    """x sigmoid(x), and its derivative."""
    gate = torch.sigmoid(x)
    return x * gate, gate * (1.0 + x * (1.0 - gate))


def run(x, layers, activation):
    """[N, heads] of features [N, 1]."""
    for weight, bias in layers[:-1]:
        x = activation(x @ weight.mT + bias)[0]
    weight, bias = layers[-1]
    return x @ weight.mT + bias


def sizes(x, layers, activation, eps, change=None):
    """Sums of magnitudes of all that is added up on the way to a result, with derivatives that are
    sums of magnitudes, too. `change` [N, 1]: that of the feature. Numbers here are exact to 2^-53,
    where a result may count eps."""
    rounding = 2.0**-53 / eps
    change = torch.zeros_like(x) if change is None else change
    size = x.detach().abs()
    x = x.detach()
    for number, (weight, bias) in enumerate(layers):
        held, moved = weight.detach(), weight - weight.detach()
        change = change @ held.abs().mT + x.abs() @ moved.mT + bias - bias.detach()
        size = size @ held.abs().mT + bias.detach().abs()
        x = x @ held.mT + bias.detach()
        if number < len(layers) - 1:
            x, slope = activation(x)
            change, size = change * slope.abs(), 1.1 * size  # slopes are at most 1.1
    return x.abs() + size * rounding + change
