"""Sums over a sequence that lies on many ranks, as every token has them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relpos.distributed._exchange import Transfer, explained
from relpos.distributed._geometry import Geometry
from relpos.distributed._layout import Run


class Cumulative(torch.autograd.Function):
    """Sums in double up to and with each key of this rank's shard [..., L], in each of packed
    sequences anew."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: Geometry, group: Any) -> Tensor:
        ctx.geometry, ctx.group, ctx.dtype = geometry, group, x.dtype
        return _sums_and_totals(x.double(), geometry, group)[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dsums: Tensor) -> Any:
        sums, totals = _sums_and_totals(dsums.double(), ctx.geometry, ctx.group)
        return (totals - sums + dsums).to(ctx.dtype), None, None


def _sums_and_totals(x: Tensor, geometry: Geometry, group: Any) -> tuple[Tensor, Tensor]:
    """Of each key: the sums so far, and the total, of its sequence. A total has the bits of the sum
    at its last key, and zeros change none: the gradient of a key behind all that are seen is 0."""
    runs, starts = geometry.k.runs, geometry.starts_k
    sums, total = _sums(x, runs, group)
    if starts is None:
        return sums, total.unsqueeze(-1)
    own = torch.cat([run.tokens() for run in runs[geometry.rank]])  # ascending
    before = sums.new_zeros(*sums.shape[:-1], len(starts))  # at the last key before each start
    if len(own):
        at = torch.searchsorted(own, starts - 1).clamp(max=len(own) - 1)
        before = torch.where(own[at] == starts - 1, sums[..., at], before)
    if len(runs) > 1:
        with explained("adding up an input over the ranks"):
            dist.all_reduce(before, group=group)
    sequence = torch.searchsorted(starts[1:], own, right=True)
    first = before[..., sequence]
    return sums - first, before[..., sequence + 1] - first


def _sums(x: Tensor, runs: list[list[Run]], group: Any) -> tuple[Tensor, Tensor]:
    """(sums so far, sum of all)."""
    if len(runs) == 1:
        sums = x.cumsum(-1)
        return sums, _last(sums)
    striped = runs[0][0].step > 1
    return _striped(x, runs, group) if striped else _in_runs(x, runs, group)


def _last(sums: Tensor) -> Tensor:
    """Of sums so far, that of all."""
    return sums[..., -1] if sums.shape[-1] else sums.sum(-1)


def _in_runs(x: Tensor, runs: list[list[Run]], group: Any) -> tuple[Tensor, Tensor]:
    """Where a shard is a few runs of consecutive tokens: their totals go round."""
    rank = dist.get_rank(group)
    own = [piece.cumsum(-1) for piece in x.split([run.count for run in runs[rank]], -1)]
    totals = torch.stack([_last(piece) for piece in own])
    found = [torch.empty_like(totals) for _ in runs]
    with explained("adding up an input over the ranks"):
        dist.all_gather(found, totals, group=group)
    order = sorted((run.start, r, n) for r, rs in enumerate(runs) for n, run in enumerate(rs))
    before, so_far = {}, torch.zeros_like(totals[0])
    for _, r, n in order:
        before[r, n] = so_far
        so_far = so_far + found[r][n]
    pieces = [piece + before[rank, n].unsqueeze(-1) for n, piece in enumerate(own)]
    return torch.cat(pieces, -1), so_far


def _striped(x: Tensor, runs: list[list[Run]], group: Any) -> tuple[Tensor, Tensor]:
    """Where neighbours lie on neighbouring ranks: each rank adds its own to what comes."""
    rank, ranks = dist.get_rank(group), len(runs)
    longest = max(run[0].count for run in runs)
    own = torch.nn.functional.pad(x, (0, longest - x.shape[-1])).contiguous()
    before = torch.zeros_like(own)
    if rank > 0:
        Transfer(group).receive([before], rank - 1).start().wait()
    so_far = before + own
    if rank + 1 < ranks:
        Transfer(group).send([so_far], rank + 1).start().wait()
    with explained("adding up an input over the ranks"):
        dist.broadcast(so_far_all := so_far.clone(), group=group, group_src=ranks - 1)
    rows = so_far_all.cumsum(-1)
    earlier = torch.nn.functional.pad(rows, (1, 0))[..., :longest]
    return (earlier + so_far)[..., : x.shape[-1]], _last(rows)
