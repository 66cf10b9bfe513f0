"""DTensors as the shards that they are."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from relpos._base.errors import wrong_value

_TOKENS = 2  # the axis of the sequence


def of_shards(
    tensors: Sequence[Any], group: Any, attend: Callable[[Sequence[Tensor], Any], Any]
) -> tuple[Tensor, Tensor]:
    """attend(local tensors, group), its results as DTensors where the tensors are."""
    given = [isinstance(t, DTensor) for t in tensors]
    if not any(given):
        return attend(tensors, group)
    if not all(given):
        raise TypeError("query, key, value: expected DTensors all or none of them")
    mesh, placements = tensors[0].device_mesh, tensors[0].placements
    for name, tensor in zip(("key", "value"), tensors[1:], strict=True):
        if tensor.device_mesh != mesh or tensor.placements != placements:
            wanted = f"the mesh and placements of query, {placements}"
            raise wrong_value(name, wanted, tensor.placements)
    axes = [n for n, placement in enumerate(placements) if placement == Shard(_TOKENS)]
    others = {*placements} - {Shard(_TOKENS), Shard(0), Replicate()}
    if len(axes) != 1 or others:
        wanted = "placements Shard(2), the sequence, on one axis, Shard(0) or Replicate() on others"
        raise wrong_value("query", wanted, placements)
    own = mesh.get_group(axes[0])
    if group is not None and group not in (own, mesh):
        raise ValueError("group: expected None, or the group on which the DTensors are sharded")
    local = [tensor.to_local() for tensor in tensors]
    found = attend(local, own)
    shape = [*tensors[0].shape[:3], tensors[2].shape[3]]
    return tuple(_whole(piece, mesh, placements, shape[: piece.dim()]) for piece in found)


def _whole(piece: Tensor, mesh: Any, placements: Any, shape: list[int]) -> DTensor:
    stride, steps = 1, []
    for size in reversed(shape):
        steps.insert(0, stride)
        stride *= size
    return DTensor.from_local(
        piece.contiguous(),
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(steps),
    )
