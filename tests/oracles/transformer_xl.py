"""Dai et al. 2019 (Transformer-XL), section 3.3: projected sinusoids and two added vectors.

score = scale (<q_i + r_w_bias, k_j> + <q_i + r_r_bias, W R(pos_q - pos_k)>)
"""

import torch

SPANS = True


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [
        sizes | {"width": 8},
        sizes | {"width": 2, "clamp_len": 1},
        sizes | {"width": 6, "clamp_len": 40},
        sizes | {"width": 34},
    ]


def terms(options, parameters, pos_q, pos_k):
    weight, width = parameters["r_net.weight"], options["width"]
    n = pos_q[:, None] - pos_k[None, :]
    if options.get("clamp_len") is not None:
        n = n.clamp(-options["clamp_len"], options["clamp_len"])
    n, at = torch.unique(n, return_inverse=True)
    pair = torch.arange(0, width, 2, dtype=torch.float64)
    angle = n.double()[:, None] * 10000.0 ** (-pair / width)
    waves = torch.cat([angle.sin(), angle.cos()], dim=-1)
    if "sizes" in options:  # an angle in double is off by 2^-53 of itself
        off = (1.0 + torch.cat([angle, angle], dim=-1).abs()) * 2.0**-53
        waves = waves.abs() + off / options["sizes"]
    table = waves.to(weight.dtype) @ weight.view(options["heads"], -1, width).mT
    return {
        "query_added": parameters["r_w_bias"],
        "key_rows": table[:, at],
        "key_rows_added": parameters["r_r_bias"],
    }
