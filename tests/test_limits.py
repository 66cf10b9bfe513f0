"""Sizes past 2^31, interrupts, and life after fork."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import relpos
import torch
from oracle import gradients
from sample import position, tensors

BIG = 2**31


@pytest.fixture
def plane(tmp_path):
    """Zeros of any size that cost memory only where they are touched."""

    def make(count, dtype):
        width = torch.empty((), dtype=dtype).element_size()
        with open(tmp_path / f"plane{len(list(tmp_path.iterdir()))}", "wb") as file:
            file.truncate(count * width)
        flat = np.memmap(file.name, dtype=np.uint8, mode="r+", shape=(count * width,))
        return torch.from_numpy(flat).view(dtype)

    return make


FAR_STRIDES = {
    "batch": lambda b, h, n, d: (BIG + 3, n * d, d, 1),
    "head": lambda b, h, n, d: (n * d, BIG // 2 + 5, d, 1),
    "length": lambda b, h, n, d: (d, 2 * d, BIG // 16, 1),
    "size": lambda b, h, n, d: (h * n, n, 1, BIG // 4 + 1),
}


@pytest.mark.parametrize("axis", FAR_STRIDES)
@pytest.mark.parametrize("name", ["none", "sum"])
def test_strides_past_31_bits(plane, name, axis):
    sizes = {"batch": 2, "queries": 37, "keys": 37}
    module, _ = position(name)
    near = tensors(**sizes)
    far = []
    for x in near:
        strides = FAR_STRIDES[axis](*x.shape)
        count = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
        assert count > BIG
        far.append(plane(count, x.dtype).as_strided(x.shape, strides).copy_(x))

    def run(q, k, v, dout):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out, lse = relpos.attention(*leaves, position=module, is_causal=True, return_lse=True)
        return [out, lse, *gradients([out], [dout], leaves)]

    for got, was in zip(run(*far), run(*near), strict=True):
        torch.testing.assert_close(got, was, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("boundary", ["window", "window and dense mask", "window and padding"])
def test_more_than_31_bits_of_pairs(plane, boundary):
    """A narrow window over Lq * Lk > 2^31: its last rows equal those of a short call."""
    length, tail = 46_400, 500
    assert length**2 > BIG
    sizes = {"heads": 1, "head_dim": 8, "value_dim": 8}
    module, _ = position("t5", **sizes)
    *inputs, dout = tensors(**sizes, queries=length, keys=length)
    call = {"window": (3, 1)}
    short = dict(call)
    if boundary == "window and dense mask":
        mask = plane(length * length, torch.bool).view(length, length)
        for shift in range(-2, 2):
            mask.diagonal(shift).fill_(True)
        call["attn_mask"], short["attn_mask"] = mask, mask[-tail:, -tail:]
    if boundary == "window and padding":
        padding = (torch.arange(length) % 5 == 0)[None]
        call["key_padding_mask"], short["key_padding_mask"] = padding, padding[:, -tail:]

    def run(parts, dout, call):
        leaves = [x.detach().requires_grad_() for x in parts]
        out = relpos.attention(*leaves, position=module, **call)
        return [out.detach(), *gradients([out], [dout], leaves)]

    whole = run(inputs, dout, call)
    part = run([x[:, :, -tail:] for x in inputs], dout[:, :, -tail:], short)
    for got, was in zip(whole, part, strict=True):
        torch.testing.assert_close(got[:, :, 10 - tail :], was[:, :, 10:], rtol=1e-5, atol=1e-6)


def in_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


LONG = """
import signal, threading, time, torch, relpos
q = torch.randn(1, 8, {length}, 64, dtype=torch.{dtype}, requires_grad={grad})
small = torch.randn(1, 2, 70, 8)
before = relpos.attention(small, small, small)
{setup}
sent = []
def interrupt():
    sent.append(time.monotonic())
    signal.raise_signal(signal.SIGINT)
threading.Timer(0.5, interrupt).start()
try:
    {call}
    print("finished")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - sent[0])
assert torch.equal(before, relpos.attention(small, small, small))
"""
FORWARD = {"setup": "", "call": "relpos.attention(q, q, q)", "grad": False}
BACKWARD = {
    "setup": "out = relpos.attention(q, q, q)",
    "call": "out.sum().backward()",
    "grad": True,
}


@pytest.mark.parametrize(
    "long",
    [
        FORWARD | {"length": 60_000, "dtype": "float32"},
        FORWARD | {"length": 20_000, "dtype": "float64"},
        BACKWARD | {"grad": True, "length": 8_000, "dtype": "float32"},
    ],
    ids=["fused forward", "reference", "fused backward"],
)
def test_interrupt_ends_a_long_call(long):
    run = in_process(LONG.format(**long), OMP_NUM_THREADS="2")
    assert run.returncode == 0, run.stderr
    word, *after = run.stdout.split()
    assert word == "interrupted"
    assert float(after[0]) < 2.0


FORKED = """
import os, sys, torch, relpos
q, k, v = (torch.randn(1, 4, 300, 16) for _ in range(3))  # small: torch itself hangs after fork
q.requires_grad_()
def step():
    out = relpos.attention(q, k, v, is_causal=True)
    return out.detach(), torch.autograd.grad(out, q, torch.ones_like(out))[0]
torch.set_num_threads(2)
parent = step()
child = os.fork()
if child == 0:
    same = all(torch.equal(a, b) for a, b in zip(parent, step()))
    said = relpos.show_config()["after fork"]
    os._exit(0 if same and said.startswith("yes") else 7)
_, status = os.waitpid(child, 0)
assert relpos.show_config()["after fork"].startswith("no")
assert all(torch.equal(a, b) for a, b in zip(parent, step()))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_computes_and_says_so():
    run = in_process(FORKED, OMP_NUM_THREADS="2")
    assert run.returncode == 0, run.stderr
