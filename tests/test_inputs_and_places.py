"""Positions that take tensors by call, and positions that place tokens in an image."""

import pytest
import relpos
import torch
from oracle import gradients, oracle_of, registry
from sample import HEADS, tensors

pytestmark = pytest.mark.usefixtures("one_thread")


def needs(name):
    return pytest.mark.skipif(name not in registry(), reason=f"this build of relpos has no {name}")


forgets, swins = needs("forgetting"), needs("swin")


def log_gates(batch, keys, dtype=torch.float32, times=1.0):
    draw = torch.Generator().manual_seed(7)
    drawn = torch.randn(batch, HEADS, keys, generator=draw, dtype=torch.float64)
    return (-times * drawn.abs()).to(dtype).requires_grad_()


def attend(q, k, v, log_f, **call):
    gate = relpos.ForgettingGate()
    return relpos.attention(q, k, v, position=gate(log_f), is_causal=True, **call)


@forgets
@pytest.mark.parametrize("times", [10.0, 1000.0])
def test_sums_that_fall_far(times):
    """Of 300 gates the last differ by little, however large their sum is."""
    q, k, v, dout = tensors(queries=300, keys=300)
    log_f = log_gates(1, 300, times=times)
    with torch.no_grad():
        log_f[..., 150:] *= 1e-2 / times
    total = log_f.detach().double().cumsum(-1)
    leaves = [x.requires_grad_() for x in (q, k, v, log_f)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    bias = wide[3].cumsum(-1)
    scores = wide[0] @ wide[1].mT * q.shape[-1] ** -0.5 + bias[..., :, None] - bias[..., None, :]
    scores = scores.masked_fill(torch.ones(300, 300).triu(1).bool(), -torch.inf)
    expected = scores.softmax(-1) @ wide[2]
    out, lse = attend(*leaves, return_lse=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    rounding = float(total.abs().max()) * 2.0**-23
    close = {"rtol": 1e-6, "atol": 1e-5 + rounding}
    torch.testing.assert_close(lse.double() + total, scores.logsumexp(-1), **close)
    found = gradients([out], [dout], leaves)
    for got, want in zip(found, gradients([expected], [dout.double()], wide), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


@forgets
def test_a_decode_row_equals_the_prefill_row():
    q, k, v, _ = tensors(batch=2, queries=90, keys=90, dtype=torch.float64)
    log_f = log_gates(2, 90, torch.float64)
    whole = attend(q, k, v, log_f)
    for at in (0, 1, 63, 64, 89):
        seen = slice(0, at + 1)
        row = [q[:, :, at : at + 1], k[:, :, seen], v[:, :, seen], log_f[..., seen]]
        alone = attend(*row, q_offset=at)
        torch.testing.assert_close(alone, whole[:, :, at : at + 1], rtol=1e-12, atol=1e-12)


@forgets
def test_a_batch_row_does_not_depend_on_the_batch_and_strides_do_not_matter():
    q, k, v, dout = tensors(batch=3, queries=70, keys=70)
    log_f = log_gates(3, 70)
    leaves = [x.requires_grad_() for x in (q, k, v, log_f)]
    found = gradients([attend(*leaves)], [dout], leaves)
    for b in range(3):
        own = [x.detach()[b : b + 1] for x in leaves]
        own[3] = own[3].mT.contiguous().mT
        own = [x.requires_grad_() for x in own]
        alone = gradients([attend(*own)], [dout[b : b + 1]], own)
        for got, want in zip(alone, found, strict=True):
            assert torch.equal(got, want[b : b + 1])


@forgets
def test_nan_reaches_the_rows_that_see_its_sums():
    q, k, v, _ = tensors(batch=2, queries=80, keys=80)
    log_f = log_gates(2, 80).detach()
    clean = attend(q, k, v, log_f)
    log_f[1, 2, 66] = torch.nan
    out = attend(q, k, v, log_f)
    assert out[1, 2, 66:].isnan().all()
    out[1, 2, 66:] = clean[1, 2, 66:]
    torch.testing.assert_close(out, clean)


@forgets
def test_wrong_inputs_are_refused_by_name():
    gate = relpos.ForgettingGate()
    q, k, v, _ = tensors(queries=5, keys=5)
    log_f = log_gates(1, 5)
    for wrong in (log_f[..., 1:], log_f[:, 1:], log_f[0], log_f.long(), [[0.0]]):
        with pytest.raises((TypeError, ValueError), match="log_f"):
            relpos.attention(q, k, v, position=gate(wrong))
    with pytest.raises((TypeError, ValueError), match="log_f"):
        relpos.attention(q, k, v, position=gate)
    with pytest.raises(ValueError, match="log_f"):
        gate()


@forgets
def test_a_module_takes_the_inputs_of_a_call():
    layer = relpos.nn.MultiheadAttention(24, HEADS, bias=False, position=relpos.ForgettingGate())
    x = torch.randn(9, 2, 24)
    log_f = log_gates(2, 9)
    out, _ = layer(x, x, x, position=layer.position(log_f), is_causal=True)
    q, k, v = layer.in_proj_weight.chunk(3)
    q, k, v = ((x @ w.T).unflatten(2, (HEADS, -1)).permute(1, 2, 0, 3) for w in (q, k, v))
    heads = attend(q, k, v, log_f)
    expected = heads.permute(2, 0, 1, 3).flatten(2) @ layer.out_proj.weight.T
    torch.testing.assert_close(out, expected)
    with pytest.raises((TypeError, ValueError), match="log_f"):
        layer(x, x, x, is_causal=True)
    nested = torch.nested.nested_tensor([x[0], x[1]])
    with pytest.raises(ValueError, match="position"):
        layer(nested, nested, nested, position=layer.position(log_f))


@swins
@pytest.mark.parametrize("window", [[4, 5], [5, 4], 4])
def test_placed_tokens_stand_at_explicit_positions(window):
    module = relpos.SwinBias(HEADS, window)
    torch.nn.init.normal_(module.relative_position_bias_table)
    q, k, v, _ = tensors(batch=2, queries=20, keys=20)
    ids = oracle_of("swin").place({"window": window}, torch.arange(-7, 20))
    for first in (-7, 0):
        at = ids[first + 7 : first + 27]
        placed = relpos.attention(q, k, v, position=module, q_offset=first, k_offset=first)
        given = relpos.attention(q, k, v, position=module, q_positions=at, k_positions=at)
        assert torch.equal(placed, given)


@swins
def test_parts_share_one_place():
    q, k, v, _ = tensors(queries=12, keys=12)
    one, same, other = (relpos.SwinBias(HEADS, w) for w in ([3, 4], [3, 4], [4, 3]))
    relpos.attention(q, k, v, position=one + same + relpos.ALiBi(HEADS))
    with pytest.raises(ValueError, match="swin"):
        relpos.attention(q, k, v, position=one + other)
    ids = torch.arange(12)
    relpos.attention(q, k, v, position=one + other, q_positions=ids, k_positions=ids)
