"""relpos.jax: the same bits as through torch, for every scheme and option."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import relpos.jax as rj

from tests.support.arrays import ArrayCall, cases_of, same
from tests.support.cases import positions_to_try


def computed(made):
    """(out, lse) and the gradients, of one compiled function."""
    options = dict(made.options)
    parameters, mask = options.pop("parameters"), options.pop("attn_mask", None)
    learned = {n: x for n, x in enumerate(parameters) if np.issubdtype(x.dtype, np.inexact)}
    learned |= {n: x for n, x in enumerate(parameters) if x.dtype.name == "bfloat16"}
    leaves = {"qkv": made.inputs, "parameters": learned}
    if made.call.added is not None:
        leaves["attn_mask"], mask = mask, None

    def of(leaves):
        q, k, v = leaves["qkv"]
        held = [leaves["parameters"].get(n, x) for n, x in enumerate(parameters)]
        given = {"attn_mask": leaves.get("attn_mask", mask), "parameters": held, **options}
        return rj.attention(q, k, v, return_lse=True, **given)

    @jax.jit
    def both(leaves, dout, dlse):
        (out, lse), pull = jax.vjp(of, leaves)
        return out, lse, pull((dout, jnp.zeros_like(lse) if dlse is None else dlse))[0]

    out, lse, gradients = both(leaves, made.dout, made.dlse)
    given = [gradients["parameters"].get(n) for n in range(len(parameters))]
    return out, lse, (*gradients["qkv"], given, gradients.get("attn_mask"))


@pytest.mark.parametrize("scheme", positions_to_try())
def test_same_bits_as_through_torch(scheme):
    chosen = cases_of(scheme, 5)
    assert chosen
    for number, case in enumerate(chosen):
        made = ArrayCall(case | {"strides": "plain"}, number)  # as JAX lays arrays out
        wide = made.inputs[0].dtype == np.float64
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            out, lse, gradients = computed(made)
        same("out", out, made.want["out"])
        same("lse", lse, made.want["lse"])
        made.same_gradients(*gradients)
