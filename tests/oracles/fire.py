"""Li et al. 2024 (FIRE), equation 19: a network of the distance relative to a threshold."""

import torch

from tests.oracles import networks

NONLINEAR = SPANS = True


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads, "init_L": 1e15},
        {"heads": heads, "width": 3, "init_c": 2.0, "init_L": 1e12},
    ]


def feature(options, parameters, delta):
    c, multiplier = parameters["c"], parameters["L_multiplier"]
    far = (multiplier * options.get("init_L", 512.0)).abs()
    near = (c * delta.abs().to(c.dtype)).abs() + 1.0
    return near.log() / (((c * far).abs() + 1.0).log() + 1e-6)


def terms(options, parameters, pos_q, pos_k):
    named = [[parameters[f"mlp.{n}.{kind}"] for kind in ("weight", "bias")] for n in (0, 2)]
    delta, at = torch.unique(pos_k[None, :] - pos_q[:, None], return_inverse=True)
    x = feature(options, parameters, delta)[:, None]
    if "sizes" in options:
        c, times = parameters["c"].detach(), parameters["L_multiplier"].detach()
        far = (times * options.get("init_L", 512.0)).abs()
        n = delta.abs().double()
        top, under = (c.abs() * n + 1).log(), (c.abs() * far + 1).log() + 1e-6
        by_c = n / (c.abs() * n + 1) / under + top / under**2 * far / (c.abs() * far + 1)
        by_times = top / under**2 * c.abs() * far / times.abs() / (c.abs() * far + 1)
        changed = by_c * (parameters["c"] - c) + by_times * (parameters["L_multiplier"] - times)
        sized = networks.sizes(x, named, networks.relu, options["sizes"], changed[:, None])
        return {"bias": sized[at].movedim(-1, 0)}
    return {"bias": networks.run(x, named, networks.relu)[at].movedim(-1, 0)}
