"""Baevski et al. 2023 (data2vec 2.0): ALiBi by the distance of two patches."""

import torch

from tests.oracles import alibi, swin
from tests.oracles.levit import place  # noqa: F401

SPANS = True


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads, "grid": [5, 7]},
        {"heads": heads, "grid": 9, "distance": "euclidean"},
        {"heads": heads, "grid": [3, 4], "distance": "euclidean", "learned": True},
        {"heads": heads, "grid": [1, 6], "learned": True},
    ]


def terms(options, parameters, pos_q, pos_k):
    (held,) = parameters.values()
    if not options.get("learned", False) and "sizes" not in options:
        said = torch.tensor(alibi.paper_slopes(options["heads"]), dtype=held.dtype)
        torch.testing.assert_close(held.detach(), said, rtol=1e-6, atol=0)
    y, x = (n.double() for n in swin.offsets({"window": options["grid"]}, pos_q, pos_k))
    straight = options.get("distance", "manhattan") == "euclidean"
    far = (y**2 + x**2).sqrt() if straight else y.abs() + x.abs()
    return {"bias": -held[:, None, None] * far.to(held.dtype)}
