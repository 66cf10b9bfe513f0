"""x-transformers' DynamicPositionBias (CrossFormer, 3.3): layers of SiLU of the distance."""

import torch

from tests.oracles import networks

NONLINEAR = SPANS = True


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads, "width": 6},
        {"heads": heads, "width": 3, "depth": 1, "log_distance": True},
        {"heads": heads, "width": 4, "depth": 3, "log_distance": True},
    ]


def layers(options, parameters):
    """(weight, bias) of each."""
    depth = options.get("depth", 2)
    names = [f"mlp.{n}" + (".0" if n < depth else "") for n in range(depth + 1)]
    return [(parameters[f"{name}.weight"], parameters[f"{name}.bias"]) for name in names]


def feature(options, delta):
    far = -delta.double()
    return far.sign() * (far.abs() + 1.0).log() if options.get("log_distance", False) else far


def terms(options, parameters, pos_q, pos_k):
    found = layers(options, parameters)
    delta, at = torch.unique(pos_k[None, :] - pos_q[:, None], return_inverse=True)
    x = feature(options, delta)[:, None].to(found[0][0].dtype)
    if "sizes" in options:
        return {
            "bias": networks.sizes(x, found, networks.silu, options["sizes"])[at].movedim(-1, 0)
        }
    return {"bias": networks.run(x, found, networks.silu)[at].movedim(-1, 0)}
