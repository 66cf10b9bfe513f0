"""The promise about errors, as code: exact results and how far from them a call may be.

`promised` computes both in float64 from a call's inputs with dense formulas of plain torch. It
shares nothing with the library: terms come from `oracles/NAME.py`. docs/accuracy.md derives the
bound and says in words what the names below hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.support.oracle import (
    Part,
    by_head,
    oracle_of,
    part_of,
    products,
    row_products,
    sinks_of,
    stacked_terms,
)

ROUNDINGS, CHAIN = 64, 64
SENTENCE = (
    f"Every element of every result is within u |exact| + ({ROUNDINGS} + n/{CHAIN}) eps M of its "
    "exact value, where u is the rounding of the result's type, eps that of float32 (2^-24; 2^-53 "
    "for float64 inputs), n the larger of Lk and Lq H/Hk, and M the sum of the magnitudes that are "
    "added up on the way to the element."
)
FLUSHED = 2.0**-100  # below this share of its row a weight may count as 0


@dataclass
class Bounded:
    """A result as it should be, and the most by which a computed one may differ."""

    exact: torch.Tensor
    bound: torch.Tensor


def eps_of(dtype):
    return 2.0**-53 if dtype == torch.float64 else 2.0**-24


def least_normal(dtype):
    """Of what a call with results of `dtype` computes in: double or float32."""
    return 2.0**-1022 if dtype == torch.float64 else 2.0**-126


def roundings(call):
    """(C + n/chain) eps: what M is multiplied by."""
    heads, key_heads = call.case["heads"]
    longest = max(call.inputs[1].shape[2], call.inputs[0].shape[2] * heads // key_heads)
    return (ROUNDINGS + longest / CHAIN) * eps_of(call.dtype)


def rounding(exact, dtype):
    """Half an ulp of `dtype` at each element."""
    info = torch.finfo(dtype)
    return 0.5 * info.eps * exact.abs().clamp(min=info.smallest_normal)


def stored(exact, bound, dtype):
    """The bound of a result that is rounded to `dtype` at the end."""
    return Bounded(exact, bound + rounding(exact, dtype) + least_normal(dtype))


def sizes(x):
    """Absolute values, never 0, so that what a 0 is multiplied by counts; -inf only hides."""
    return torch.where(x.isfinite(), x.abs(), 0.0).clamp(min=1e-30)


class Side:
    """The formula on one set of leaves: the inputs themselves, or their sizes."""

    def __init__(self, call, sized):
        self.call, self.sized = call, sized

        def leaf(x, take=sizes if sized else torch.clone):
            return take(x.detach().double()).requires_grad_()

        heads, key_heads = call.case["heads"]
        self.leaves = [leaf(x) for x in call.inputs]
        self.q = self.leaves[0]
        self.k, self.v = (x.repeat_interleave(heads // key_heads, 1) for x in self.leaves[1:])
        self.parts = []
        for (name, options), module, given in zip(
            call.chosen, call.modules, call.given, strict=True
        ):
            part = part_of(name, options, module, given)
            form = [torch.clone] if getattr(oracle_of(name), "NONLINEAR", False) else []
            held = {n: leaf(x, *form) for n, x in part.parameters.items()}
            inputs = {n: leaf(x, *form) if x.is_floating_point() else x for n, x in given.items()}
            options = options | {"sizes": eps_of(call.dtype)} if sized else options
            self.parts.append(Part(name, options, held, inputs))
            self.leaves += [held[n] for n, _ in module.named_parameters()]
            self.leaves += [x for x in inputs.values() if x.is_floating_point()]
        self.terms = [stacked_terms(part, call.pos_q, call.pos_k) for part in self.parts]
        self.added = None
        if call.added is not None:
            self.leaves.append(leaf(call.added))
            self.added = torch.where(call.added == -torch.inf, 0.0, self.leaves[-1])
        found = sinks_of(self.terms)
        shape = (*self.q.shape[:3], len(found))
        self.sinks = self.q.new_empty(shape)  # [B, H, Lq, how many]
        if found:
            self.sinks = torch.stack([s.expand(shape[:3]) for s in found], -1)
        self.rows = [by_head(t["value_rows"]) for t in self.terms if "value_rows" in t]

    def biases(self):
        """What positions add to the scores as it stands, one tensor an addend, and whether it is
        linear in the distance and counts from the nearest key on."""
        near = self.call.case.get("softcap") is None
        linear = [near and getattr(oracle_of(part.name), "LINEAR", False) for part in self.parts]
        return [
            (t["bias"].abs() if self.sized else t["bias"], line)
            for t, line in zip(self.terms, linear, strict=True)
            if "bias" in t
        ]

    def score(self):
        """With its softcap, whose slope is at most 1: sizes have none."""
        score, cap = self.products(), self.call.case.get("softcap")
        for bias, _ in self.biases():
            score = score + bias
        if cap is not None and not self.sized:
            score = cap * torch.tanh(score / cap)
        return score if self.added is None else score + self.added

    def products(self):
        """What q and k give to the scores."""
        call, stretch = self.call, 1.0
        turning = [term for term in self.terms if "rotate" in term and self.q.shape[0]]
        if self.sized and turning:  # angles of double are off by 2^-53 of themselves
            names = ("q_coordinates", "k_coordinates")
            at = [call.pos_q, call.pos_k, *(t[n] for t in turning for n in names if n in t)]
            far = max((p.abs().max() for p in at if p.numel()), default=0)
            stretch = 1.0 + float(far) * 2.0**-53 / eps_of(call.dtype)
        return products(
            self.q,
            self.k,
            self.terms,
            call.pos_q,
            call.pos_k,
            abs(call.scale) if self.sized else call.scale,
            "rotate_sizes" if self.sized else "rotate",
            stretch,
        )

    def mixed(self, weights):
        """Weights times values."""
        out = weights @ self.v
        for rows in self.rows:
            out = out + (weights[..., None] * rows).sum(-2)
        return out

    def met(self, dout):
        """<dout_i, v_j + t_ij>."""
        found = dout @ self.v.transpose(-1, -2)
        for rows in self.rows:
            found = found + row_products(dout, rows)
        return found

    def pulled(self, dscore, dsinks, weights, dout):
        """Gradients of the leaves, from those of the scores, of the sinks and of the output."""
        pairs = [(self.score(), dscore), (self.sinks, dsinks), (self.mixed(weights), dout)]
        pairs = [pair for pair in pairs if pair[0].requires_grad]
        outs, seeds = zip(*pairs, strict=True)
        found = torch.autograd.grad(outs, self.leaves, seeds, allow_unused=True)
        return [
            torch.zeros_like(x) if g is None else g for x, g in zip(self.leaves, found, strict=True)
        ]


def growth(error):
    """exp(error) - 1, bounded where the promise has long become empty."""
    return torch.expm1(error.clamp(max=60.0))


class Softmax:
    """Scores and weights of a call, and the sizes S and A of what is added up in a score. Sinks are
    its last columns."""

    def __init__(self, call, signed, sized, c):
        self.call, self.c, self.keys = call, c, call.allowed.shape[-1]
        sinks = signed.sinks.detach()
        score = torch.cat([signed.score().detach(), sinks], -1)
        seen = torch.cat([call.allowed, torch.ones_like(sinks, dtype=torch.bool)], -1)
        self.allowed = seen & (score > -torch.inf)
        self.alive = self.allowed.any(-1, keepdim=True)
        self.score = score.masked_fill(~self.allowed, -torch.inf)
        self.top = self.highest(self.score)
        weights = torch.exp(self.score - self.top).masked_fill(~self.allowed, 0.0)
        total = weights.sum(-1, keepdim=True).clamp(min=1e-300)
        self.weights = weights / total
        self.lse = torch.where(self.alive, self.top + total.log(), -torch.inf)[..., 0]
        self.size(signed, sized)

    def highest(self, x):
        if x.shape[-1] == 0:
            return x.new_zeros(*x.shape[:-1], 1)
        return x.amax(-1, keepdim=True).masked_fill(~self.alive, 0.0)

    def size(self, signed, sized):
        products = sized.products().detach()
        whole, seen, largest = products, products, torch.zeros_like(products)
        biases = list(zip(sized.biases(), signed.biases(), strict=True))
        if sized.added is not None:
            biases.append(((sized.added, False), (signed.added, False)))
        for (size, linear), (bias, _) in biases:
            size, bias = size.detach(), bias.detach()
            whole, largest = whole + size, torch.maximum(largest, size.expand_as(largest))
            seen = seen + ((bias - self.nearest(bias)).abs() if linear else size)
        sinks = sized.sinks.detach()
        whole, seen, largest = (torch.cat([x, sinks], -1) for x in (whole, seen, largest))
        seen = seen + (self.score - self.top).abs()
        self.swallowed = (largest > 2.0**53 * (whole - largest)) & (self.score == self.top)
        if self.call.case.get("softcap") is not None:
            self.swallowed = torch.zeros_like(self.swallowed)
        self.whole = whole.masked_fill(~self.allowed, 0.0)
        self.seen = seen.masked_fill(self.swallowed | ~self.allowed, 0.0)

    def nearest(self, bias):
        """The bias of each row's visible key that is nearest."""
        allowed = self.allowed[..., : self.keys]
        if self.keys == 0:
            return 0.0
        distance = (self.call.pos_k[:, None, :] - self.call.pos_q[:, :, None]).abs()[:, None]
        far = torch.iinfo(torch.int64).max
        at = distance.expand_as(allowed).masked_fill(~allowed, far).argmin(-1, keepdim=True)
        return bias.expand_as(allowed).gather(-1, at)

    def spread(self):
        """R: a weight's error is at most c R times the weight. Looser for float64."""
        if self.call.dtype == torch.float64:
            size = self.whole.masked_fill(self.swallowed, 0.0)
            return 1.0 + size + (self.weights * size).sum(-1, keepdim=True)
        error = growth(self.c * self.seen) / self.c
        shares = self.weights * error
        total = shares.sum(-1, keepdim=True)
        others = (total - shares).clamp(min=0.0) + (1.0 - self.weights).clamp(min=0.0) * error
        return 1.0 + others * torch.exp((self.c * total).clamp(max=60.0))


def promised(call, keep=None):
    """{name: Bounded} of every result of a call; gradients under the names of call.leaves()."""
    c = roundings(call)
    signed, sized = Side(call, False), Side(call, True)
    at = Softmax(call, signed, sized, c)
    kept = 1.0 if keep is None else keep.double() / (1.0 - call.case["dropout"])
    least = least_normal(call.dtype)
    flushed = least if call.dtype == torch.float64 else FLUSHED
    heavy = (at.weights * at.spread() + flushed).masked_fill(~at.allowed, 0.0)  # P R
    weights, sunk = at.weights.split([at.keys, at.weights.shape[-1] - at.keys], -1)
    heavy, heavy_sinks = heavy.split([*(x.shape[-1] for x in (weights, sunk))], -1)
    dropped = weights * kept
    with torch.no_grad():
        out = signed.mixed(dropped)
        out_size = sized.mixed(heavy * kept) + least
        lse_size = 1.0 + (at.weights * (at.whole + growth(c * at.seen) / c)).sum(-1)
        found = {
            "out": stored(out, c * out_size * at.alive, call.dtype),
            "lse": stored(at.lse, c * lse_size, work_type(call.dtype)),
        }
        dout = call.dout.double()
        dlse = torch.zeros_like(at.lse) if call.dlse is None else call.dlse.double()
        given = (dout * out).sum(-1)
        dscore = weights * (kept * signed.met(dout) - (given - dlse)[..., None])
        dsinks = -sunk * (given - dlse)[..., None]
        of_row = ((dout * out).abs().sum(-1) + dlse.abs())[..., None]
        addends = kept * sized.met(dout.abs()) + of_row
        from_out = (dout.abs() * out_size).sum(-1)[..., None]
        allowance = c * (heavy * addends + weights * from_out + least)
        of_sinks = c * (heavy_sinks * of_row + sunk * from_out + least)
        if call.dtype in (torch.bfloat16, torch.float16):  # the output is read as it was stored
            from_stored = (dout.abs() * rounding(out, call.dtype)).sum(-1)[..., None]
            allowance += weights * from_stored
            of_sinks += sunk * from_stored
        allowance = allowance.masked_fill(~at.allowed[..., : at.keys], 0.0)
    grads = signed.pulled(dscore, dsinks, dropped, dout)
    bounds = sized.pulled(allowance, of_sinks, c * (heavy * kept), dout.abs())
    for (name, leaf), exact, bound in zip(call.leaves(), grads, bounds, strict=True):
        if leaf.requires_grad:
            found[f"gradient of {name}"] = stored(exact, bound, leaf.dtype)
    return found, at


def work_type(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def ratios(ours, promise):
    """|error| / bound of each element; infinity where a result is finite and should not be, or is
    not and should. Results too large for their type are no error."""
    exact, bound, got = promise.exact, promise.bound, ours.detach().double()
    error = (got - exact).abs()
    share = torch.where(error == 0.0, 0.0, error / bound).nan_to_num(
        nan=torch.inf, posinf=torch.inf
    )
    special = ~exact.isfinite()
    share = share.masked_fill(special | (exact.abs() + bound > torch.finfo(ours.dtype).max), 0.0)
    return share.masked_fill(special & (got != exact), torch.inf)


def ratio(ours, promise):
    """The largest |error| / bound."""
    if ours.shape != promise.exact.shape:
        return float("inf")
    return float(ratios(ours, promise).max()) if ours.numel() else 0.0


def missed(name, ours, promise):
    """None, or a line that says where a result breaks the promise."""
    worst = ratio(ours, promise)
    if worst <= 1.0:
        return None
    if ours.shape != promise.exact.shape:
        return f"{name}: shape {tuple(ours.shape)}, expected {tuple(promise.exact.shape)}"
    most = ratios(ours, promise).argmax()
    at = [int(n) for n in torch.unravel_index(most, promise.exact.shape)]
    return (
        f"{name}: {worst:.3g} times the bound at {at}, {promise.bound.flatten()[most]:.3g}: "
        f"ours {ours.flatten()[most]:.9g}, exact {promise.exact.flatten()[most]:.9g}"
    )


def promised_scores(call, at):
    """relpos.scores: -inf where a pair is hidden."""
    whole = at.whole[..., : at.keys]
    return stored(at.score[..., : at.keys], roundings(call) * whole, call.dtype)


def promised_weights(call, at, lse, keep):
    """return_weights: exp(score - lse) of the lse that the call returned, after dropout."""
    lse = lse.detach().double()[..., None]
    score, whole, seen = (x[..., : at.keys] for x in (at.score, at.whole, at.allowed))
    exact = torch.exp(score - lse).where(keep & seen, 0.0) / (1.0 - call.case["dropout"])
    error = growth(roundings(call) * (1.0 + whole + lse.abs().clamp(max=1e300))) * exact
    error = error + 4 * least_normal(call.dtype)
    return stored(exact, error, call.dtype)
