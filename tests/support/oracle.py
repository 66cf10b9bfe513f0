"""Attention with relative positions as dense formulas in plain torch, independent of relpos.

`attend` computes in the dtype of its tensors: float64 gives the truth, the dtype under test gives
the error of plain torch. What each scheme adds comes from `oracles/NAME.py`, and its docstring says
how to write one.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import relpos
import torch
from relpos._position.classes import class_of
from relpos._position.registry import term_schemes

_TERMS = {
    scheme.name: class_of(scheme)
    for scheme in term_schemes()
    if importlib.util.find_spec(f"tests.oracles.{scheme.name}")
}


def registry():
    """Scheme name -> Python class, from the library's own list; of the terms that are given with
    the call, those that have an oracle."""
    found = {scheme.name: getattr(relpos, scheme.class_name) for scheme in relpos.schemes()}
    return found | _TERMS


def oracle_of(name):
    try:
        return importlib.import_module(f"tests.oracles.{name}")
    except ModuleNotFoundError as error:
        raise LookupError(f"scheme {name}: write its oracle in tests/oracles/{name}.py") from error


def configs_of(name, heads, head_dim, value_dim, key_heads=None):
    """The configurations of a scheme for calls of these sizes, with as many key heads as heads
    where none are given."""
    oracle = oracle_of(name)
    own = (key_heads or heads,) if hasattr(oracle, "KEY_HEADS") else ()
    return oracle.configs(heads, head_dim, value_dim, *own)


def exclusive(name):
    """What a scheme does to a whole call, of which a sum has at most one: it may rotate, it may
    place tokens, and it may leave a number for each query to the softmax, or be what sees it."""
    found = {"ROTATES": "rotates", "place": "places", "UP_TO_QUERY": "rows", "SINKS": "rows"}
    return {kind for attribute, kind in found.items() if hasattr(oracle_of(name), attribute)}


def places(name, options):
    """Whether tokens stand elsewhere than at their numbers, which may hang on the options."""
    oracle = oracle_of(name)
    return hasattr(oracle, "place") and getattr(oracle, "places", lambda _: True)(options)


def reads_length(name, options):
    """Whether terms depend on the length of the call."""
    return hasattr(oracle_of(name), "READS_LENGTH") and options.get("length") is None


@dataclass
class Part:
    """A scheme with constructor options, its numbers by dotted name, and the inputs of the call,
    of which those of batched_inputs() have a batch axis in front."""

    name: str
    options: dict
    parameters: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)

    def cast(self, dtype, wants):
        """Leaves of `dtype` that hold the same numbers; `wants` names those that need gradients."""

        def copies(held):
            return {
                n: x.detach().to(dtype).requires_grad_(n in wants) if x.is_floating_point() else x
                for n, x in held.items()
            }

        return Part(self.name, self.options, copies(self.parameters), copies(self.inputs))

    def terms(self, pos_q, pos_k, row=0, length=None):
        """The oracle's terms in one batch row of a call of this length."""
        rows = batched_inputs(self.name, self.options, self.inputs)
        held = self.parameters | {n: x[row] if n in rows else x for n, x in self.inputs.items()}
        options = self.options
        if hasattr(oracle_of(self.name), "READS_LENGTH"):
            length = call_length(pos_q, pos_k) if length is None else length
            options = options | {"call_length": length}
        return oracle_of(self.name).terms(options, held, pos_q, pos_k)


def batched_inputs(name, options, inputs):
    """The inputs that have a batch axis in front: all, unless the oracle says which."""
    found = getattr(oracle_of(name), "batched", None)
    return found(options) if found else inputs


def seen_pairs(chosen, given):
    """bool [B or 1, 1, Lq, Lk]: the pairs that no input of a scheme hides; `chosen` and `given` are
    [(name, options)] and the inputs of each."""
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    for (name, options), inputs in zip(chosen, given, strict=True):
        if hasattr(oracle_of(name), "seen"):
            seen = seen & oracle_of(name).seen(options, inputs)[:, None]
    return seen


def call_length(*positions):
    """One more than the last position; 0 where there is none."""
    return max([0, *(int(p.max()) + 1 for p in positions if p.numel())])


def part_of(name, options, module, inputs=None):
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    return Part(name, options, held, inputs or {})


def place_of(chosen):
    """From token numbers and "q" or "k" to positions, as the one of [(name, options)] that places
    them says."""
    for name, options in chosen:
        if places(name, options):
            return partial(placed, oracle_of(name), options)
    return None


def placed(oracle, options, tokens, side):
    of_keys = getattr(oracle, "place_keys", oracle.place)
    return (of_keys if side == "k" else oracle.place)(options, tokens)


def positions(
    batch, queries, keys, q_offset=0, k_offset=0, q_positions=None, k_positions=None, place=None
):
    """int64 [B, Lq] and [B, Lk] by the rules of the public call."""
    if q_positions is not None:
        return q_positions.expand(batch, queries), k_positions.expand(batch, keys)

    def shifted(offset, length, side):
        start = torch.as_tensor(offset).reshape(-1, 1).expand(batch, 1)
        tokens = start + torch.arange(length)
        return place(tokens, side) if place else tokens

    return shifted(q_offset, queries, "q"), shifted(k_offset, keys, "k")


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
    """The terms with a batch axis in front, of size 1 where all rows share them."""
    shared = bool((pos_q == pos_q[:1]).all() and (pos_k == pos_k[:1]).all())
    rows = range(1) if shared and not part.inputs else range(pos_q.shape[0])
    length = call_length(pos_q, pos_k)
    found = [part.terms(pos_q[b], pos_k[b], b, length) for b in rows]
    if not found:
        return {}
    stacked = {}
    for name, first in found[0].items():
        stacked[name] = first if callable(first) else torch.stack([one[name] for one in found])
    return stacked


def by_head(rows):
    """[B, Lq, Lk, D] of a shared table gets a head axis of size 1."""
    return rows[:, None] if rows.dim() == 4 else rows


def with_added(x, terms, name):
    """x [B, H, L, D] plus the vectors [H, D] of that name."""
    for term in terms:
        x = x + term[name][:, :, None, :] if name in term else x
    return x


def turned(q, k, term, pos_q, pos_k, name="rotate"):
    """q and k [B, H, L, D], turned and scaled as the term says."""

    def each(x, at, steps):
        rows = range(x.shape[0])
        x = torch.stack([term[name](x[b], at[b]) for b in rows])
        if "decay" not in term:
            return x
        return x * torch.stack([term["decay"](steps[b])[None] for b in rows]).to(x.dtype)

    middle = pos_q.double().mean(-1, keepdim=True).nan_to_num()
    at_q, at_k = term.get("q_coordinates", pos_q), term.get("k_coordinates", pos_k)
    return each(q, at_q, pos_q - middle), each(k, at_k, middle - pos_k)


def row_products(x, rows):
    """<x_i, rows_ij> as [B, H, Lq, Lk]; rows may be shared by batch rows and heads."""
    return (by_head(rows) @ x[..., None])[..., 0]


def products(q, k, terms, pos_q, pos_k, scale, rotate="rotate", stretch=1.0):
    """What q and k give to the scores, [B, H, Lq, Lk]; k has as many heads as q. `stretch`
    multiplies what is turned."""
    q_turned, k_turned = with_added(q, terms, "query_added"), k
    for term in terms:
        if "rotate" in term and q.shape[0]:
            q_turned, k_turned = turned(q_turned, k_turned, term, pos_q, pos_k, rotate)
    score = stretch * (q_turned @ k_turned.mT)
    for term in terms:
        for rows in ("key_rows", "segment_rows"):
            if rows in term:
                score = score + row_products(with_added(q, [term], f"{rows}_added"), term[rows])
        if "column_rows" in term:
            rows = by_head(term["column_rows"]).transpose(2, 3)
            score = score + row_products(k, rows).transpose(2, 3)
    score = scale * score
    for term in terms:
        if "unscaled_rows" in term:
            score = score + row_products(q, term["unscaled_rows"])
    return score


def sinks_of(terms):
    """[B or 1, H, Lq or 1] of each sink."""
    found = [term["sink"] for term in terms if "sink" in term]
    return [s if s.dim() == 3 else s[..., None] for s in found]


class Attended(NamedTuple):
    out: torch.Tensor
    lse: torch.Tensor
    score: torch.Tensor  # -inf where hidden
    weights: torch.Tensor


def weighed(score, allowed, sinks=()):
    """(weights, lse) of rows of scores; sinks are [B or 1, H, Lq or 1]."""
    alive = allowed.any(dim=-1, keepdim=True)
    score = torch.where(alive, score.masked_fill(~allowed, -torch.inf), 0.0)
    weights, lse = score, score.new_zeros(score.shape[:-1])
    if score.shape[-1]:
        weights, lse = torch.softmax(score, dim=-1), torch.logsumexp(score, dim=-1)
    lse = torch.where(alive[..., 0], lse, torch.full_like(lse, -torch.inf))
    weights = weights * alive
    for sink in sinks:  # everything is less by what the sink takes
        total = torch.logaddexp(lse, sink.expand(lse.shape))
        weights, lse = weights * torch.exp(lse - total)[..., None], total
    return weights, lse


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
    softcap=None,
    added=None,
    keep=None,
    dropout_p=0.0,
):
    """The formula. `added` is a float mask [.., Lq, Lk]; `keep` bool [B, H, Lq, Lk] is the dropout.

    A row with no allowed key gives output 0, lse -inf and no gradient.
    """
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    terms = [stacked_terms(part, pos_q, pos_k) for part in parts]
    score = products(q, k, terms, pos_q, pos_k, scale)
    for term in terms:
        score = score + term.get("bias", 0.0)
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    if added is not None:
        score = score + added.masked_fill(added == -torch.inf, 0.0)
    weights, lse = weighed(score, allowed, sinks_of(terms))
    if keep is not None:
        weights = weights * (keep.to(score.dtype) / (1.0 - dropout_p))
    out = weights @ v
    for rows in (by_head(term["value_rows"]) for term in terms if "value_rows" in term):
        out = out + (weights[..., None] * rows).sum(-2)
    return Attended(out, lse, score.masked_fill(~allowed, -torch.inf), weights)


def formula(inputs, parts, dtype, scale=None, **call):
    """Attended of relpos.attention(*inputs, **call) with these parts, computed in `dtype`."""
    q, k, v = (x.to(dtype) for x in inputs)
    place = {n: call.pop(n) for n in list(call) if "offset" in n or "positions" in n}
    pos_q, pos_k = positions(q.shape[0], q.shape[2], k.shape[2], **place)
    seen = allowed_pairs(pos_q, pos_k, heads=q.shape[1], **call)
    cast = [part.cast(dtype, set()) for part in parts]
    return attend(q, k, v, cast, pos_q, pos_k, seen, scale=scale or q.shape[-1] ** -0.5)


def naive(q, k, v, bias=0.0, *, scale=None, softcap=None, mask=0.0, sinks=None):
    """Attended without positions: a bias within the softcap and a mask outside of it, in both of
    which -inf hides a pair; sinks [H] or [B, H, Lq]."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    score = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    score = score + mask
    by_row = [] if sinks is None else [sinks[None, :, None] if sinks.dim() == 1 else sinks]
    weights, lse = weighed(score, score != -torch.inf, by_row)
    return Attended(weights @ v, lse, score, weights)


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
