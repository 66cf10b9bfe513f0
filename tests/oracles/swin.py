"""Liu et al. 2021 (Swin), section 3.2: a number for each head and each offset in a window."""

import torch


def configs(heads, head_dim, value_dim):
    windows = [7, [3, 4], [1, 5], 1, [12, 11]]
    return [{"heads": heads, "window": window} for window in windows]


def sides(options):
    """Height and width."""
    window = options["window"]
    return (window, window) if isinstance(window, int) else window


def place(options, tokens):
    """Tokens stand row by row; ids leave room between rows, so that offsets stay apart."""
    _, width = sides(options)
    return tokens.div(width, rounding_mode="floor") * (2 * width - 1) + tokens % width


def offsets(options, pos_q, pos_k):
    """(y, x) of query - key for ids that leave room between rows."""
    _, width = sides(options)
    delta = pos_q[:, None] - pos_k[None, :]
    y = (delta + width - 1).div(2 * width - 1, rounding_mode="floor")
    return y, delta - y * (2 * width - 1)


def terms(options, parameters, pos_q, pos_k):
    table = parameters["relative_position_bias_table"]
    height, width = sides(options)
    index = pos_q[:, None] - pos_k[None, :] + (height - 1) * (2 * width - 1) + width - 1
    held = (index >= 0) & (index < len(table))
    bias = table[torch.where(held, index, 0)].permute(2, 0, 1)
    return {"bias": torch.where(held, bias, torch.zeros_like(bias))}
