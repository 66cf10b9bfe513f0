"""Which pairs attend, of functions of pairs and of torch's BlockMask."""

from collections.abc import Callable

import torch
from torch import Tensor

from relpos._base.errors import dtype_of, wrong_type, wrong_value
from relpos._flex.pieces import over
from relpos._flex.score import Unfit
from relpos._flex.sources import apart, trace

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Window = tuple[int, int]

_PAIRS = 1 << 21  # looked at at a time


def mask_of(mask_mod: Mask, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """bool [batch, heads, queries, keys]: the pairs that attend."""
    if not (queries and keys):
        return torch.zeros(batch, heads, queries, keys, dtype=torch.bool)
    b, h, kv_idx = torch.arange(batch), torch.arange(heads), torch.arange(keys)
    rows = max(1, _PAIRS // (batch * heads * keys))
    with torch.no_grad():
        found = [
            over(mask_mod, b, h, q_idx, kv_idx, paired=False)
            for q_idx in torch.arange(queries).split(rows)
        ]
    return torch.cat(found, 2)


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


def both_masks(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """What two masks for attn_mask= say together, of which one may have numbers."""
    if a is None or b is None:
        return b if a is None else a
    if a.dtype == b.dtype == torch.bool:
        return a & b
    numbers, seen = (b, a) if a.dtype == torch.bool else (a, b)
    return torch.where(seen, numbers, -torch.inf)
