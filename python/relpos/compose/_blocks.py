"""Attention whose bias torch computes for a block of queries at a time, as its mask, and computes
again in the backward pass."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from relpos import _core
from relpos._base.arguments import flag
from relpos._call.attention import attention
from relpos._call.distances import lowered
from relpos._position.part import Part, text_of, values_of, with_values
from relpos._position.sum import flatten
from relpos.compose._calls import count, places

_MOST = 1 << 20  # numbers in one tensor of a block, unless one row has more

# [B or 1, H or 1, n, Lk] from a block of queries [B, H, n, D], the keys, int64 positions of both,
# [n] or [B, n] and [Lk] or [B, Lk], and the parameters.
Bias = Callable[..., Tensor]


class Places(NamedTuple):
    """Where the tokens of a call stand: int64 [L] or [B, L] each, which follow from `starts` of
    queries and keys, [] or [B, 1], where those are given."""

    q: Tensor
    k: Tensor
    starts: tuple[Tensor, Tensor] | None = None

    @classmethod
    def after(cls, starts: tuple[Tensor, Tensor], query: Tensor, key: Tensor) -> "Places":
        return cls(places(starts[0], query.shape[2]), places(starts[1], key.shape[2]), starts)

    def options(self, part: slice) -> dict[str, Any]:
        """What says so to the call of a block of queries."""
        if self.starts is None:
            return {"q_positions": self.q[..., part], "k_positions": self.k}
        first = self.starts[0] + part.start, self.starts[1]
        q_offset, k_offset = (at.reshape(-1) if at.dim() else int(at) for at in first)
        return {"q_offset": q_offset, "k_offset": k_offset}


def of_rows(options: dict[str, Any], part: slice, at: Places) -> dict[str, Any]:
    """The options for the queries of a slice."""
    own = options | at.options(part)
    if own.get("key_range") is not None:
        own["key_range"] = tuple(bound[..., part] for bound in own["key_range"])
    if isinstance(own.get("sinks"), Tensor) and own["sinks"].dim() == 3:
        own["sinks"] = own["sinks"][..., part]
    return own


def position_of_rows(parts: Sequence[Part], part: slice) -> list[Part]:
    """The parts of a position with what their inputs say of the queries of a slice."""
    cut = []
    for one in parts:
        axes = [axes for _, axes, _ in _core.list_tensors(text_of(one))]
        if any("queries" in each for each in axes):
            values = [
                x.narrow(each.index("queries") - len(each), part.start, part.stop - part.start)
                if "queries" in each
                else x
                for x, each in zip(values_of(one), axes, strict=True)
            ]
            one = with_values(one, values)
        cut.append(one)
    return cut


def by_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Bias,
    parameters: Sequence[Tensor],
    at: Places,
    options: dict[str, Any],
    *,
    width: int,
    rows: int | None,
    optional: int = 0,
    random: bool = False,
) -> Any:
    """Attention with the bias as its mask, block by block. `width` is how many numbers a tensor of
    one row has; the last `optional` parameters have no gradient, instead of zeros, where no block
    reads them; `random`: the bias may draw random numbers."""
    rows = max(1, _MOST // max(1, width)) if rows is None else count("rows", rows)
    options = dict(options)
    with_lse = flag("return_lse", options.pop("return_lse", False))
    sinks = options.pop("sinks", None)
    position = options.pop("position", None)
    given = {**options, **at.options(slice(0, None)), "position": position}
    parts = flatten(lowered(query, key, given))
    held = [values_of(part) for part in parts]
    # What may need a gradient goes through the Function: parameters, sinks, the other parts' own.
    tensors = [key, value, *parameters, *([] if sinks is None else [sinks])]
    tensors += [value for values in held for value in values]

    def attend(
        part: slice, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor]:
        following = iter(rest)
        own = [next(following) for _ in parameters]
        mask = bias(q, k, at.q[..., part], at.k, *own)
        given = of_rows(options | {"sinks": None if sinks is None else next(following)}, part, at)
        whole = [
            with_values(one, [next(following) for _ in values])
            for one, values in zip(parts, held, strict=True)
        ]
        position = position_of_rows(whole, part)
        return attention(q, k, v, attn_mask=mask, position=position, return_lse=True, **given)

    replayed = random or bool(options.get("dropout_p"))
    end = 2 + len(parameters)
    plan = _Plan(attend, rows, replayed, range(end - optional, end))
    out, lse = _Blocks.apply(plan, query, *tensors)
    return (out, lse) if with_lse else out


class _Plan(NamedTuple):
    attend: Callable[..., tuple[Tensor, Tensor]]
    rows: int
    replayed: bool  # the backward pass draws the same random numbers
    optional: range  # the tensors that have no gradient where no block reads them


class _Blocks(torch.autograd.Function):
    """(out, lse) of attend(rows as a slice, their queries, *tensors), block by block. The backward
    pass computes each block again."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, query: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.plan = plan
        ctx.random = torch.get_rng_state() if plan.replayed else None
        ctx.autocast = {
            "dtype": torch.get_autocast_dtype("cpu"),
            "enabled": torch.is_autocast_enabled("cpu"),
        }
        ctx.save_for_backward(query, *tensors)
        out = lse = query.new_empty(0)
        for part in _blocks(query, plan.rows):
            made = plan.attend(part, query[:, :, part], *tensors)
            if part.start == 0:  # so that nothing is allocated between blocks that outlives one
                shapes = [(*x.shape[:2], query.shape[2], *x.shape[3:]) for x in made]
                out, lse = (x.new_empty(s) for x, s in zip(made, shapes, strict=True))
            out[:, :, part], lse[:, :, part] = made
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> Any:
        query, *tensors = ctx.saved_tensors
        needs_query, *needs = ctx.needs_input_grad[1:]
        dquery = torch.zeros_like(query) if needs_query else None
        sums = [
            _zeros(x) if need and n not in ctx.plan.optional else None
            for n, (x, need) in enumerate(zip(tensors, needs, strict=True))
        ]
        with torch.random.fork_rng(devices=[], enabled=ctx.random is not None):
            if ctx.random is not None:
                torch.set_rng_state(ctx.random)
            for part in _blocks(query, ctx.plan.rows):
                q = query[:, :, part].detach().requires_grad_(needs_query)
                leaves = [
                    x.detach().requires_grad_(need) for x, need in zip(tensors, needs, strict=True)
                ]
                with torch.enable_grad(), torch.autocast("cpu", **ctx.autocast):
                    made = ctx.plan.attend(part, q, *leaves)
                wanted = [x for x in (q, *leaves) if x.requires_grad]
                seeds = (dout[:, :, part], dlse[:, :, part])
                found = iter(torch.autograd.grad(made, wanted, seeds, allow_unused=True))
                if needs_query:
                    dquery[:, :, part] = next(found)
                for n, leaf in enumerate(leaves):
                    gradient = next(found) if leaf.requires_grad else None
                    if gradient is not None:
                        sums[n] = _zeros(leaf) if sums[n] is None else sums[n]
                        sums[n] += gradient
        cast = [
            None if total is None else total.to(x.dtype)
            for total, x in zip(sums, tensors, strict=True)
        ]
        return None, dquery, *cast


def _zeros(x: Tensor) -> Tensor:
    """Where gradients of blocks are added up: in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.zeros(x.shape, dtype=wide, device=x.device)


def _blocks(query: Tensor, rows: int) -> list[slice]:
    length = query.shape[2]
    return [slice(n, min(n + rows, length)) for n in range(0, max(length, 1), rows)]
