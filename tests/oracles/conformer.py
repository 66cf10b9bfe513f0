"""Gulati et al. 2020 (Conformer): projected sinusoids of the distance, sine beside cosine."""

import torch

SPANS = True


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [sizes | {"width": 8}, sizes | {"width": 2}, sizes | {"width": 34}]


def terms(options, parameters, pos_q, pos_k):
    weight = parameters["linear_pos.weight"]
    width = options.get("width", options["heads"] * options["head_dim"])
    n, at = torch.unique(pos_q[:, None] - pos_k[None, :], return_inverse=True)
    pair = torch.arange(0, width, 2, dtype=torch.float64)
    angle = n.double()[:, None] * 10000.0 ** (-pair / width)
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
    if "sizes" in options:  # an angle in double is off by 2^-53 of itself
        off = (1.0 + angle.abs().repeat_interleave(2, -1)) * 2.0**-53
        waves = waves.abs() + off / options["sizes"]
    table = waves.to(weight.dtype) @ weight.view(options["heads"], -1, width).mT
    return {
        "query_added": parameters["pos_bias_u"],
        "key_rows": table[:, at],
        "key_rows_added": parameters["pos_bias_v"],
    }
