"""Sequences of many lengths, one after another, on many ranks."""

from typing import Any

import torch

from relpos._call.packing import bounds_of, pack
from relpos.distributed._geometry import Geometry


def packed(geometry: Geometry, local: Any) -> Geometry:
    """The geometry with positions that restart in each sequence, and key ranges that hold its keys,
    causal and window."""
    cu_seqlens, cu_seqlens_k, q_offset = local.packed
    starts = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
    rows = {"query in all": geometry.q.total, "key in all": geometry.k.total}
    bounds = bounds_of(local.call.window, local.call.is_causal)
    packing = pack(starts, rows, local.parts, q_offset, bounds)
    if local.call.position:
        geometry.q.make, geometry.k.make = packing.queries, packing.keys
    tokens = torch.cat([run.tokens() for run in geometry.q.runs[geometry.rank]])
    columns = torch.arange(geometry.k.total)
    geometry.lo, geometry.hi = packing.key_range(tokens, columns, *bounds)
    geometry.starts_k = packing.starts_k
    return geometry
