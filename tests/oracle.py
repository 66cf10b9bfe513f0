"""Attention with relative positions as dense formulas in plain torch, independent of relpos.

`attend` computes in the dtype of its tensors: float64 gives the truth, the dtype under test gives
the error of plain torch. What each scheme adds comes from `oracles/NAME.py`, and its docstring says
how to write one.
"""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import relpos
import torch


def registry():
    """Scheme name -> Python class, from the library's own list."""
    return {scheme_name(entry): getattr(relpos, class_name(entry)) for entry in relpos.schemes()}


def scheme_name(entry):
    return entry["name"] if isinstance(entry, dict) else entry.name


def class_name(entry):
    return entry["class_name"] if isinstance(entry, dict) else entry.class_name


def oracle_of(name):
    try:
        return importlib.import_module(f"oracles.{name}")
    except ModuleNotFoundError as error:
        raise LookupError(f"scheme {name}: write its oracle in tests/oracles/{name}.py") from error


@dataclass
class Part:
    """A scheme with constructor options, and its numbers by dotted name."""

    name: str
    options: dict
    parameters: dict = field(default_factory=dict)

    def cast(self, dtype, wants):
        """Leaves of `dtype` that hold the same numbers; `wants` names those that need gradients."""
        copies = {
            name: value.detach().to(dtype).requires_grad_(name in wants)
            for name, value in self.parameters.items()
        }
        return Part(self.name, self.options, copies)

    def terms(self, pos_q, pos_k):
        return oracle_of(self.name).terms(self.options, self.parameters, pos_q, pos_k)


def part_of(name, options, module):
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    return Part(name, options, held)


def positions(batch, queries, keys, q_offset=0, k_offset=0, q_positions=None, k_positions=None):
    """int64 [B, Lq] and [B, Lk] by the rules of the public call."""
    if q_positions is not None:
        return q_positions.expand(batch, queries), k_positions.expand(batch, keys)

    def shifted(offset, length):
        start = torch.as_tensor(offset).reshape(-1, 1).expand(batch, 1)
        return start + torch.arange(length)

    return shifted(q_offset, queries), shifted(k_offset, keys)


def allowed_pairs(
    pos_q,
    pos_k,
    *,
    heads,
    is_causal=False,
    window=None,
    key_padding_mask=None,
    key_range=None,
    attn_mask=None,
):
    """bool [B, H, Lq, Lk]: the pairs that every boundary and mask lets through."""
    batch, queries = pos_q.shape
    keys = pos_k.shape[1]
    distance = pos_k[:, None, :] - pos_q[:, :, None]
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if is_causal:
        allowed &= distance <= 0
    if window is not None:
        left, right = window
        if left >= 0:
            allowed &= distance >= -left
        if right >= 0:
            allowed &= distance <= right
    if key_padding_mask is not None:
        allowed &= ~key_padding_mask[:, None, :]
    if key_range is not None:
        low, high = (edge.expand(batch, queries)[:, :, None] for edge in key_range)
        index = torch.arange(keys)
        allowed &= (index >= low) & (index < high)
    allowed = allowed[:, None].expand(batch, heads, queries, keys)
    if attn_mask is not None:
        seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
        allowed = allowed & seen
    return allowed


def stacked_terms(part, pos_q, pos_k):
    """The terms with a batch axis in front, of size 1 where all rows share their positions."""
    shared = bool((pos_q == pos_q[:1]).all() and (pos_k == pos_k[:1]).all())
    rows = range(1) if shared else range(pos_q.shape[0])
    found = [part.terms(pos_q[b], pos_k[b]) for b in rows]
    if not found:
        return {}
    stacked = {
        name: torch.stack([one[name] for one in found]) for name in found[0] if name != "rotate"
    }
    if "rotate" in found[0]:
        stacked["rotate"] = found[0]["rotate"]
    return stacked


def by_head(rows):
    """[B, Lq, Lk, D] of a shared table gets a head axis of size 1."""
    return rows[:, None] if rows.dim() == 4 else rows


def turned(x, rotate, position):
    return torch.stack([rotate(x[b], position[b]) for b in range(x.shape[0])])


class Way(NamedTuple):
    """A way in which plain torch may compute the formula, with roundings of its own."""

    scaled: str = "products"  # what takes the scale; "both": halves of it, as SDPA's math path
    backwards: bool = False  # dot products from the last dimension to the first
    unit: float = 1.0  # scores in units of 1 / unit: log2(e) for softmax in base 2


ON_Q_AND_K = {
    "products": lambda scale: (1.0, 1.0),
    "q": lambda scale: (scale, 1.0),
    "k": lambda scale: (1.0, scale),
    "both": lambda scale: (math.sqrt(scale), math.sqrt(scale)),
}
LOG2_E = math.log2(math.e)
WAYS = [Way(*way) for way in itertools.product(ON_Q_AND_K, (False, True), (1.0, LOG2_E))]


def scores(q, k, terms, pos_q, pos_k, scale, way=WAYS[0]):
    """[B, H, Lq, Lk] before masks, times way.unit; k has as many heads as q."""
    on_q, on_k = ON_Q_AND_K[way.scaled](scale * way.unit)
    q, k, scale = q * on_q, k * on_k, scale * way.unit / (on_q * on_k)
    q_turned, k_turned = q, k
    for term in terms:
        if "rotate" in term and q.shape[0]:
            q_turned = turned(q_turned, term["rotate"], pos_q)
            k_turned = turned(k_turned, term["rotate"], pos_k)
    if way.backwards:
        q_turned, k_turned = q_turned.flip(-1), k_turned.flip(-1)
    score = q_turned @ k_turned.transpose(-1, -2)
    for term in terms:
        if "key_rows" in term:
            score = score + (q[:, :, :, None, :] * on_k * by_head(term["key_rows"])).sum(-1)
        if "column_rows" in term:
            score = score + (k[:, :, None, :, :] * on_q * by_head(term["column_rows"])).sum(-1)
    score = scale * score
    for term in terms:
        if "bias" in term:
            score = score + way.unit * term["bias"]
    return score


def softmax(score, unit):
    """(weights, lse) over the last axis of scores in units of 1 / unit; lse in natural units."""
    if score.shape[-1] == 0:
        return score, score.new_zeros(score.shape[:-1])
    if unit == 1.0:
        return torch.softmax(score, dim=-1), torch.logsumexp(score, dim=-1)
    top = score.detach().amax(dim=-1, keepdim=True)
    weights = torch.exp2(score - top)
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total, (top + torch.log2(total))[..., 0] / unit


def weights_of(score, lse, unit):
    """exp(score - lse) of scores in units of 1 / unit; the difference is rounded once."""
    wide = score.double() - unit * lse.double()[..., None]
    return torch.exp(wide.to(score.dtype)) if unit == 1.0 else torch.exp2(wide.to(score.dtype))


@dataclass
class Attended:
    out: torch.Tensor
    lse: torch.Tensor
    score: torch.Tensor  # -inf where hidden, in units of 1 / way.unit
    way: Way
    weights: torch.Tensor  # after dropout
    values: list  # value rows of the terms, [B | 1, H | 1, Lq, Lk, Dv]


class FromLse(torch.autograd.Function):
    """(out, lse, weights) of masked scores, with the backward that linear memory allows: P from the
    stored lse, and D = dO.O in place of sum_j P dP. Its rounding is what the dtype can give."""

    @staticmethod
    def forward(ctx, score, unit, lse, allowed, kept, v, *values):
        weights = weights_of(score, lse, unit).masked_fill(~allowed, 0.0)
        ctx.unit = unit
        out = mix(weights * kept, v, values)
        ctx.save_for_backward(weights, kept, v, out, *values)
        return out, lse, weights * kept

    @staticmethod
    def backward(ctx, dout, dlse, _):
        weights, kept, v, out, *values = ctx.saved_tensors
        dweights = dout @ v.transpose(-1, -2)
        for rows in values:
            dweights = dweights + (dout[..., None, :] * rows).sum(-1)
        mean = (dout * out).sum(-1, keepdim=True) - dlse[..., None]
        dscore = weights * (dweights * kept - mean) / ctx.unit
        dropped = weights * kept
        dv = dropped.transpose(-1, -2) @ dout
        drows = [(dropped[..., None] * dout[..., None, :]).sum_to_size(r.shape) for r in values]
        return dscore, None, None, None, None, dv, *drows


def mix(weights, v, values):
    out = weights @ v
    for rows in values:
        out = out + (weights[..., None] * rows).sum(-2)
    return out


def attend(
    q,
    k,
    v,
    parts,
    pos_q,
    pos_k,
    allowed,
    *,
    scale,
    added=None,
    keep=None,
    dropout_p=0.0,
    from_lse=False,
    way=WAYS[0],
):
    """The formula. `added` is a float mask [.., Lq, Lk]; `keep` bool [B, H, Lq, Lk] is the dropout.

    A row with no allowed key gives output 0, lse -inf and no gradient. The gradients are those of
    the plain softmax, or those of FromLse; `way` is one of WAYS.
    """
    groups = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    terms = [stacked_terms(part, pos_q, pos_k) for part in parts]
    alive = allowed.any(dim=-1, keepdim=True)
    score = scores(q, k, terms, pos_q, pos_k, scale, way)
    if added is not None:
        score = score + way.unit * added.masked_fill(added == -torch.inf, 0.0)
    score = torch.where(alive, score.masked_fill(~allowed, -torch.inf), 0.0)
    weights, lse = softmax(score, way.unit)
    kept = torch.ones_like(score) if keep is None else keep.to(score.dtype) / (1.0 - dropout_p)
    values = [by_head(term["value_rows"]) for term in terms if "value_rows" in term]
    if way.backwards:
        v, values = v.flip(-1), [rows.flip(-1) for rows in values]
    if from_lse:
        stored = (score, way.unit, lse.detach(), allowed, kept, v, *values)
        out, lse, weights = FromLse.apply(*stored)
    else:
        weights = weights * alive * kept
        out = mix(weights, v, values)
    if way.backwards:
        out, values = out.flip(-1), [rows.flip(-1) for rows in values]
    lse = torch.where(alive[..., 0], lse, torch.full_like(lse, -torch.inf))
    score = score.masked_fill(~allowed, -torch.inf)
    return Attended(out, lse, score, way, weights, values)


def spread(attended, v, dout, dlse, groups):
    """[B, H, Lq, Lk]: the sizes of the addends of dS = P (dP - D + dlse), before they cancel."""
    v = v.repeat_interleave(groups, dim=1).abs()
    weights = attended.weights.abs()
    reach = dout.abs() @ v.transpose(-1, -2)
    for rows in attended.values:
        reach = reach + (dout.abs()[:, :, :, None, :] * rows.abs()).sum(-1)
    row = (dout * attended.out).abs().sum(-1) + (0 if dlse is None else dlse.abs())
    return (weights * (reach + row[..., None])).detach()


def gradients(outputs, seeds, leaves):
    """Gradients of each leaf; zeros for a leaf that plays no part."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    pairs = [(out, seed) for out, seed in zip(outputs, seeds, strict=True) if seed is not None]
    pairs = [(out, seed) for out, seed in pairs if out.requires_grad]
    if not wanted or not pairs:
        return [torch.zeros_like(leaf) if leaf.requires_grad else None for leaf in leaves]
    outs, seeds = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outs, wanted, seeds, allow_unused=True))
    got = [next(found) if leaf.requires_grad else None for leaf in leaves]
    return [
        torch.zeros_like(leaf) if leaf.requires_grad and grad is None else grad
        for leaf, grad in zip(leaves, got, strict=True)
    ]
