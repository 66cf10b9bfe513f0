"""Biases that differ from query to query: CoPE, and FIRE beyond its threshold.

They have no term of the kernels. Their numbers are computed by torch for a block of rows at a time
and given to relpos.attention as its mask; the backward pass computes them again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from relpos import _core
from relpos._base.arguments import flag, number
from relpos._base.errors import shape_of, wrong_value
from relpos._base.tensors import check_device, check_rank
from relpos._call.attention import attention
from relpos._call.distances import lowered
from relpos._position.classes import CLASSES
from relpos._position.part import Given, text_of, values_of, with_values
from relpos._position.sum import Composed, flatten, lowers
from relpos.compose._calls import check_call, count, offsets, places, refuse, refuse_placing

_MOST = 1 << 20  # numbers in one tensor of a block, unless one row has more


def cope(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    table: Tensor,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    q_offset: int | Tensor | None = None,
    k_offset: int | Tensor = 0,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    rows: int | None = None,
) -> Any:
    """Causal attention by CoPE: a position counts the keys that the query's gates let pass.

    With s_ij = scale <q_i, k_j>: p_ij = min(sum of sigmoid(s_it) over the visible keys t from j to
    i, P - 1), and score_ij = s_ij + <q_i, e(p_ij)>, not multiplied by the scale, where e between
    two rows of the table is linear.

    Slow: p_ij needs all scores of its row from the right, so that no tile of keys can be computed
    alone. Blocks of rows take O(rows Lk) memory, and are computed again in the backward pass.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv].
      table: [P, D], the vectors e(0), ..., e(P - 1).
      rows: queries of a block; None chooses them so that a tensor has at most 2^20 numbers.
      The others are those of relpos.attention. Hidden keys have no gate. There is no window,
      key_range, attn_mask or position, since the paper does not say which gates count then.

    Returns:
      out [B, H, Lq, Dv], or (out, lse [B, H, Lq]) with return_lse.

    Source: Golovneva et al. 2024, Contextual Position Encoding, section 3 and appendix B.
    """
    check_call("cope", query, key, value)
    dims = query.shape[3]
    check_rank("table", table, 2, f"[P, {dims}]")
    if table.shape[1] != dims or not len(table):
        raise wrong_value("table", f"[P, {dims}] of at least one row", shape_of(table))
    scale = dims**-0.5 if scale is None else number("scale", scale)
    for name, given in (("table", table), ("key_padding_mask", key_padding_mask)):
        if given is not None:
            check_device(name, given, query)
    starts = offsets(query, key, q_offset, k_offset)
    pos_q, pos_k = places(starts[0], query.shape[2]), places(starts[1], key.shape[2])

    def bias(part: slice, q: Tensor, k: Tensor, e: Tensor) -> Tensor:
        hidden = (pos_k[..., None, :] > pos_q[..., part, None]).unsqueeze(-3)
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None, None]
            k = k.masked_fill(key_padding_mask[:, None, :, None], 0.0)
        return _contextual(scale, hidden, q, k, e)

    options = {
        "key_padding_mask": key_padding_mask,
        "dropout_p": dropout_p,
        "scale": scale,
        "enable_gqa": enable_gqa,
        "sinks": sinks,
        "return_lse": return_lse,
        "is_causal": True,
    }
    width = query.shape[0] * query.shape[1] * key.shape[2]
    return _by_rows(query, key, value, bias, [table], width, rows, starts, options)


def fire(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    position: Composed | Sequence[Composed],
    rows: int | None = None,
    **options: Any,
) -> Any:
    """Attention with relpos.FIRE that takes queries beyond its threshold T.

    Queries up to T run fused, as relpos.attention runs them. Beyond T the bias of a distance also
    depends on the query, through max(pos_q, T), so that no table of distances holds it: these
    queries are slow. Blocks of them take O(rows Lk) memory, and are computed again in the backward
    pass.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], as for relpos.attention.
      position: a relpos.FIRE, alone or in a sum.
      rows: queries of a block; None chooses them so that a tensor has at most 2^20 numbers.
      options: those of relpos.attention. Raises ValueError for attn_mask and softcap, since the
        bias itself is given as a mask, after the softcap, and for return_weights, q_positions and
        k_positions.

    Returns:
      out [B, H, Lq, Dv], or (out, lse [B, H, Lq]) with return_lse.

    Source: Li et al. 2024, Functional Interpolation for Relative Positions, section 3.
    """
    check_call("fire", query, key, value)
    refuse("fire", options, _REFUSED)
    with_lse = flag("return_lse", options.get("return_lse", False))
    module, others = _fire_of(position)
    refuse_placing("fire", others)
    if lowers(others):
        others = lowered(query, key, {**options, "position": others})
    starts = offsets(query, key, options.pop("q_offset", None), options.pop("k_offset", 0))
    reach = float(module.L_multiplier.detach().double().abs()) * module.init_L
    length = query.shape[2]
    last = int(starts[0].max()) if starts[0].numel() else 0
    near = int(min(max(reach - last + 1, 0), length))  # queries up to T in every batch row
    results = []
    if near or not length:
        part = slice(0, near)
        own = _of_rows(options, part, starts)
        near_position = [module, *(_of_queries(part, other) for other in others)]
        results.append(attention(query[:, :, part], key, value, position=near_position, **own))
    if near < length:
        pos_k = places(starts[1], key.shape[2])
        pos_q = places(starts[0], length)[..., near:]

        def bias(part: slice, q: Tensor, k: Tensor, *parameters: Tensor) -> Tensor:
            del k
            return _interpolated(module.init_L, pos_q[..., part], pos_k, q.dtype, *parameters)

        rest = _of_rows(options, slice(near, length), starts)
        beyond = (starts[0] + near, starts[1])
        per_batch = query.shape[0] if pos_q.dim() > 1 or pos_k.dim() > 1 else 1
        width = per_batch * key.shape[2] * max(module.width, query.shape[1])
        q = query[:, :, near:]
        rest["position"] = [_of_queries(slice(near, length), other) for other in others]
        made = _by_rows(q, key, value, bias, values_of(module), width, rows, beyond, rest)
        results.append(made)
    if not with_lse:
        return torch.cat(results, 2) if len(results) > 1 else results[0]
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs, 2), torch.cat(lses, 2)


_REFUSED = {
    "attn_mask": "the bias itself is given as a mask; give key_padding_mask or key_range",
    "softcap": "it would have to follow the bias, which is given as a mask, after the softcap",
    "return_weights": "they are dense: compute small cases by attn_mask in relpos.attention",
    "q_positions": "it computes positions from offsets: give q_offset and k_offset",
    "k_positions": "it computes positions from offsets: give q_offset and k_offset",
}


def _fire_of(position: Any) -> tuple[Any, list[Any]]:
    parts = flatten(position)
    found = [part for part in parts if isinstance(part, CLASSES["FIRE"])]
    if len(found) != 1:
        wanted = "one relpos.FIRE, alone or in a sum"
        raise wrong_value("position", wanted, text_of(parts) or "none")
    return found[0], [part for part in parts if part is not found[0]]


def _contextual(scale: float, hidden: Tensor, q: Tensor, k: Tensor, e: Tensor) -> Tensor:
    """<q_i, e(p_ij)>, [B, H, rows, Lk]; hidden is bool [B or 1, 1, rows, Lk]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k, e = q.to(wide), k.to(wide), e.to(wide)
    batch, heads, length, dims = q.shape
    grouped = q.reshape(batch, k.shape[1], -1, dims)  # the heads that share keys, one after another
    logits = (scale * grouped @ k.mT).view(batch, heads, length, k.shape[2])
    gates = torch.sigmoid(logits).masked_fill(hidden, 0.0)
    at = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=float(len(e) - 1))
    low, high = at.detach().floor(), at.detach().ceil()
    products = q @ e.mT
    share = at - low
    below, above = (products.gather(-1, row.to(torch.int64)) for row in (low, high))
    return below * (1 - share) + above * share


def _interpolated(
    init_L: float, pos_q: Tensor, pos_k: Tensor, dtype: torch.dtype, *parameters: Tensor
) -> Tensor:
    """FIRE's bias of every pair, [B or 1, H, rows, Lk]."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    first, first_bias, second, second_bias, c, multiplier = (p.to(wide) for p in parameters)
    rate, reach = c.abs(), multiplier.abs() * init_L
    n = (pos_q[..., :, None] - pos_k[..., None, :]).abs().to(wide)
    at = pos_q.to(wide)
    at = torch.where(at > reach, at, reach)
    x = torch.log(rate * n + 1) / (torch.log(rate * at + 1) + 1e-6).unsqueeze(-1)
    hidden = torch.relu(x.unsqueeze(-1) * first[:, 0] + first_bias)
    bias = (hidden @ second.mT + second_bias).movedim(-1, -3)
    return bias if bias.dim() == 4 else bias.unsqueeze(0)


def _by_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Callable[..., Tensor],
    parameters: Sequence[Tensor],
    width: int,
    rows: int | None,
    starts: tuple[Tensor, Tensor],
    options: dict[str, Any],
) -> Any:
    """Attention with bias(rows as a slice, their queries, key, *parameters) as its mask, block by
    block. `width` is how many numbers a tensor of one row has."""
    rows = max(1, _MOST // max(1, width)) if rows is None else count("rows", rows)
    options = dict(options)
    with_lse = flag("return_lse", options.pop("return_lse", False))
    sinks = options.pop("sinks", None)
    parts = flatten(options.pop("position", None))
    held = [values_of(part) for part in parts]
    # What may need a gradient goes through the Function: parameters, sinks, the other parts' own.
    tensors = [key, value, *parameters, *([] if sinks is None else [sinks])]
    tensors += [value for values in held for value in values]

    def attend(
        part: slice, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor]:
        following = iter(rest)
        mask = bias(part, q, k, *(next(following) for _ in parameters)).to(q.dtype)
        own = _of_rows(
            options | {"sinks": None if sinks is None else next(following)}, part, starts
        )
        position = [
            _of_queries(part, with_values(one, [next(following) for _ in values]))
            for one, values in zip(parts, held, strict=True)
        ]
        return attention(q, k, v, attn_mask=mask, position=position, return_lse=True, **own)

    replayed = bool(options.get("dropout_p"))
    out, lse = _Blocks.apply(attend, rows, replayed, query, *tensors)
    return (out, lse) if with_lse else out


class _Blocks(torch.autograd.Function):
    """(out, lse) of attend(rows as a slice, their queries, *tensors), block by block. The backward
    pass computes each block again, with the same random numbers if `replayed`."""

    @staticmethod
    def forward(
        ctx: Any, attend: Any, rows: int, replayed: bool, query: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.attend, ctx.rows = attend, rows
        ctx.random = torch.get_rng_state() if replayed else None
        ctx.save_for_backward(query, *tensors)
        out = lse = query.new_empty(0)
        for part in _blocks(query, rows):
            made = attend(part, query[:, :, part], *tensors)
            if part.start == 0:  # so that nothing is allocated between blocks that outlives one
                shapes = [(*x.shape[:2], query.shape[2], *x.shape[3:]) for x in made]
                out, lse = (x.new_empty(s) for x, s in zip(made, shapes, strict=True))
            out[:, :, part], lse[:, :, part] = made
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> Any:
        query, *tensors = ctx.saved_tensors
        needs_query, *needs = ctx.needs_input_grad[3:]
        dquery = torch.zeros_like(query) if needs_query else None
        sums = [_zeros(x) if need else None for x, need in zip(tensors, needs, strict=True)]
        with torch.random.fork_rng(devices=[], enabled=ctx.random is not None):
            if ctx.random is not None:
                torch.set_rng_state(ctx.random)
            for part in _blocks(query, ctx.rows):
                q = query[:, :, part].detach().requires_grad_(needs_query)
                leaves = [
                    x.detach().requires_grad_(need) for x, need in zip(tensors, needs, strict=True)
                ]
                with torch.enable_grad():
                    made = ctx.attend(part, q, *leaves)
                wanted = [x for x in (q, *leaves) if x.requires_grad]
                seeds = (dout[:, :, part], dlse[:, :, part])
                found = iter(torch.autograd.grad(made, wanted, seeds, allow_unused=True))
                if needs_query:
                    dquery[:, :, part] = next(found)
                for total in sums:
                    gradient = None if total is None else next(found)
                    if gradient is not None:
                        total += gradient
        cast = [
            None if total is None else total.to(x.dtype)
            for total, x in zip(sums, tensors, strict=True)
        ]
        return None, None, None, dquery, *cast


def _zeros(x: Tensor) -> Tensor:
    """Where gradients of blocks are added up: in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.zeros(x.shape, dtype=wide, device=x.device)


def _blocks(query: Tensor, rows: int) -> list[slice]:
    length = query.shape[2]
    return [slice(n, min(n + rows, length)) for n in range(0, max(length, 1), rows)]


def _of_queries(part: slice, position: Any) -> Any:
    """A part of a position whose inputs of queries are those of a slice."""
    if not isinstance(position, Given):
        return position
    values = list(values_of(position))
    for n, (_, axes, _) in enumerate(_core.list_tensors(text_of(position))):
        if "queries" in axes:
            values[n] = values[n].narrow(axes.index("queries"), part.start, part.stop - part.start)
    return with_values(position, values)


def _of_rows(options: dict[str, Any], part: slice, starts: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """The options for the queries of a slice."""
    own = dict(options)
    own["q_offset"], own["k_offset"] = (
        start.reshape(-1) if start.dim() else int(start)
        for start in (starts[0] + part.start, starts[1])
    )
    if own.get("key_range") is not None:
        own["key_range"] = tuple(bound[..., part] for bound in own["key_range"])
    if isinstance(own.get("sinks"), Tensor) and own["sinks"].dim() == 3:
        own["sinks"] = own["sinks"][..., part]
    return own
