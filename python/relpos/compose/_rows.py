"""Biases that differ from query to query: CoPE, and FIRE beyond its threshold.

They have no term of the kernels. Their numbers are computed by torch for a block of rows at a time.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import flag, number
from relpos._base.errors import shape_of, wrong_value
from relpos._base.tensors import check_device, check_rank
from relpos._call.attention import attention
from relpos._call.distances import lowered
from relpos._position.classes import CLASSES
from relpos._position.part import text_of, values_of
from relpos._position.sum import Composed, flatten
from relpos.compose._blocks import Places, by_rows, of_rows, position_of_rows
from relpos.compose._calls import check_call, offsets, refuse, refuse_placing


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
    at = Places.after(offsets(query, key, q_offset, k_offset), query, key)

    def bias(q: Tensor, k: Tensor, pos_q: Tensor, pos_k: Tensor, e: Tensor) -> Tensor:
        hidden = (pos_k[..., None, :] > pos_q[..., :, None]).unsqueeze(-3)
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
    return by_rows(query, key, value, bias, [table], at, options, width=width, rows=rows)


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
    others = lowered(query, key, {**options, "position": others})
    starts = offsets(query, key, options.pop("q_offset", None), options.pop("k_offset", 0))
    at = Places.after(starts, query, key)
    reach = float(module.L_multiplier.detach().double().abs()) * module.init_L
    length = query.shape[2]
    last = int(starts[0].max()) if starts[0].numel() else 0
    near = int(min(max(reach - last + 1, 0), length))  # queries up to T in every batch row
    results = []
    if near or not length:
        part = slice(0, near)
        own = of_rows(options, part, at)
        own["position"] = position_of_rows([module, *others], part)
        results.append(attention(query[:, :, part], key, value, **own))
    if near < length:
        beyond = Places.after((starts[0] + near, starts[1]), query[:, :, near:], key)

        def bias(q: Tensor, k: Tensor, pos_q: Tensor, pos_k: Tensor, *parameters: Tensor) -> Tensor:
            del k
            return _interpolated(module.init_L, pos_q, pos_k, q.dtype, *parameters)

        part = slice(near, length)
        rest = of_rows(options, part, at)
        rest["position"] = position_of_rows(others, part)
        per_batch = query.shape[0] if at.q.dim() > 1 or at.k.dim() > 1 else 1
        width = per_batch * key.shape[2] * max(module.width, query.shape[1])
        q, values = query[:, :, near:], values_of(module)
        results.append(by_rows(q, key, value, bias, values, beyond, rest, width=width, rows=rows))
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
