"""The gradient of a mask that is added to the scores."""

from typing import Any

import triton
from torch import Tensor

from relpos.gpu.masks.dense import pairs_of, sum_mask


def write_mask_gradient(run: Any, to: Tensor, given: dict[str, Any]) -> None:
    """to: of the mask's shape, which broadcasts to [B, H, Lq, Lk]; given: what the kernels of the
    backward pass read."""
    if not run.keys or not to.numel():
        to.zero_()
        return
    tile = run.tile(sum_mask)
    to = to.view(*(1,) * (4 - to.dim()), *to.shape)
    shared = [size == 1 for size in to.shape]
    blocks = (
        *(run.batch, run.heads),
        *(triton.cdiv(run.queries, tile.queries), triton.cdiv(run.keys, tile.keys)),
    )
    own = [1 if all_ else count for count, all_ in zip(blocks, shared, strict=True)]
    names = ("over_batch", "over_heads", "over_queries", "over_keys")
    over = {name: count // mine for name, count, mine in zip(names, blocks, own, strict=True)}
    run.pairs(
        sum_mask,
        lambda _: own[0] * own[1] * own[2] * own[3],
        gradient=pairs_of(to),
        heads=run.heads,
        columns=own[3],
        SHARED_BY_QUERIES=shared[2],
        SHARED_BY_KEYS=shared[3],
        **over,
        **given,
    )
