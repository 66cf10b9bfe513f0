"""From a share of the tokens with all heads to all tokens with a share of the heads, and back."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relpos.distributed._exchange import TOTAL, Team, explained
from relpos.distributed._layout import Run, gather_tokens, placed, taken
from relpos.distributed._local import LocalCall
from relpos.distributed._pieces import Inputs


def check_heads(tensors: list[Tensor], ranks: int) -> None:
    query, key, _ = tensors
    if query.shape[1] % ranks:
        raise ValueError(
            f"group: {ranks} ranks share the heads, expected a number that divides the "
            f"{query.shape[1]} heads of query; ring_attention takes any number of ranks"
        )
    if key.shape[1] % ranks and ranks % key.shape[1]:
        raise ValueError(
            f"group: {ranks} ranks share the heads, expected a divisor or a multiple of the "
            f"{key.shape[1]} heads of key; ring_attention takes any number of ranks"
        )


def with_own_heads(
    local: LocalCall, q_runs: list[list[Run]], k_runs: list[list[Run]], heads: Team
) -> LocalCall:
    """The call with this rank's share of the heads and the tokens of all ranks of a team."""
    query, key, value = local.tensors
    if key.shape[1] % heads.ranks:  # several ranks use one head
        times = heads.ranks // key.shape[1]
        key, value = (t.repeat_interleave(times, 1) for t in (key, value))
    group, own = heads.group, query.shape[1] // heads.ranks
    tensors = [exchange(query, q_runs, group, to_heads=True)]
    tensors += [exchange(t, k_runs, group, to_heads=True) for t in (key, value)]
    call = local.call._replace(
        first_head=heads.rank * own,
        all_heads=query.shape[1],
        parameters=_inputs_of_heads(local, q_runs, k_runs, heads),
    )
    for name in ("key_padding_mask", "k_positions", "q_positions", "key_lo", "key_hi"):
        held = getattr(call, name)
        if held is not None:
            runs = k_runs if name.startswith("key_p") or name == "k_positions" else q_runs
            call = call._replace(**{name: gather_tokens(held, runs, -1, group)})
    return replace(local, tensors=tensors, call=call)


def _inputs_of_heads(local: LocalCall, q_runs: Any, k_runs: Any, heads: Team) -> list[Tensor]:
    group = heads.group
    inputs = Inputs.of(local.call.position, list(local.call.parameters))
    found = list(inputs.tensors)
    for axes, runs in ((inputs.key_axis, k_runs), (inputs.query_axis, q_runs)):
        for n, axis in axes.items():
            rows = found[n]  # [batch, (heads,) tokens, ...]
            headed = n in inputs.of_heads or n in inputs.of_key_heads
            if n in inputs.of_key_heads and rows.shape[1] % heads.ranks:  # as for key itself
                rows = rows.repeat_interleave(heads.ranks // rows.shape[1], 1)
            if not headed and not rows.is_floating_point():
                found[n] = gather_tokens(rows, runs, axis, group)
                continue
            if not headed:  # as a head for each rank
                rows = rows.unsqueeze(1).expand(-1, heads.ranks, *rows.shape[1:])
            if axis != 1 + headed:
                raise ValueError(
                    f"position: input {n} has tokens on axis {axis}, expected the one behind batch "
                    "and heads; ring_attention takes it"
                )
            flat = rows.flatten(3) if rows.dim() > 3 else rows.unsqueeze(-1)
            swapped = exchange(flat, runs, group, to_heads=True)
            whole = swapped.view(*swapped.shape[:3], *rows.shape[3:])
            found[n] = whole if headed else whole.squeeze(1)
    own = local.tensors[0].shape[1] // heads.ranks
    for n in inputs.by_head:
        found[n] = found[n].narrow(0, heads.rank * own, own)
    return found


def exchange(x: Tensor, runs: list[list[Run]], group: Any, *, to_heads: bool) -> Tensor:
    """[B, H, L of this rank, D] as [B, H / ranks, L of all, D], tokens in their order; or back.
    Differentiable."""
    return _Exchange.apply(x, runs, group, to_heads)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, runs: list[list[Run]], group: Any, to_heads: bool) -> Tensor:
        ctx.runs, ctx.group, ctx.to_heads = runs, group, to_heads
        return (_to_heads if to_heads else _to_tokens)(x, runs, group)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        back = _to_tokens if ctx.to_heads else _to_heads
        return back(dx, ctx.runs, ctx.group), None, None, None


def _to_heads(x: Tensor, runs: list[list[Run]], group: Any) -> Tensor:
    ranks = len(runs)
    pieces = [piece.contiguous().flatten() for piece in x.chunk(ranks, 1)]
    batch, heads, _, dim = x.shape
    counts = [sum(run.count for run in own) for own in runs]
    sizes = [batch * (heads // ranks) * count * dim for count in counts]
    shards = [
        piece.view(batch, heads // ranks, count, dim)
        for count, piece in zip(counts, _swap(pieces, sizes, group), strict=True)
    ]
    return placed(shards, runs, 2)


def _to_tokens(x: Tensor, runs: list[list[Run]], group: Any) -> Tensor:
    batch, heads, _, dim = x.shape
    pieces = [torch.cat(taken(x, own, 2), 2).flatten() for own in runs]
    count = sum(run.count for run in runs[dist.get_rank(group)])
    arrived = _swap(pieces, [batch * heads * count * dim] * len(runs), group)
    return torch.cat([piece.view(batch, heads, count, dim) for piece in arrived], 1)


def _swap(pieces: list[Tensor], sizes: list[int], group: Any) -> list[Tensor]:
    """Piece n goes to rank n; what comes from each has these sizes."""
    rank = dist.get_rank(group)
    out = pieces[0].new_empty(sum(sizes))
    for n, piece in enumerate(pieces):
        TOTAL.sent_bytes += piece.numel() * piece.element_size() * (n != rank)
    with explained("exchanging tokens for heads"):
        dist.all_to_all_single(
            out, torch.cat(pieces), sizes, [piece.numel() for piece in pieces], group=group
        )
    return list(out.split(sizes))
