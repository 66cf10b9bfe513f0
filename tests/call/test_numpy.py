"""relpos.numpy: the same bits as through torch, for every scheme and option, and without torch."""

import subprocess
import sys

import numpy as np
import pytest
import relpos
import relpos.numpy as rn
import torch

from tests import ROOT
from tests.support.arrays import REFUSED, ArrayCall, X, array, cases_of, same
from tests.support.cases import positions_to_try


@pytest.mark.parametrize("scheme", positions_to_try())
def test_same_bits_as_through_torch(scheme):
    chosen = cases_of(scheme, 24)
    assert chosen
    for number, case in enumerate(chosen):
        made = ArrayCall(case, number)
        q, k, v = made.inputs
        for x in (q, k, v):
            x.flags.writeable = False
        options = {"return_lse": True, "return_softmax": True, **made.options}
        out, lse, softmax = rn.attention(q, k, v, **options)
        same("out", out, made.want["out"])
        same("lse", lse, made.want["lse"])
        found = rn.attention_backward(
            made.dout, q, k, v,
            out=out, softmax=softmax, dlse=made.dlse, wanted=rn.Gradients._fields, **made.options,
        )  # fmt: skip
        made.same_gradients(*found[:4], found.attn_mask)
        for (_, tensor), got in zip(made.given, found.parameters, strict=True):
            assert (got is None) != tensor.is_floating_point()


def test_other_results():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 9, 8).unbind()
    position = relpos.T5Bias(heads=4) + relpos.RoPE(8, layout="half")
    given = {"position": "t5(heads=4)+rope(head_dim=8,layout=half)"}
    given["parameters"] = [array(position.parts[0].relative_attention_bias.weight)]
    sinks = torch.randn(4)
    shared = {"is_causal": True, "softcap": 3.0, "window": (4, 0)}
    out, weights = relpos.attention(
        q, k, v, position=position, sinks=sinks, return_weights=True, **shared
    )
    got = rn.attention(
        *map(array, (q, k, v)), sinks=array(sinks), return_weights=True, **given, **shared
    )
    same("out", got[0], out)
    same("weights", got[1], weights)
    learned = sinks.clone().requires_grad_()
    dout = torch.randn_like(out)
    relpos.attention(q, k, v, position=position, sinks=learned, **shared).backward(dout)
    found = rn.attention_backward(
        array(dout), *map(array, (q, k, v)), sinks=array(sinks), **given, **shared
    )
    same("gradient of sinks", found.sinks, learned.grad)
    halves = [x.bfloat16() for x in (q, k, v)]
    for exact in (False, True):
        same(
            "float32_products",
            rn.attention(*map(array, halves), float32_products=exact),
            relpos.attention(*halves, float32_products=exact),
        )
    same(
        "scores",
        rn.scores(array(q), array(k), **given, **shared),
        relpos.scores(q, k, position=position, **shared),
    )
    mask = relpos.from_mask_mod(lambda b, h, i, j: j <= i, queries=9, keys=9)
    same(
        "tiles",
        rn.attention(*map(array, (q, k, v)), attn_mask=mask, **given),
        relpos.attention(q, k, v, attn_mask=mask, position=position),
    )
    bias, ((cos, sin), of_keys) = rn.dense(
        given["position"], 5, 7, 2, parameters=given["parameters"]
    )
    wanted = position.dense(5, 7, 2)
    same("dense", bias, wanted[0])
    for ours, theirs in zip((cos, sin, *of_keys), (*wanted[1][0], *wanted[1][1]), strict=True):
        same("tables", ours, theirs)
    rotation = relpos.RoPE(8, layout="half")
    turned = rn.rotate(array(q), "rope(head_dim=8,layout=half)", 3)
    same("rotate", turned, rotation.rotate(q, 3))
    back = rn.rotate(turned, "rope(head_dim=8,layout=half)", 3, inverse=True)
    np.testing.assert_allclose(back, array(q), atol=1e-6)


def test_arrays_of_other_libraries_and_layouts():
    x = torch.randn(1, 2, 6, 8)
    plain = rn.attention(*[array(x)] * 3, is_causal=True)
    assert rn.attention(x, x, x, is_causal=True).tobytes() == plain.tobytes()  # DLPack
    shown = memoryview(array(x).copy())
    assert rn.attention(shown, shown, shown, is_causal=True).tobytes() == plain.tobytes()
    odd = np.zeros((1, 2, 6, 8), np.dtype([("a", np.int8), ("x", np.float32)]))
    odd["x"] = array(x)  # strides that are no multiples of four bytes
    held = odd["x"]
    assert rn.attention(held, held, held, is_causal=True).tobytes() == plain.tobytes()


@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
def test_errors_name_the_argument(options, error, words):
    with pytest.raises(error, match=words):
        rn.attention(X, X, X, **options)


def test_errors_of_query_key_and_value():
    for tensors, words in (
        ((X[0], X, X), r"query: expected rank 4, \[B, H, Lq, D\], got \[2, 6, 8\]"),
        ((X, X.astype(np.float64), X), "key: expected float32, as query has, got float64"),
        ((X.astype(">f4"),) * 3, "byte order"),
        ((X.astype(np.int32), X, X), "query: expected float32, float64, bfloat16 or float16"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            rn.attention(*tensors)


def test_without_torch():
    """In a process that cannot import it, nor what comes with it."""
    code = """
import sys
for name in ("torch", "typing_extensions", "ml_dtypes", "jax"):
    sys.modules[name] = None
import relpos, relpos.numpy as rn, numpy as np
x = np.random.default_rng(0).standard_normal((1, 2, 6, 8), np.float32)
table = np.ones((32, 2), np.float32)
of = {"position": "t5(heads=2)", "parameters": [table], "is_causal": True}
out = rn.attention(x, x, x, **of)
found = rn.attention_backward(out, x, x, x, **of)
assert found.parameters[0].shape == (32, 2)
print("computed", len(relpos.schemes()) > 40)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "computed True", done.stderr


def test_the_example_runs():
    command = [sys.executable, ROOT / "examples/numpy/attention.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("out (1, 8, 64, 32) gradient of"), done.stderr
