"""Bits do not depend on the caller's floating-point mode, and the caller keeps it.

torch.set_flush_denormal sets it on the calling thread alone, so that a library that takes it as it
is gives other bits on one thread than on two."""

import pytest
import relpos
import torch
from relpos import _core

from tests.support.steps import same_at_any_thread_count, same_bits, step

TINY = 1e-40  # below the smallest normal float32


@pytest.fixture(params=["fused", "reference"])
def path(request):
    _core.force_path(request.param)
    yield request.param
    _core.force_path("auto")


@pytest.fixture
def mode():
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


def flushes():
    """Whether the calling thread flushes denormals now."""
    return float(torch.tensor([TINY]) * 0.5) == 0.0


def inputs(dtype, scale):
    """Values and gradients of `scale`; ALiBi makes weights of every size down to denormal ones."""
    generator = torch.Generator().manual_seed(5)
    shape = (1, 4, 400, 16)
    q, k, v, dout = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(4))
    return q, k, v * scale, dout


def biases(dtype):
    bias = relpos.T5Bias(4)
    with torch.no_grad():
        bias.relative_attention_bias.weight.fill_(TINY)
    return (relpos.ALiBi(4, symmetric=True, learned=True) + bias).to(dtype)


def results(made, position):
    """Everything that one training step on `made` gives, and the dense forms."""
    dense = [part.dense(50, 50).detach() for part in position.parts]
    return [*step(*made, position), *dense]


@pytest.mark.parametrize("scale", [1.0, TINY], ids=["usual", "denormal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_same_bits_in_either_mode(mode, path, dtype, scale):
    if path == "fused" and dtype == torch.float64:
        pytest.skip("float64 computes on the reference path")

    def in_either():
        found = []
        for flush in (False, True):
            torch.set_flush_denormal(False)
            made, position = inputs(dtype, scale), biases(dtype)  # by torch, in one mode
            torch.set_flush_denormal(flush)
            found.append(results(made, position))
            assert flushes() == flush
        same_bits(*found)
        return found[0]

    same_at_any_thread_count(in_either, (1, 2))


def test_denormal_values_are_kept(path):
    """A result of tiny numbers is as good as any, but for the steps of denormal ones."""
    q, k, v, dout = inputs(torch.float32, 1.0)

    def scaled(v_scale, dout_scale):
        leaves = [x.clone().requires_grad_() for x in (q, k, v * v_scale)]
        out = relpos.attention(*leaves, position=relpos.ALiBi(4))
        found = out, *torch.autograd.grad(out, leaves, dout * dout_scale)
        scales = v_scale, *[v_scale * dout_scale] * 2, dout_scale
        return [x.detach().double() / s for x, s in zip(found, scales, strict=True)]

    want = scaled(1.0, 1.0)
    for tiny in (scaled(TINY, 1.0), scaled(1.0, TINY)):
        for x, y in zip(tiny, want, strict=True):
            assert (x - y).abs().max() < 3e-3 * y.abs().max()  # half of 400 steps


def test_the_mode_is_the_callers_after_an_error(mode):
    x = torch.randn(1, 2, 8, 4)
    for flush in (True, False):
        torch.set_flush_denormal(flush)
        with pytest.raises(ValueError, match="key"):
            relpos.attention(x, x[:, :, :, :2], x)
        assert flushes() == flush
