"""Which pairs attend, of functions of pairs and of torch's BlockMask."""

from collections.abc import Callable

import torch
from torch import Tensor

from relpos._base.errors import dtype_of, wrong_type, wrong_value
from relpos._flex.pieces import over
from relpos._flex.score import Unfit
from relpos._flex.sources import Indexing, apart, trace
from relpos._mask.tile_mask import TileMask, from_mask_mod

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Window = tuple[int, int]


def mask_of(mask_mod: Mask, batch: int, heads: int, queries: int, keys: int) -> TileMask:
    """The pairs that attend."""

    def visible(*index: Tensor) -> Tensor:
        each = torch.broadcast_tensors(*index)
        with Indexing(), torch.no_grad():
            found = torch.vmap(mask_mod)(*(x.flatten() for x in each))
        return found.view(each[0].shape)

    return from_mask_mod(visible, queries, keys, batch=batch, heads=heads)


def sources_of(mask_mod: Mask) -> frozenset[str]:
    """On what a mask_mod depends. Raises ValueError where it is no function of indices."""

    def one(*index: Tensor) -> tuple[Tensor]:
        seen = mask_mod(*index)
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
            raise wrong_type("mask_mod", "a bool tensor for each pair", dtype_of(seen))
        return (seen,)

    try:
        with apart():
            return trace(one)[0].sources
    except Unfit as error:
        wanted = "a function of b, h, q_idx and kv_idx"
        raise wrong_value("mask_mod", wanted, error.got, error.then) from error


def window_of(mask_mod: Mask, queries: int, keys: int) -> Window | None:
    """The window of relpos.attention that a function of the distance is, if it is one."""
    if not (queries and keys):
        return None
    distance = torch.arange(1 - queries, keys)
    zero = distance.new_zeros(())
    q_idx, kv_idx = (-distance).clamp(min=0), distance.clamp(min=0)
    with torch.no_grad():
        seen = over(mask_mod, zero, zero, q_idx, kv_idx, paired=True).nonzero()[:, 0]
    if not len(seen):
        return None
    first, last = int(seen[0]), int(seen[-1])
    left, right = queries - 1 - first, last - (queries - 1)
    if last - first + 1 != len(seen) or left < 0 or right < 0:
        return None
    return (-1 if first == 0 else left), (-1 if last == len(distance) - 1 else right)


def both_windows(a: Window | None, b: Window | None) -> Window | None:
    """What both see; -1 is no bound."""
    if a is None or b is None:
        return a or b
    left, right = (min(x, y) if min(x, y) >= 0 else max(x, y) for x, y in zip(a, b, strict=True))
    return left, right


def both_masks(a: Tensor | TileMask | None, b: TileMask | None) -> Tensor | TileMask | None:
    """What two masks for attn_mask= say together, of which the first may have numbers."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, TileMask):
        return a & b
    return torch.where(b.dense(), a, -torch.inf)
