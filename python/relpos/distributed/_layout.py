"""Which tokens of a sequence a rank holds, and tensors cut and joined accordingly."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from relpos._base.arguments import one_of
from relpos._base.errors import wrong_value
from relpos.distributed._exchange import teams

LAYOUTS = ("contiguous", "zigzag", "striped")


class Run(NamedTuple):
    """The tokens start, start + step, ... before stop."""

    start: int
    stop: int
    step: int

    @property
    def count(self) -> int:
        return len(range(*self))

    @property
    def last(self) -> int:
        return self.start + (self.count - 1) * self.step

    def tokens(self) -> Tensor:
        return torch.arange(*self)

    def halves(self) -> tuple["Run", "Run"]:
        middle = self.start + self.count // 2 * self.step
        return Run(self.start, middle, self.step), Run(middle, self.stop, self.step)


def check_layout(layout: Any) -> str:
    return one_of("layout", layout, LAYOUTS)


def shares(layout: str, total: int, ranks: int) -> list[list[Run]]:
    """The runs of each rank, in the order in which its shard holds them."""
    if layout == "striped":
        return [[Run(min(rank, total), total, ranks)] for rank in range(ranks)]
    pieces = ranks if layout == "contiguous" else 2 * ranks
    sizes = [total // pieces + (n < total % pieces) for n in range(pieces)]
    runs = runs_of(sizes)
    if layout == "contiguous":
        return [[run] for run in runs]
    return [[runs[rank], runs[pieces - 1 - rank]] for rank in range(ranks)]


def runs_of(sizes: Sequence[int]) -> list[Run]:
    runs, start = [], 0
    for size in sizes:
        runs.append(Run(start, start + size, 1))
        start += size
    return runs


def held(name: str, layout: str, lengths: Sequence[int]) -> list[list[Run]]:
    """The runs of each rank, of shards with these lengths. Contiguous ones may have any."""
    if layout == "contiguous":
        return [[run] for run in runs_of(lengths)]
    found = shares(layout, sum(lengths), len(lengths))
    expected = [sum(run.count for run in runs) for runs in found]
    if expected != list(lengths):
        wanted = f"shards of {expected} tokens, as relpos.distributed.shard makes {layout} ones"
        raise wrong_value(name, wanted, list(lengths))
    return found


def shard(x: Tensor, *, layout: str = "contiguous", dim: int, group: Any = None) -> Tensor:
    """This rank's tokens of a whole tensor, whose axis `dim` is the sequence.

    Every rank gives the same x. Lengths that the ranks do not divide are cut unevenly. The inverse
    is unshard. Differentiable: the gradient of x is this rank's share, 0 at other tokens. A group
    may be a DeviceMesh; of one with two axes, the second cuts what the first has cut.
    """
    check_layout(layout)
    ring, heads = teams(group)
    if heads.ranks > 1:
        x, layout, ring = shard(x, layout=layout, dim=dim, group=ring.group), "contiguous", heads
    pieces = taken(x, shares(layout, x.shape[dim], ring.ranks)[ring.rank], dim)
    return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, dim)


def taken(x: Tensor, runs: list[Run], dim: int) -> list[Tensor]:
    """The tokens of each of these runs of a whole tensor."""
    return [
        x.narrow(dim, run.start, run.count)
        if run.step == 1
        else x.index_select(dim, run.tokens().to(x.device))
        for run in runs
    ]


def placed(shards: Sequence[Tensor], runs: list[list[Run]], dim: int) -> Tensor:
    """The whole tensor of the shards of all ranks. What one holds beyond its runs is padding."""
    total = sum(run.count for own in runs for run in own)
    whole = shards[0].new_empty(resized(shards[0].shape, dim, total))
    for own, shard_of_rank in zip(runs, shards, strict=True):
        at = 0
        for run in own:
            rows = shard_of_rank.narrow(dim, at, run.count)
            whole.movedim(dim, 0)[run.start : run.stop : run.step] = rows.movedim(dim, 0)
            at += run.count
    return whole


def resized(shape: Sequence[int], axis: int, size: int) -> list[int]:
    """The shape with another size of one axis."""
    changed = list(shape)
    changed[axis] = size
    return changed


def unshard(x: Tensor, *, layout: str = "contiguous", dim: int, group: Any = None) -> Tensor:
    """The whole tensor on every rank, from each rank's shard; the inverse of shard.

    Contiguous shards may have any lengths. Differentiable: the gradient of a shard is the sum of
    what all ranks ask of it.
    """
    check_layout(layout)
    ring, heads = teams(group)
    if heads.ranks > 1:
        x = unshard(x, dim=dim, group=heads.group)
    ranks, group = ring.ranks, ring.group
    length = torch.tensor([x.shape[dim]], device=x.device)
    found = [torch.empty_like(length) for _ in range(ranks)]
    dist.all_gather(found, length, group=group)
    lengths = [int(n) for n in found]
    runs = held("x", layout, lengths)
    return _Unshard.apply(x, runs, dim, group)


class _Unshard(torch.autograd.Function):
    """The shards of all ranks at their places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, runs: Any, dim: int, group: Any) -> Tensor:
        ctx.runs, ctx.dim, ctx.group = runs, dim, group
        return gather_tokens(x, runs, dim, group)

    @staticmethod
    def backward(ctx: Any, dwhole: Tensor) -> Any:
        total = dwhole.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        pieces = taken(total, ctx.runs[dist.get_rank(ctx.group)], ctx.dim)
        return torch.cat(pieces, ctx.dim), None, None, None


def gather_tokens(x: Tensor, runs: list[list[Run]], dim: int, group: Any) -> Tensor:
    """What the shards of all ranks hold, at the tokens' places; without a gradient."""
    if x.dtype == torch.bool:
        return gather_tokens(x.to(torch.uint8), runs, dim, group).to(torch.bool)
    longest = max(sum(run.count for run in own) for own in runs)
    padded = x.new_zeros(resized(x.shape, dim, longest))
    padded.narrow(dim, 0, x.shape[dim]).copy_(x)
    found = [torch.empty_like(padded) for _ in runs]
    dist.all_gather(found, padded, group=group)
    return placed(found, runs, dim)
