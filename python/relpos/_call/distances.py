"""The distances of a call, for which positions of one's own make their terms."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.arguments import flag
from relpos._base.tensors import check_heads
from relpos._call.packing import bounds_of
from relpos._position.lowering import Distances
from relpos._position.sum import flatten, lowers


def lowered(query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Any:
    """The position of a call: parts that are terms already stay, the others become terms."""
    if not lowers(options["position"]):
        return options["position"]
    check_heads(query=query, key=key)
    of = distances_of(query.shape[2], key.shape[2], options)
    parts: list[Any] = []
    for part in flatten(options["position"]):
        parts += part._lowered(of, query, key) if part._lowers else [part]
    return parts


def lowered_within(
    query: Tensor, key: Tensor, options: Mapping[str, Any], bounds: tuple[Any, Any]
) -> Any:
    """As lowered, for a call whose keys key_range says: bounds are how far before and after its own
    position a query sees any of them, None without a bound."""
    window = tuple(-1 if bound is None else bound for bound in bounds)
    return lowered(query, key, {**options, "window": window})


def refuse_grid(position: Any, why: str, then: str) -> None:
    """Raises ValueError for a position of one's own that has a grid."""
    for part in flatten(position):
        if part._lowers and part._places_tokens:
            raise ValueError(
                f"position: {part._text} has a grid, whose tokens are those of a call, and {why}: "
                f"expected relpos.attention with {then}"
            )


def distances_of(queries: Any, keys: Any, options: Mapping[str, Any]) -> Distances:
    """Those of all pairs that is_causal and window leave; 0 where there is none."""
    if isinstance(queries, int) and isinstance(keys, int) and not (queries and keys):
        return Distances(0, 0)
    q_first, q_last = _span("q", queries, keys, options)
    k_first, k_last = _span("k", keys, queries, options)
    first, last = k_first - q_last, k_last - q_first
    left, right = bounds_of(
        options.get("window"), flag("is_causal", options.get("is_causal", False))
    )
    if left is not None:
        first = torch.sym_max(first, -left)
    if right is not None:
        last = torch.sym_min(last, right)
    return Distances(first, last) if first <= last else Distances(0, 0)


def _span(side: str, count: Any, others: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The first and the last position of queries or of keys."""
    explicit = options.get(f"{side}_positions")
    if isinstance(explicit, Tensor):
        if explicit.is_meta or not explicit.numel():
            return 0, count - 1
        return int(explicit.min()), int(explicit.max())
    offset = options.get(f"{side}_offset")
    if isinstance(offset, Tensor):
        if offset.is_meta or not offset.numel():
            return 0, count - 1
        return int(offset.min()), int(offset.max()) + count - 1
    if offset is None:
        offset = 0
        if side == "q" and options.get("q_positions") is None and count != others:
            _core.grid_offset(count, others, None)  # raises, with both meanings of the lengths
    return offset, offset + count - 1
