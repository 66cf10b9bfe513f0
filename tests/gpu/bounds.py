"""The promise about errors on the GPU: that of the CPU, and in 16 bits what the products round
besides.

Products of 16-bit numbers are exact and summed in float32, but the weights and the gradients of the
scores are rounded to 16 bits before they are multiplied, as in every fused kernel. With u half an
ulp of the type relative to a number, and least its smallest number's half, these errors join:

  weights        u w + least, since they are at most about 1, before the sum divides them and after
  out            e = sum_j (u w + least) |v_j|
  row's sum      <|dout|, e>, since out is read as it was stored
  scores' grad.  w <|dout|, e>; it is rounded for the products with keys and queries, by u of itself
                 and least, and not for the gradients of tables
  sinks' grad.   their weight times <|dout|, e>
  dv             sum_i (u w + least) |dout_i|

Where rows turn, or vectors join them, they are rounded before they are multiplied:

  score          s = 2 u |scale| <|R q|, |R k|>
  weights        r = exp(s) / sum_j w exp(-s) - 1 of themselves: u w above is u w (1 + r) + r w
  lse            log sum_j w exp(s)
  scores' grad.  r of itself, and 2 s / c more by the slope of a softcap c; 1 + r times the above
  dq, dk         u of the scores' gradients once more, for the turned rows that these multiply

A weight is what dropout leaves of it, divided by what it keeps.

What is rounded is itself off by what the promise allows and by the above, hence a factor 1 + 2 u.
"""

import torch

from tests.support.promise import Bounded, Side, promised


def bounds(call, keep=None):
    """{name: Bounded} of every result of a call; keep: where dropout keeps a pair."""
    found, at = promised(call, keep)
    if call.dtype not in (torch.bfloat16, torch.float16):
        return found
    info = torch.finfo(call.dtype)
    u, least = info.eps / 2, info.smallest_normal * info.eps
    signed, sized = Side(call, False), Side(call, True)
    seen = at.allowed[..., : at.keys]
    weights, sunk = at.weights[..., : at.keys], at.weights[..., at.keys :]
    kept = 1.0 if keep is None else keep.double() / (1.0 - call.case["dropout"])
    packed = {n for n, term in enumerate(signed.terms) if {"rotate", "query_added"} & term.keys()}
    score = (2 * u * sized.products().detach() if packed else torch.zeros_like(weights)) * seen
    spread = (weights * torch.exp(-score)).sum(-1, keepdim=True) + sunk.sum(-1, keepdim=True)
    off = torch.exp(score) / spread.where(at.alive, 1.0) - 1.0
    off_sunk = 1.0 / spread.where(at.alive, 1.0) - 1.0
    of_lse = ((weights * torch.exp(score)).sum(-1) + sunk.sum(-1)).where(at.alive[..., 0], 1.0)
    of_weights = ((off + u * (1 + off)) * weights * kept + least) * seen
    dout = call.dout.double()
    with torch.no_grad():
        of_out = of_weights @ sized.v
        out = signed.mixed(weights * kept)
        dlse = 0.0 if call.dlse is None else call.dlse.double()
        total = ((dout * out).sum(-1) - dlse)[..., None]
        gradient = weights * (kept * signed.met(dout) - total)
        from_out = (dout.abs() * of_out).sum(-1)[..., None]
        of_gradient = off * gradient.abs() + (1 + off) * weights * from_out
        of_sinks = off_sunk * (sunk * total).abs() + (1 + off_sunk) * sunk * from_out
        if call.case.get("softcap") is not None:
            of_gradient += 2 * score / call.case["softcap"] * gradient.abs()
        roundings = 2 if packed else 1
        of_operand = (of_gradient + roundings * u * gradient.abs() + least) * seen
    of_tables = sized.pulled(of_gradient, of_sinks, of_weights, dout.abs())
    sized = Side(call, True)
    of_products = sized.pulled(of_operand, of_sinks, of_weights, dout.abs())
    more = {"out": of_out, "lse": of_lse.log()}
    turning = {f"part {n}" for n in packed}
    for (name, _), product, table in zip(call.leaves(), of_products, of_tables, strict=True):
        more[f"gradient of {name}"] = (
            product if name in "qkv" or name.rpartition(" ")[0] in turning else table
        )
    return {
        name: Bounded(each.exact, (1 + 2 * u) * (each.bound + more[name]))
        for name, each in found.items()
    }
