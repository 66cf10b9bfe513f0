"""What a BlockMask of torch.nn.attention.flex_attention lets queries see."""

import weakref
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import kind_of, wrong_type, wrong_value
from relpos._flex.masks import Window, mask_of, sources_of, window_of
from relpos._flex.sources import B, D, H
from relpos._mask.tile_mask import TileMask

_Seen = tuple[Window | None, TileMask | None]
# Of each BlockMask, by batch rows and heads of a call.
_KNOWN: weakref.WeakKeyDictionary[Any, dict[tuple[int, int], _Seen]] = weakref.WeakKeyDictionary()


def seen_by(block_mask: Any, query: Tensor, key: Tensor) -> _Seen:
    """The window and the mask for attn_mask= that a BlockMask is, each None where it needs none.

    Of its full blocks a query sees all keys, of its other blocks those of its mask_mod, of blocks
    that it does not list none. A BlockMask is read once for each number of batch rows and heads.
    """
    sizes = query.shape[0], query.shape[1]
    if not hasattr(block_mask, "mask_mod") or not hasattr(block_mask, "kv_indices"):
        then = "make one by torch.nn.attention.flex_attention.create_block_mask"
        raise wrong_type("block_mask", "a BlockMask", kind_of(block_mask), then)
    lengths = query.shape[2], key.shape[2]
    if tuple(block_mask.seq_lengths) != lengths:
        wanted = f"one of {lengths[0]} queries and {lengths[1]} keys"
        raise wrong_value("block_mask", wanted, f"one of {tuple(block_mask.seq_lengths)}")
    for name, count, own in zip(
        ("batch rows", "heads"), sizes, block_mask.kv_indices.shape[:2], strict=True
    ):
        if own not in (1, count):
            raise wrong_value("block_mask", f"one of 1 or {count} {name}", own)
    known = _KNOWN.setdefault(block_mask, {})
    if sizes not in known:
        known[sizes] = _read(block_mask, *sizes, *lengths)
    return known[sizes]


def _read(block_mask: Any, batch: int, heads: int, queries: int, keys: int) -> _Seen:
    mask_mod = block_mask.mask_mod
    sources = sources_of(mask_mod)
    step_q, step_k = block_mask.BLOCK_SIZE
    columns = -(-keys // step_k)
    part = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    whole = torch.zeros_like(part)
    if block_mask.full_kv_num_blocks is not None:
        whole = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
    if sources <= {D}:
        window = window_of(mask_mod, queries, keys)
        if window is not None and _agree(window, part | whole, whole, block_mask, queries, keys):
            return (None if window == (-1, -1) else window), None

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        rows, columns = q_idx // step_q, kv_idx // step_k
        at = (b * (part.shape[0] > 1), h * (part.shape[1] > 1), rows, columns)
        return whole[at] | (part[at] & mask_mod(b, h, q_idx, kv_idx))

    batch = batch if B in sources or part.shape[0] > 1 else 1
    heads = heads if H in sources or part.shape[1] > 1 else 1
    return None, mask_of(visible, batch, heads, queries, keys)


def _listed(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """bool [B, H, rows, columns]: which blocks of keys are listed for each block of queries."""
    valid = torch.arange(indices.shape[-1]) < counts.unsqueeze(-1)
    found = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool)
    at = torch.where(valid, indices, columns).long()
    return found.scatter_(-1, at, True)[..., :columns]


def _agree(
    window: Window, listed: Tensor, whole: Tensor, block_mask: Any, queries: int, keys: int
) -> bool:
    """Whether all that the window sees is listed, and whole blocks are within it."""
    step_q, step_k = block_mask.BLOCK_SIZE
    rows, columns = (torch.arange(count) for count in listed.shape[-2:])
    first = columns * step_k - ((rows + 1) * step_q).clamp(max=queries)[:, None] + 1
    last = ((columns + 1) * step_k).clamp(max=keys) - 1 - (rows * step_q)[:, None]
    left, right = (bound if bound >= 0 else queries + keys for bound in window)
    reached = (last >= -left) & (first <= right)
    within = (first >= -left) & (last <= right)
    return bool((listed | ~reached).all() and (~whole | within).all())
