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


def waves(options, n, beside=False):
    """[N, width] of distances n: sines, then cosines, or one beside the other. As sizes, with the
    error of an angle in double, which is off by 2^-53 of itself."""
    pair = torch.arange(0, options["width"], 2, dtype=torch.float64)
    angle = n.double()[:, None] * 10000.0 ** (-pair / options["width"])
    return sines_and_cosines(options, angle, beside)


def sines_and_cosines(options, angle, beside=False):
    both = [angle.sin(), angle.cos()]
    if "sizes" in options:
        off = (1.0 + angle.abs()) * 2.0**-53 / options["sizes"]
        both = [wave.abs() + off for wave in both]
    return torch.stack(both, dim=-1).flatten(-2) if beside else torch.cat(both, dim=-1)


def distances(options, pos_q, pos_k):
    """The distances of all pairs without repetition, and the place of each pair's among them."""
    n = pos_q[:, None] - pos_k[None, :]
    if options.get("clamp_len") is not None:
        n = n.clamp(-options["clamp_len"], options["clamp_len"])
    return torch.unique(n, return_inverse=True)


def by_head(weight, heads, features):
    """[heads, N, D] of a weight [heads D, width] and features [N, width]."""
    return features.to(weight.dtype) @ weight.view(heads, -1, features.shape[-1]).mT


def terms(options, parameters, pos_q, pos_k):
    n, at = distances(options, pos_q, pos_k)
    rows = by_head(parameters["r_net.weight"], options["heads"], waves(options, n))
    return {
        "query_added": parameters["r_w_bias"],
        "key_rows": rows[:, at],
        "key_rows_added": parameters["r_r_bias"],
    }
