"""Sizes past 2^31."""

import numpy as np
import pytest
import relpos
import torch

from tests.support.oracle import gradients
from tests.support.sample import position, tensors

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


def computed(q, k, v, dout, **call):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = relpos.attention(*leaves, return_lse=True, **call)
    return [out.detach(), lse.detach(), *gradients([out], [dout], leaves)]


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

    call = {"position": module, "is_causal": True}
    for got, was in zip(computed(*far, **call), computed(*near, **call), strict=True):
        torch.testing.assert_close(got, was, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("boundary", ["window", "window and dense mask", "window and padding"])
def test_more_than_31_bits_of_pairs(plane, boundary):
    """A narrow window over Lq * Lk > 2^31: its last rows equal those of a short call."""
    length, tail = 46_400, 500
    assert length**2 > BIG
    sizes = {"heads": 1, "head_dim": 8, "value_dim": 8}
    module, _ = position("t5", **sizes)
    *inputs, dout = tensors(**sizes, queries=length, keys=length)
    call = {"position": module, "window": (3, 1)}
    short = dict(call)
    if boundary == "window and dense mask":
        mask = plane(length * length, torch.bool).view(length, length)
        for shift in range(-2, 2):
            mask.diagonal(shift).fill_(True)
        call["attn_mask"], short["attn_mask"] = mask, mask[-tail:, -tail:]
    if boundary == "window and padding":
        padding = (torch.arange(length) % 5 == 0)[None]
        call["key_padding_mask"], short["key_padding_mask"] = padding, padding[:, -tail:]

    whole = computed(*inputs, dout, **call)
    part = computed(*(x[:, :, -tail:] for x in (*inputs, dout)), **short)
    for got, was in zip(whole, part, strict=True):
        torch.testing.assert_close(got[:, :, 10 - tail :], was[:, :, 10:], rtol=1e-5, atol=1e-6)
