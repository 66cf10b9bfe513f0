"""Sun et al. 2023 (xPos), equation 8: RoPE, and pair p of a product times zeta_p^(n / 512)."""

import torch

from tests.oracles.rope import dims_of, half_of, inverse_frequencies, rotation, sized

ROTATES = GROWS = True


def configs(heads, head_dim, value_dim):
    part = half_of(head_dim - head_dim % 2)
    return sized(
        head_dim,
        {"layout": "interleaved"},
        {"rotary_dim": part, "scale_base": 100.0},
        {"layout": "interleaved", "rotary_dim": part, "start": head_dim - part, "base": 100.0},
    )


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
