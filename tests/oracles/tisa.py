"""Wennberg, Henter 2021 (TISA), equation 5: a sum of bells over the distance."""

import torch

NONLINEAR = SPANS = True


def configs(heads, head_dim, value_dim):
    return [{"heads": heads}, {"heads": heads, "kernels": 1}, {"heads": heads, "kernels": 3}]


def terms(options, parameters, pos_q, pos_k):
    a, w, c = (parameters[name] for name in ("amplitudes", "widths", "centres"))
    delta = (pos_k[None, :] - pos_q[:, None]).to(a.dtype)
    away = delta[..., None] - c[:, None, None, :]
    bells = torch.exp(-w.abs()[:, None, None, :] * away**2)
    if "sizes" in options:  # signs of the addends, and of their derivatives, may differ
        change = a.abs()[:, None, None] * bells.detach()
        slopes = (
            bells.detach() * (a - a.detach())[:, None, None]
            + change * away.detach() ** 2 * (w - w.detach())[:, None, None]
            + change
            * 2
            * (w[:, None, None] * away).detach().abs()
            * (c - c.detach())[:, None, None]
        )
        return {"bias": change.detach().sum(-1) + slopes.sum(-1)}
    return {"bias": (a[:, None, None, :] * bells).sum(-1)}
