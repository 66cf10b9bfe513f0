"""Positions of one's own on many ranks: each rank makes their terms once, for all distances of the
whole sequence."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relpos._base.arguments import flag
from relpos._base.modules import Reading
from relpos._base.tensors import check_heads
from relpos._call.distances import distances_of, refuse_grid
from relpos._call.packing import bounds_of, pack
from relpos._position.lowering import Distances
from relpos._position.sum import flatten
from relpos.distributed._exchange import Team, agree_in_teams, explained
from relpos.distributed._geometry import FAR


def terms_for_all(
    tensors: Sequence[Tensor],
    options: Mapping[str, Any],
    packed: Sequence[Any],
    spans: Sequence[int],
    summed_by: Sequence[Team],
) -> tuple[list[Any], set[int]]:
    """The position of a call with terms in place of its parts of one's own, and which tensors of it
    these have. spans: of all ranks, from agree_on_spans. summed_by: over whom the gradients of the
    parameters of these parts are added up; else they are this rank's share."""
    query, key = tensors[:2]
    of = _distances(options, packed, spans)
    parts, own, at = [], set(), 0
    for part in flatten(options["position"]):
        made = [part]
        if part._lowers:
            made = _lowered(part, of, query, key, summed_by)
            count = sum(len(term._values()) for term in made)
            own |= set(range(at, at + count))
        parts += made
        at += sum(len(term._values()) for term in made)
    return parts, own


def agree_on_spans(
    tensors: Sequence[Tensor], options: Mapping[str, Any], ring: Team, heads: Team
) -> list[int]:
    """Of all ranks: how many queries and keys, the least and largest position of queries, and of
    keys, as far as they are given one by one. Raises on every rank where one's call differs."""
    call, numbers, failure = {}, [0] * 6, None
    try:
        check_heads(**dict(zip(("query", "key"), tensors, strict=False)))
        call = _description(options["position"])
        numbers = [tensors[0].shape[2], tensors[1].shape[2]]
        for side in "qk":
            numbers += _ends(options.get(f"{side}_positions"))
    except Exception as error:
        failure = error
    device = tensors[0].device if isinstance(tensors[0], Tensor) else "cpu"
    return agree_in_teams(ring, heads, call, numbers, failure, device, _joined)[-1]


def _joined(rows: Sequence[Sequence[int]]) -> list[int]:
    columns = list(zip(*rows, strict=True))
    return [
        how(column) for how, column in zip((sum, sum, min, max, min, max), columns, strict=True)
    ]


def _ends(positions: Any) -> list[int]:
    if not isinstance(positions, Tensor) or not positions.numel():
        return [FAR, -FAR]
    return [int(positions.min()), int(positions.max())]


def _description(position: Any) -> dict[str, Any]:
    own = [part for part in flatten(position) if part._lowers]
    return {
        "position": [part._text for part in own],
        "parameters of position": [
            (name, list(p.shape), str(p.dtype), p.requires_grad)
            for part in own
            for name, p in part._module.named_parameters()
        ],
    }


def _distances(options: Mapping[str, Any], packed: Any, spans: Sequence[int]) -> Distances:
    """Those of the whole sequence that is_causal and window leave."""
    queries, keys, *ends = spans
    if packed[0] is not None:
        refuse_grid(
            options["position"], "packed sequences are several", "each picture as a batch row"
        )
        if queries and keys:
            options = {**options, **_ends_of_packed(options, packed, queries, keys)}
    else:
        given = {
            f"{side}_positions": torch.tensor(both, dtype=torch.int64)
            for side, both in (("q", ends[:2]), ("k", ends[2:]))
            if options.get(f"{side}_positions") is not None
        }
        options = {**options, **given}
    of = distances_of(queries, keys, options)
    return of._replace(tokens=(queries, keys))


def _ends_of_packed(
    options: Mapping[str, Any], packed: Any, queries: int, keys: int
) -> dict[str, Tensor]:
    """Positions between which those of all packed sequences lie."""
    starts = {"cu_seqlens": packed[0], "cu_seqlens_k": packed[1]}
    rows = {"query in all": queries, "key in all": keys}
    bounds = bounds_of(options.get("window"), flag("is_causal", options.get("is_causal", False)))
    packing = pack(starts, rows, options["position"], options.get("q_offset"), bounds)
    longest = packing.starts_k.diff().max(dim=0).values
    first, last = packing.offsets, packing.offsets + packing.starts_q.diff() - 1
    q_ends = torch.stack([first.min(), last.max()])
    return {"q_positions": q_ends, "k_positions": torch.stack([longest * 0, longest - 1])}


def _lowered(
    part: Any, of: Distances, query: Tensor, key: Tensor, summed_by: Sequence[Team]
) -> list[Any]:
    trained = {n: p for n, p in part._module.named_parameters() if p.requires_grad}
    if not trained or not summed_by or not torch.is_grad_enabled():
        return part._lowered(of, query, key)
    summed = _Summed.apply([team.group for team in summed_by], *trained.values())
    named = {f"owner.{n}": p for n, p in zip(trained, summed, strict=True)}
    reading = Reading(part._module, part._lowered)
    return torch.func.functional_call(reading, named, (of, query, key))


class _Summed(torch.autograd.Function):
    """Parameters as they are, whose gradients are added up over the ranks of groups: those of
    tables, and those of gates, which each rank has of its own tokens."""

    @staticmethod
    def forward(ctx: Any, groups: Sequence[Any], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.groups = groups
        return tuple(p.view_as(p) for p in parameters)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        flat = torch.cat([g.double().flatten() for g in gradients])
        for group in ctx.groups:
            with explained("adding up the gradients of the position"):
                dist.all_reduce(flat, group=group)
        parts = flat.split([g.numel() for g in gradients])
        sums = (p.view_as(g).to(g.dtype) for p, g in zip(parts, gradients, strict=True))
        return None, *sums
