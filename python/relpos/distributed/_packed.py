"""Sequences of many lengths, one after another, on many ranks."""

from typing import Any

import torch
from torch import Tensor

from relpos._varlen import bounds_of, offsets_of, starts_of
from relpos.distributed._geometry import Geometry


def pack(geometry: Geometry, local: Any) -> Geometry:
    """The geometry with positions that restart in each sequence, and key ranges that hold its keys,
    causal and window."""
    call = local.call
    cu_seqlens, cu_seqlens_k, q_offset = local.packed
    starts_q = starts_of("cu_seqlens", cu_seqlens, geometry.q.total, "query in all")
    starts_k = starts_q
    if cu_seqlens_k is not None:
        starts_k = starts_of("cu_seqlens_k", cu_seqlens_k, geometry.k.total, "key in all")
        if starts_k.shape != starts_q.shape:
            raise ValueError(
                f"cu_seqlens_k: expected {starts_q.shape[0]} entries, as cu_seqlens has, got "
                f"{starts_k.shape[0]}"
            )
    elif geometry.k.total != geometry.q.total:
        raise ValueError(
            "cu_seqlens_k: expected it where the keys are not as many as the queries in all, "
            f"{geometry.k.total} and {geometry.q.total}"
        )
    left, right = bounds_of(call.window, call.is_causal)
    in_play = local.reads_positions or left is not None or right is not None
    offsets = torch.zeros_like(starts_q[1:])
    if in_play:
        offsets = offsets_of(q_offset, starts_q, starts_k)

    def at(tokens: Tensor) -> Tensor:
        sequence = torch.searchsorted(starts_q[1:], tokens, right=True)
        return tokens - starts_q[sequence] + offsets[sequence]

    def at_keys(tokens: Tensor) -> Tensor:
        return tokens - starts_k[torch.searchsorted(starts_k[1:], tokens, right=True)]

    if call.position:
        geometry.q.make, geometry.k.make = at, at_keys
    tokens = torch.cat([run.tokens() for run in geometry.q.runs[geometry.rank]])
    sequence = torch.searchsorted(starts_q[1:], tokens, right=True)
    geometry.lo, geometry.hi = starts_k[sequence], starts_k[sequence + 1]
    first = geometry.lo + at(tokens)
    if left is not None:
        geometry.lo = torch.maximum(geometry.lo, first - left)
    if right is not None:
        geometry.hi = torch.minimum(geometry.hi, first + right + 1)
    return geometry
