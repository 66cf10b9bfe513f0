"""What options ask of PyTorch's tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import kind_of, wrong_type
from relpos._base.tensors import (
    FLOATING,
    check_memory,
    check_parameters,
    check_rank,
    check_shape,
    integers,
    tensor_of,
)
from relpos._call.call import TENSORS, Call
from relpos._call.distances import lowered
from relpos._call.options import LIBRARIES, OPTIONS, Tensors, sinks_text
from relpos._mask.tile_mask import TileMask
from relpos._position.part import Given, flat
from relpos._position.sum import flatten, lowers

_DTYPES = {"bool": (torch.bool,), "floating": FLOATING}
# Under what option a field's tensor was given.
_GIVEN_AS = {f.name: name for name, option in OPTIONS.items() for f in option.fields}


class TorchTensors(Tensors):
    def tensor(self, name: str, value: Any, kinds: Sequence[str]) -> Tensor:
        return tensor_of(name, value, [dtype for kind in kinds for dtype in _DTYPES[kind]])

    def integers(self, name: str, value: Any) -> Tensor:
        return integers(name, value)

    def rows(self, name: str, value: Any, query: Tensor) -> Tensor | None:
        if not isinstance(value, Tensor):
            return None
        rows = integers(name, value)
        return rows if rows.dim() else rows.expand(len(query))

    def tiles(self, name: str, value: Any, query: Tensor) -> tuple[Any, ...] | None:
        if not isinstance(value, TileMask):
            if not isinstance(value, Tensor):
                wanted = "a bool or floating-point tensor, or a relpos.TileMask"
                raise wrong_type(name, wanted, kind_of(value))
            return None
        parts = (value.ranges, value.entries, value.words)
        if query.device != value.ranges.device:
            parts = tuple(part.to(query.device) for part in parts)
        return *parts, list(value.shape[2:])

    def seed(self) -> Tensor:
        return torch.randint(2**63 - 1, (), device="cpu")

    def position(self, value: Any) -> tuple[str, Sequence[Tensor]]:
        return flat(value)

    def prepared(self, query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if lowers(options.get("position")):
            options = {**options, "position": lowered(query, key, options)}
        sinks = options.get("sinks")
        if sinks is not None:
            parts = [*flatten(options.get("position")), _part_of_sinks(sinks, query)]
            options = {**options, "position": parts}
        return options


LIBRARIES[Tensor] = TorchTensors()


def _part_of_sinks(sinks: Any, query: Tensor) -> Given:
    """Scores [H] or [B, H, Lq] without a value, as a part of the position, which they are."""
    tensor_of("sinks", sinks, FLOATING)
    check_rank("query", query, 4, "[B, H, Lq, D]")
    check_memory("sinks", sinks, query)
    check_shape("sinks", sinks, (query.shape[1],), query.shape[:3])
    return Given(sinks_text(sinks.shape), [sinks])


def check_call(call: Call, query: Tensor) -> None:
    """Raises unless all tensors of the call are dense and on the device of query."""
    for field in TENSORS:
        tensor = getattr(call, field)
        if tensor is not None and field != "seed":
            check_memory(_GIVEN_AS.get(field, field), tensor, query)
    check_parameters(call.position, call.parameters, query)
