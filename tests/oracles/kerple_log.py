"""Chi et al. 2022 (KERPLE), the logarithmic kernel: score += -p ln(1 + a n), as gpt-neox has it."""

import torch

NONLINEAR = SPANS = True


def configs(heads, head_dim, value_dim):
    return [{"heads": heads}, {"heads": heads, "symmetric": False}]


def clamped(x, low, high=None):
    """x between the bounds, with the gradient of x itself."""
    return x.detach().clamp(low, high) + (x - x.detach())


def far(options, pos_q, pos_k, dtype):
    """n: how far a key is; one in the future is at 0 where the kernel is not symmetric."""
    n = pos_q[:, None] - pos_k[None, :]
    return (n.abs() if options.get("symmetric", True) else n.clamp(min=0)).to(dtype)


def terms(options, parameters, pos_q, pos_k):
    p, a = (clamped(parameters[name], 0.01) for name in ("bias_p", "bias_a"))
    return {"bias": -p * torch.log1p(a * far(options, pos_q, pos_k, p.dtype))}
