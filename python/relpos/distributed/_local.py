"""One rank's call: checked as far as one rank can, then placed among the others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.arguments import one_of
from relpos._base.errors import wrong_value
from relpos._call.attention import same_kind
from relpos._call.call import Call
from relpos._call.options import OPTIONS
from relpos._call.packing import bounds_of, placing_text
from relpos._call.tensors import check_call
from relpos._mask.tile_mask import TileMask
from relpos._position.part import reads_length, reads_positions
from relpos._position.sum import flatten
from relpos.distributed._geometry import Geometry, Side, placing
from relpos.distributed._layout import check_layout, held
from relpos.distributed._packed import packed
from relpos.distributed._pieces import Inputs

MODES = ("ring", "all_gather")


@dataclass
class LocalCall:
    """One rank's call, checked as far as one rank can."""

    tensors: list[Tensor]  # query, key, value
    call: Call  # as the kernels would take it, of this rank's tokens alone
    packed: Sequence[Tensor | None]
    how: dict[str, Any]
    parts: list[Any]  # of the position
    own: set[int] = field(default_factory=set)  # tensors of it that positions of one's own made

    @property
    def reads_length(self) -> bool:
        """Whether the position depends on the length of the whole."""
        return reads_length(self.parts)

    @property
    def reads_positions(self) -> bool:
        """Whether it depends on where tokens stand."""
        return reads_positions(self.parts)

    @classmethod
    def of(
        cls,
        tensors: Any,
        options: dict[str, Any],
        return_weights: Any,
        packed: Any,
        how: dict[str, Any],
    ) -> "LocalCall":
        _refuse_quadratic(options.pop("attn_mask", None), return_weights)
        check_layout(how["layout"])
        one_of("mode", how["mode"], MODES)
        _check_packed(packed, options)
        tensors = same_kind(**dict(zip(("query", "key", "value"), tensors, strict=True)))
        offset = options.get("q_offset")
        if packed[0] is not None:
            options["q_offset"] = None
        call = Call.of("ring_attention", *tensors[:2], options)
        check_call(call, tensors[0])
        Inputs.of(call.position, call.parameters)  # refuses inputs of pairs
        check = call
        if call.q_positions is None and call.q_offset is None and call.q_offsets is None:
            check = call._replace(q_offset=0)
        _core.workspace_bytes(*tensors, check, False)
        parts = flatten(options.get("position"))
        if packed[0] is not None:
            packed = (*packed, offset)
        return cls(list(tensors), call, packed, how, parts)

    def description(self) -> dict[str, Any]:
        """What must be the same on every rank."""
        query, key, value = self.tensors
        call, inputs = self.call, Inputs.of(self.call.position, self.call.parameters)
        free = {**inputs.key_axis, **inputs.query_axis}
        shapes = [
            [size for axis, size in enumerate(t.shape) if axis != free.get(n)]
            for n, t in enumerate(call.parameters)
        ]
        leaves = [*self.tensors, *call.parameters]
        wants = [t.requires_grad and torch.is_grad_enabled() for t in leaves]
        found: dict[str, Any] = dict(self.how)
        for name, t in (("query", query), ("key", key), ("value", value)):
            found[name] = f"[{t.shape[0]}, {t.shape[1]}, L, {t.shape[3]}] of {t.dtype}"
        found["position"] = call.position or None
        found["tensors of position"] = [
            (shape, str(t.dtype)) for shape, t in zip(shapes, call.parameters, strict=True)
        ]
        found["requires_grad of query, key, value and position"] = wants
        for name, option in OPTIONS.items():
            values = [getattr(call, field.name) for field in option.fields]
            if option.compared == "value":
                found[name] = next((_shown(v) for v in values[::-1] if v is not None), None)
            elif option.compared == "given":
                found[f"{name} given"] = values[0] is not None
        found["cu_seqlens, cu_seqlens_k, q_offset"] = [_shown(t) for t in self.packed]
        return found


def geometry_of(local: LocalCall, lengths: Any, rank: int) -> Geometry:
    """Of the ranks of a ring that hold so many queries and keys."""
    call, layout = local.call, local.how["layout"]
    q = Side(held("query", layout, lengths["query"]), given=call.q_positions)
    k = Side(held("key", layout, lengths["key"]), given=call.k_positions)
    geometry = Geometry(rank, q, k, lo=call.key_lo, hi=call.key_hi)
    if local.packed[0] is not None:
        return packed(geometry, local)
    bounds = bounds_of(call.window, call.is_causal)
    geometry.left, geometry.right = bounds
    in_play = local.reads_positions or bounds != (None, None)
    if q.given is not None:
        _check_order(geometry, in_play and bounds != (None, None))
    elif in_play:
        _say_offsets(geometry, local)
    return geometry


def _say_offsets(geometry: Geometry, local: LocalCall) -> None:
    """Positions that follow from tokens and offsets."""
    q, k, call = geometry.q, geometry.k, local.call
    offset = call.q_offset if call.q_offsets is None else call.q_offsets
    k.offset = call.k_offset if call.k_offsets is None else call.k_offsets
    if offset is None and (isinstance(k.offset, Tensor) or k.offset or q.total != k.total):
        raise ValueError(
            f"q_offset: not given, and Lq = {q.total} in all differs from Lk = {k.total} or "
            "k_offset is given, while a position, is_causal or window is in play. Say where the "
            "queries are: q_offset = Lk - Lq for a memory; q_offset = 0 where both start at 0"
        )
    q.offset = 0 if offset is None else offset
    placed_by = placing_text(local.parts)
    striped = any(run.step > 1 for side in (q, k) for runs in side.runs for run in runs)
    for side in (q, k) if placed_by or striped else ():
        side.make = placing(placed_by, side is k, side.offset)


def _check_order(geometry: Geometry, bounded: bool) -> None:
    side, rank = geometry.k, geometry.rank
    for n in range(len(side.runs[rank])):
        run = side.own(rank, n)
        if bounded and bool((run.diff(dim=-1) < 0).any()):
            raise ValueError(
                "k_positions: must not decrease when is_causal or window is given; say the "
                "boundary of each query with key_range instead"
            )


def _refuse_quadratic(attn_mask: Any, return_weights: Any) -> None:
    if attn_mask is not None:
        got = "a TileMask" if isinstance(attn_mask, TileMask) else "one"
        then = "say it with is_causal, window, key_padding_mask, key_range or a position"
        raise wrong_value("attn_mask", "None, since no rank holds Lq x Lk numbers", got, then)
    if return_weights:
        why = "False, since no rank holds Lq x Lk numbers"
        raise wrong_value("return_weights", why, return_weights)


def _check_packed(packed: Any, options: dict[str, Any]) -> None:
    if packed[0] is None and packed[1] is not None:
        raise wrong_value("cu_seqlens_k", "None without cu_seqlens", "one")
    if packed[0] is None:
        return
    for name in ("q_positions", "k_positions", "key_range"):
        if options.get(name) is not None:
            raise wrong_value(name, "None beside cu_seqlens, which says it", "one")
    k_offset = options.get("k_offset", 0)
    if isinstance(k_offset, Tensor) or k_offset != 0:
        why = "0 beside cu_seqlens, since each sequence's keys start at 0"
        raise wrong_value("k_offset", why, k_offset)


def _shown(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value
