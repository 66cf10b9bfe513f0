"""Gemma 3n and 4, audio: projected sinusoids of the distance, the slowest of them 10000 times
slower than the first."""

import torch

SPANS = True


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [sizes | {"width": 8}, sizes | {"width": 2}, sizes | {"width": 34}]


def terms(options, parameters, pos_q, pos_k):
    width = options["width"]
    n, at = torch.unique(pos_q[:, None] - pos_k[None, :], return_inverse=True)
    p = torch.arange(width // 2, dtype=torch.float64)
    angle = n.double()[:, None] * 10000.0 ** (-p / max(width // 2 - 1, 1))
    waves = torch.cat([angle.sin(), angle.cos()], dim=-1)
    if "sizes" in options:  # an angle in double is off by 2^-53 of itself
        off = (1.0 + torch.cat([angle, angle], dim=-1).abs()) * 2.0**-53
        waves = waves.abs() + off / options["sizes"]
    weight = parameters["pos_proj.weight"].unflatten(0, (options["heads"], -1))
    rows = torch.einsum("nw,hdw->hnd", waves.to(weight.dtype), weight)
    return {"key_rows": rows[:, at]}
