"""Bao et al. 2021 (BEiT): a number for each offset of two patches, and three for [CLS]."""

import torch

from tests.oracles import swin


def configs(heads, head_dim, value_dim):
    return [{"heads": heads, "window": window} for window in (7, [3, 4], [1, 5], 1, [12, 11])]


def far(options):
    height, width = swin.sides(options)
    return 2 * ((height - 1) * (2 * width - 1) + width) - 1


def place(options, tokens):
    """Where queries stand; [CLS], which is token 0, beyond the image."""
    return beyond(options, tokens, far(options), 5 * far(options))


def beyond(options, tokens, of_cls, before):
    patches = torch.where(tokens < 0, before + tokens, swin.place(options, tokens - 1))
    return torch.where(tokens == 0, of_cls, patches)


def place_keys(options, tokens):
    return beyond(options, tokens, -2 * far(options), -4 * far(options))


def terms(options, parameters, pos_q, pos_k):
    """Two patches meet by their offset; a pair with [CLS] has a row of its own."""
    table = parameters["relative_position_bias_table"]
    height, width = swin.sides(options)
    gap, stride, rows = far(options), 2 * width - 1, len(table) - 3
    delta = pos_k[None, :] - pos_q[:, None]
    reach = (rows - 1) // 2
    index = torch.where(delta.abs() <= reach, reach - delta, -1)
    index = torch.where((delta >= -gap) & (delta <= -gap + reach), rows, index)
    index = torch.where((delta <= -2 * gap) & (delta >= -2 * gap - reach), rows + 1, index)
    index = torch.where(delta == -3 * gap, rows + 2, index)
    assert rows == (2 * height - 1) * stride
    return {"bias": torch.where(index >= 0, table.T[:, index], 0.0)}
