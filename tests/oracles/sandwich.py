"""Chi et al. 2023 (Sandwich), section 4: the products of sinusoids at two positions."""

import torch

SPANS = True


def configs(heads, head_dim, value_dim):
    return [{"heads": heads}, {"heads": heads, "dims": 2}, {"heads": heads, "dims": 34}]


def terms(options, parameters, pos_q, pos_k):
    (ratio,) = parameters.values()
    heads, dims = options["heads"], options.get("dims", 128)
    said = 8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads
    torch.testing.assert_close(
        ratio.detach().double(), said, rtol=max(1e-6, torch.finfo(ratio.dtype).eps), atol=0
    )
    k = torch.arange(1, dims // 2 + 1, dtype=torch.float64)
    delta, at = torch.unique(pos_k[None, :] - pos_q[:, None], return_inverse=True)
    turns = delta.double()[:, None] * 10000.0 ** (-2.0 * k / dims)
    sums = (-2.0 * torch.sin(turns / 2) ** 2).sum(-1)  # of cos - 1
    return {"bias": sums[at].to(ratio.dtype) / ratio[:, None, None]}
