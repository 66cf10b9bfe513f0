"""Press, Smith, Lewis 2022, section 3: a slope per head times the distance."""

import math

import torch

LINEAR = True


def configs(heads, head_dim, value_dim):
    own = torch.linspace(-0.25, 1.0, heads) if heads > 1 else torch.tensor([0.3])
    return [
        {"heads": heads},
        {"heads": heads, "symmetric": False},
        {"heads": heads, "slopes": "geometric"},
        {"heads": heads, "learned": True},
        {"heads": heads, "slopes": own, "symmetric": False, "learned": True},
        {"heads": heads, "slopes": own},
        {"heads": heads, "sides": "own"},
        {"heads": heads, "slopes": torch.cat([own, own**2]), "sides": "own", "learned": True},
    ]


def paper_slopes(heads):
    """Geometric from 2^(-8/n) for n a power of two; else those of the power below, then every
    second one of the power above."""
    below = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * h / below) for h in range(1, below + 1)]
    above = [2.0 ** (-8.0 * h / (2 * below)) for h in range(1, 2 * below + 1)]
    return (first + above[0::2])[:heads]


def slopes(options):
    """[heads], or [2, heads] of the past and of the future."""
    if options.get("sides", "same") == "own":
        one = slopes(options | {"sides": "same"})
        return one.view(2, -1) if len(one) == 2 * options["heads"] else torch.stack([one, one])
    rule, heads = options.get("slopes", "paper"), options["heads"]
    if isinstance(rule, torch.Tensor):
        return rule.double()
    if rule == "geometric":
        return torch.tensor([2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1)]).double()
    return torch.tensor(paper_slopes(heads), dtype=torch.float64)


def terms(options, parameters, pos_q, pos_k):
    (held,) = parameters.values()
    if not options.get("learned", False) and "sizes" not in options:
        said = slopes(options).to(held.dtype)
        torch.testing.assert_close(held.detach(), said, rtol=1e-6, atol=0)
    distance = pos_k[None, :] - pos_q[:, None]
    if options.get("sides", "same") == "own":
        past, future = ((sign * distance).clamp(min=0).to(held.dtype) for sign in (-1, 1))
        return {"bias": -held[0, :, None, None] * past - held[1, :, None, None] * future}
    span = distance.abs() if options.get("symmetric", True) else (-distance).clamp(min=0)
    return {"bias": -held[:, None, None] * span.to(held.dtype)}
