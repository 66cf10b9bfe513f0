"""Sequences of many lengths, one after another, on many ranks."""

from typing import Any

import torch

from relpos._call.packing import Packing, bounds_of, offsets_of, placing_text, starts_of
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
    offsets = torch.zeros_like(starts_q[1:])
    if local.reads_positions or left is not None or right is not None:
        offsets = offsets_of(q_offset, starts_q, starts_k)
    packing = Packing(starts_q, starts_k, offsets, placing_text(local.parts))
    if call.position:
        geometry.q.make, geometry.k.make = packing.queries, packing.keys
    rows = torch.cat([run.tokens() for run in geometry.q.runs[geometry.rank]])
    columns = torch.arange(geometry.k.total)
    geometry.lo, geometry.hi = packing.key_range(rows, columns, left, right)
    geometry.starts_k = starts_k
    return geometry
