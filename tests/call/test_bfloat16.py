"""Calls in bfloat16 where a unit multiplies: docs/accuracy.md's promise about them.

The units' emulations are forced, each in a process of its own, so that every machine tests both.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.support.cli_tool import TOOL
from tests.support.unit_promise import allowed

UNITS = ["amx_emulated", "avx512_bf16_emulated"]
RESULTS = ("out", "dq", "dk", "dv", "dtable")
IN_FLOAT32 = 12.0  # times the error of SDPA's unfused path, of dq and dk

CASES = [
    ("none", 150, 64, False),
    ("none", 97, 33, True),
    ("t5", 200, 64, False),
    ("t5", 130, 80, True),
    ("alibi", 150, 32, True),
    ("rope", 150, 64, True),
    ("rope", 97, 48, False),
]

COMMON = """
import json, sys, torch, relpos
from torch.nn.functional import pad, scaled_dot_product_attention as sdpa

def errors(got, exact):
    pairs = zip(got, exact, strict=True)
    return [(x.double() - want).pow(2).mean().sqrt().item() for x, want in pairs]

def hiding(length, causal):
    full = torch.full((length, length), -torch.inf)
    return full.triu(1) if causal else torch.zeros_like(full)

torch.manual_seed(0)
found = []
"""
CHILD = """
def turned(x):  # as Hugging Face's Llama does it in the type of x
    length, dim = x.shape[2:]
    frequency = 1e4 ** (-torch.arange(0, dim, 2).double() / dim)
    angle = torch.arange(length).double()[:, None] * frequency
    cos, sin = (f(angle).repeat(1, 2).to(x.dtype) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin

for name, length, dim, causal in json.loads(sys.argv[1]):
    q, k, v = (torch.randn(1, 2, length, dim).bfloat16().requires_grad_() for _ in range(3))
    dout = torch.randn(1, 2, length, dim).bfloat16()
    position = {
        "none": lambda: None,
        "t5": lambda: relpos.T5Bias(2),
        "alibi": lambda: relpos.ALiBi(2),
        "rope": lambda: relpos.RoPE(dim, layout="half"),
    }[name]()
    bias = torch.zeros(1, 2, length, length)
    if name in ("t5", "alibi"):
        bias = position.dense(length, length)[None]
    tables = [*position.parameters()] if name == "t5" else []
    mask = bias.detach() + hiding(length, causal)
    turn = turned if name == "rope" else lambda x: x

    def run(q, k, v, mask):
        leaves = [x.detach().requires_grad_() for x in (q, k, v, mask)]
        out = sdpa(turn(leaves[0]), turn(leaves[1]), *leaves[2:])
        *grads, dmask = torch.autograd.grad(out, leaves, dout.to(out.dtype))
        if tables:
            grads += torch.autograd.grad(bias, tables, dmask.to(bias.dtype), retain_graph=True)
        return [out, *grads]

    exact = run(*(x.double() for x in (q, k, v, mask)))
    theirs = run(q, k, v, mask.bfloat16())
    ours = relpos.attention(q, k, v, position=position, is_causal=causal)
    ours = [ours, *torch.autograd.grad(ours, (q, k, v, *tables), dout)]
    assert all(table.dtype == torch.float32 for table in ours[4:])
    found.append([errors(ours, exact), errors(theirs, exact)])
print(json.dumps({"target": relpos.show_config()["target"], "found": found}))
"""


def process(*command, **environment):
    environment = os.environ | {"OMP_NUM_THREADS": "2", "RELPOS_BF16": ""} | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def ran(code, *arguments, **environment):
    """What a process of its own prints, as JSON."""
    done = process(sys.executable, "-c", code, *map(json.dumps, arguments), **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def of_unit(unit, code, cases):
    """(case, the errors of each result, ours first) of every case, computed by the unit."""
    answer = ran(COMMON + code, cases, RELPOS_TARGET=unit)
    assert answer["target"] == unit
    return zip(cases, answer["found"], strict=True)


@pytest.mark.peers
@pytest.mark.parametrize("unit", UNITS)
def test_errors_are_within_those_of_pytorch(unit):
    for case, errors in of_unit(unit, CHILD, CASES):
        for result, ours, theirs in zip(RESULTS, *errors, strict=False):
            assert ours <= allowed(result) * theirs, (case, result, ours / theirs)


@pytest.mark.parametrize("unit", UNITS)
def test_selftest_passes(unit):
    done = process(TOOL, "selftest", "--case", "11", RELPOS_TARGET=unit)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^target +{unit}$", done.stdout, re.M)


def test_float32_products_on_demand():
    """RELPOS_BF16=float32 computes what a target without a unit computes."""
    code = COMMON + CHILD
    without = ran(code, CASES, RELPOS_TARGET="baseline")["found"]
    asked = ran(code, CASES, RELPOS_TARGET="amx_emulated", RELPOS_BF16="float32")["found"]
    unit = ran(code, CASES, RELPOS_TARGET="amx_emulated")["found"]
    for (plain, _), (exact, _), (rounded, _) in zip(without, asked, unit, strict=True):
        assert exact[:4] == pytest.approx(plain[:4], rel=0.01)  # out, dq, dk, dv
        assert rounded[0] > 1.05 * exact[0]


# (head size, value size, length, causal, standard deviation of scores)
SIZES = [
    (192, 128, 100, False, 1),
    (192, 128, 100, True, 64),
    (64, 32, 150, True, 16),
    (32, 80, 97, False, 64),
    (64, 64, 120, False, 64),
]

OF_SIZES = """
for dim, value_dim, length, causal, size in json.loads(sys.argv[1]):
    q, k = (size**0.5 * torch.randn(1, 2, length, dim) for _ in range(2))
    v, dout = torch.randn(2, 1, 2, length, value_dim).bfloat16()
    q, k = q.bfloat16(), k.bfloat16()

    def run(call, dtype=torch.bfloat16):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = call(*leaves)
        return [out, *torch.autograd.grad(out, leaves, dout.to(dtype))]

    def fused(q, k, v):  # which SDPA calls where head sizes are equal
        widest = max(dim, value_dim)
        q, k, v = (pad(x, (0, widest - x.shape[-1])) for x in (q, k, v))
        return sdpa(q, k, v, is_causal=causal, scale=dim**-0.5)[..., :value_dim]

    def unfused(q, k, v):  # and which where a mask needs a gradient
        return sdpa(q, k, v, attn_mask=hiding(length, causal).to(q.dtype).requires_grad_())

    exact = run(unfused, torch.float64)
    ours = run(lambda *x: relpos.attention(*x, is_causal=causal))
    found.append([errors(got, exact) for got in (ours, run(fused), run(unfused))])
print(json.dumps({"target": relpos.show_config()["target"], "found": found}))
"""


@pytest.mark.peers
@pytest.mark.parametrize("unit", UNITS)
def test_errors_with_values_of_another_size(unit):
    """The fused kernel's bound ours; SDPA has none for such values, and computes in float32."""
    for size, (ours, fused, unfused) in of_unit(unit, OF_SIZES, SIZES):
        for result, own, bound, float32 in zip(RESULTS, ours, fused, unfused, strict=False):
            assert own <= allowed(result) * bound, (size, result, own / bound)
            most = IN_FLOAT32 if result in ("dq", "dk") else allowed(result)
            assert own <= most * float32, (size, result, own / float32)


PRODUCTS = """
import json, torch
import relpos

torch.manual_seed(3)
q, k, v = (torch.randn(1, 4, 70, 32).bfloat16().requires_grad_() for _ in range(3))
position = relpos.Shaw(8, 32)
packed = [x.detach()[0].transpose(0, 1) for x in (q, k, v)]
found = {}
for name, options in {"default": {}, "float32": {"float32_products": True}}.items():
    out, lse = relpos.attention(q, k, v, position=position, return_lse=True, **options)
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v, *position.parameters()))
    whole = torch.tensor([0, 70])
    of_packed = relpos.attention_varlen(*packed, whole, position=position, **options)
    assert torch.equal(of_packed.transpose(0, 1), out[0])
    found[name] = [x.double().flatten().tolist() for x in (out, lse, *grads)]
print(json.dumps(found))
"""


def test_a_call_can_ask_for_float32_products():
    """float32_products=True gives the bits that RELPOS_BF16=float32 gives, forward and backward."""
    unit = ran(PRODUCTS, RELPOS_TARGET="avx512_bf16_emulated")
    every = ran(PRODUCTS, RELPOS_TARGET="avx512_bf16_emulated", RELPOS_BF16="float32")
    assert unit["float32"] == every["default"] == every["float32"]
    for rounded, exact in zip(unit["default"], unit["float32"], strict=True):
        assert rounded != exact


def test_an_unknown_wish_is_refused():
    code = "import relpos; relpos.show_config()"
    done = process(sys.executable, "-c", code, RELPOS_BF16="double")
    assert "RELPOS_BF16: expected float32 or nothing, got double" in done.stderr
