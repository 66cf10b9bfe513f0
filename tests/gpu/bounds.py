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
  dv             sum_i (u w + least) |dout_i|

What is rounded is itself off by what the promise allows and by the above, hence a factor 1 + 2 u.
"""

import torch

from tests.support.promise import Bounded, Side, promised


def bounds(call):
    """{name: Bounded} of every result of a call."""
    found, at = promised(call)
    if call.dtype not in (torch.bfloat16, torch.float16):
        return found
    info = torch.finfo(call.dtype)
    u, least = info.eps / 2, info.smallest_normal * info.eps
    signed, sized = Side(call, False), Side(call, True)
    seen = at.allowed[..., : at.keys]
    weights = at.weights[..., : at.keys]
    of_weights = (u * weights + least) * seen
    dout = call.dout.double()
    with torch.no_grad():
        of_out = of_weights @ sized.v
        met, out = signed.met(dout), signed.mixed(weights)
        dlse = 0.0 if call.dlse is None else call.dlse.double()
        gradient = weights * (met - ((dout * out).sum(-1) - dlse)[..., None])
        of_gradient = weights * (dout.abs() * of_out).sum(-1)[..., None]
        of_operand = (of_gradient + u * gradient.abs() + least) * seen
    none = torch.zeros_like(sized.sinks)
    of_tables = sized.pulled(of_gradient, none, of_weights, dout.abs())
    sized = Side(call, True)
    of_products = sized.pulled(of_operand, none, of_weights, dout.abs())
    more = {"out": of_out, "lse": 0.0}
    for (name, _), product, table in zip(call.leaves(), of_products, of_tables, strict=True):
        more[f"gradient of {name}"] = product if name in "qkv" else table
    return {
        name: Bounded(each.exact, (1 + 2 * u) * (each.bound + more[name]))
        for name, each in found.items()
    }
