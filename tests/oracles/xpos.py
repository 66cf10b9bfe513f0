"""Sun et al. 2023 (xPos), equation 8: RoPE, and pair p of a product times zeta_p^(n / 512)."""

import torch

from oracles.rope import dims_of, inverse_frequencies, rotation

ROTATES = GROWS = True


def configs(heads, head_dim, value_dim):
    even = head_dim - head_dim % 2
    if even == 0:
        return [None] * 3
    part = max(2, even // 2 - even // 2 % 2)
    sizes = {"head_dim": head_dim, "layout": "interleaved"}
    return [
        sizes | {"rotary_dim": even},
        sizes | {"rotary_dim": part, "scale_base": 100.0, "layout": "half"},
        sizes | {"rotary_dim": part, "start": head_dim - part, "base": 100.0},
    ]


def terms(options, parameters, pos_q, pos_k):
    dims, start = dims_of(options), options.get("start", 0)
    zeta = (torch.arange(0, dims, 2, dtype=torch.float64) + 0.4 * dims) / (1.4 * dims)
    rate = torch.zeros(options["head_dim"], dtype=torch.float64)
    both = [zeta.log(), zeta.log()]
    of_pairs = torch.cat(both) if options["layout"] == "half" else torch.stack(both, -1).flatten()
    rate[start : start + dims] = of_pairs / options.get("scale_base", 512.0)

    def decay(steps):
        return torch.exp(steps.double()[:, None] * rate)

    return rotation(options, inverse_frequencies(options, dims)) | {"decay": decay}
