"""The promise about calls that a unit for bfloat16 computes (docs/accuracy.md), as code: their
errors, beside those of PyTorch's SDPA in bfloat16."""

import os
from collections import defaultdict

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from tests.support.oracle import part_of, stacked_terms, turned, with_added
from tests.support.promise import ratio

FORWARD, BACKWARD = 2.0, 3.0  # times the error of PyTorch's SDPA in bfloat16
UNITS = ("amx", "avx512_bf16")  # how the names of targets with a unit begin
ROUNDING = 2.0**-8


def applies(target, dtype):
    """Whether a unit computes calls of this type on this target."""
    asked = os.environ.get("RELPOS_BF16") != "float32"
    return asked and target.startswith(UNITS) and dtype == torch.bfloat16


def allowed(name):
    """Times the other code's error, of a result."""
    return BACKWARD if name.startswith(("gradient", "d")) else FORWARD


def rms(x):
    return x.double().pow(2).mean().sqrt().item() if x.numel() else 0.0


def decided(call, at):
    """Whether no rounding of a score to bfloat16 can change a weight by more than a factor e, and
    numbers are not all equal: their roundings may cancel to nothing in one code, not in another."""
    few = not at.whole.numel() or float(at.whole.max()) * ROUNDING < 1.0
    return few and call.case["numbers"] != "constant"


class Kept:
    """Whether results keep the promise: each result of a call that is `decided`, and all results of
    a kind together where calls are not. There an error is a matter of chance in one call: of two
    keys with scores near 17,000, which bfloat16 rounds by 32, either may win."""

    def __init__(self):
        self.squares = defaultdict(list)  # by kind: of each call, ours and theirs

    def share(self, kind, name, ours, theirs, promise, alone):
        """How much of the promise a result needs: more than 1 breaks it. It needs no more than of
        the bound of other calls. `alone`: the call is judged by itself."""
        other = ratio(ours, promise)
        where = promise.exact.isfinite()
        exact, ours, theirs = (x[where].double() for x in (promise.exact, ours, theirs))
        if not theirs.isfinite().all():  # theirs overflowed
            return min(other, 1.0) if ours.isfinite().all() else other
        mine, others = rms(ours - exact), rms(theirs - exact)
        if alone:
            return min(other, mine / (allowed(name) * others) if others else other)
        largest = max((float(x.abs().max()) for x in (exact, ours, theirs) if x.numel()), default=0)
        if largest:
            self.squares[kind].append(((mine / largest) ** 2, (others / largest) ** 2))
        return 0.0

    def together(self, least=100):
        """{kind: how much of the promise} of the calls that are judged together, where there are so
        many of them."""
        sums = {
            kind: [sum(side) for side in zip(*pairs, strict=True)]
            for kind, pairs in self.squares.items()
            if len(pairs) >= least
        }
        return {
            kind: (ours / theirs) ** 0.5 / allowed(kind) if theirs else float(ours > 0)
            for kind, (ours, theirs) in sums.items()
        }


def reference(call, keep=None):
    """{name: tensor} of other code in bfloat16: SDPA's where it has such a call, else those of the
    formula in plain torch."""
    by_sdpa = sdpa(call)
    return call.plain(keep) | (by_sdpa or {})


def sdpa(call):
    """Output and gradients of q, k and v, with all that does not depend on them in its mask; None
    where a call has rows of tables, a softcap, dropout or a gradient of lse, which SDPA lacks."""
    case = call.case
    terms = [
        stacked_terms(part_of(name, options, module, given), call.pos_q, call.pos_k)
        for (name, options), module, given in zip(
            call.chosen, call.modules, call.given, strict=True
        )
    ]
    held = {name for term in terms for name in term}
    lacking = {name for name in held if name.endswith("rows")}
    if lacking or case.get("softcap") or case["dropout"] or call.dlse is not None:
        return None
    heads, key_heads = case["heads"]
    leaves = [x.detach().requires_grad_() for x in call.inputs]
    q = with_added(leaves[0], terms, "query_added")
    k, v = (x.repeat_interleave(heads // key_heads, 1) for x in leaves[1:])
    for term in terms:
        if "rotate" in term and q.shape[0]:
            q, k = turned(q, k, term, call.pos_q, call.pos_k)
    shape = (*q.shape[:3], k.shape[2])
    mask = torch.zeros(shape, dtype=torch.float64)
    for term in terms:
        mask = mask + term.get("bias", 0.0)
    mask = mask if call.added is None else mask + call.added
    mask = mask.masked_fill(~call.allowed, -torch.inf)
    for sink in (term["sink"] for term in terms if "sink" in term):  # a key without a value
        sink = sink if sink.dim() == 3 else sink[..., None]
        mask = torch.cat([mask, sink.double().expand(shape[:3])[..., None]], -1)
        k, v = (pad(x, (0, 0, 0, 1)) for x in (k, v))
    alive = (mask > -torch.inf).any(-1, keepdim=True)
    mask = torch.where(alive, mask, 0.0).detach().bfloat16()
    width = max(q.shape[-1], v.shape[-1])  # SDPA multiplies in bfloat16 where these are equal
    q, k, v = (pad(x.to(call.dtype), (0, width - x.shape[-1])) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale)
    out = out[..., : case["value_dim"]].masked_fill(~alive, 0.0)
    grads = torch.autograd.grad(out, leaves, call.dout)
    names = ("gradient of q", "gradient of k", "gradient of v")
    return {"out": out.detach(), **dict(zip(names, grads, strict=True))}
