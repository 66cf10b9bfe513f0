"""relpos.compose: CoPE, and FIRE beyond its threshold, against the formulas over all pairs."""

from functools import partial

import pytest
import relpos
import torch
from relpos import compose

from tests.call.composed import CALLS, DOUBLE, HK, OFFSETS, B, D, H, Scene, drawn, turned
from tests.support.oracle import gradients

pytestmark = pytest.mark.usefixtures("one_thread")


# Rows of their own


def counted(q, k, table, scale, seen):
    """CoPE, row by row and key by key."""
    scores = scale * torch.einsum("bhid,bhjd->bhij", q, k)
    gates = torch.where(seen, scores.sigmoid(), 0.0)
    rows = []
    for j in range(k.shape[2]):
        at = gates[..., j:].sum(-1).clamp(max=len(table) - 1)
        low = at.detach().floor().long().clamp(max=len(table) - 1)
        high = (low + 1).clamp(max=len(table) - 1)
        share = (at - low).unsqueeze(-1)
        rows.append((q * ((1 - share) * table[low] + share * table[high])).sum(-1))
    return scores + torch.stack(rows, -1)


@pytest.mark.parametrize("rows", [None, 1, 4])
@pytest.mark.parametrize("call", OFFSETS)
def test_cope(call, rows):
    scene = Scene(**CALLS[call], kv_heads=HK, padding=True)
    table = torch.randn(4, D, dtype=DOUBLE, requires_grad=True)

    def formula(q, k, v):
        return scene.attended(counted(q, k, table, scene.scale, ~scene.hidden), v)

    scene.agree(partial(compose.cope, table=table, rows=rows), formula, [table])


def test_published_cope():
    x = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=DOUBLE)[None, None]
    v = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=DOUBLE)[None, None]
    table = torch.tensor([[0, 0.1], [0.2, 0], [0.1, 0.3]], dtype=DOUBLE)
    wanted = [[1, 2], [2.331579, 3.331579], [3.356141, 4.356141]]
    found = compose.cope(x, x, v, table=table)
    torch.testing.assert_close(found[0, 0], torch.tensor(wanted, dtype=DOUBLE), rtol=0, atol=6e-7)


def test_cope_keeps_what_padding_hides_out():
    q, k, v, dout = (x.requires_grad_() for x in drawn(6, 6))
    padding = torch.tensor([[False, True, False, False, False, False]] * B)
    table = torch.randn(4, D, dtype=DOUBLE)

    def results(filled):
        keys, values = (
            x.detach().masked_fill(padding[:, None, :, None], filled).requires_grad_()
            for x in (k, v)
        )
        out = compose.cope(q, keys, values, table=table, key_padding_mask=padding)
        return [out.detach(), *gradients([out], [dout], [q, keys, values])]

    for one, other in zip(results(0.0), results(torch.nan), strict=True):
        assert torch.equal(one, other)


FIRE = {"width": 5, "init_c": 0.3, "init_L": 6.0}


def interpolated(module, pos_q, pos_k):
    """FIRE's bias, [B, H, Lq, Lk]."""
    c, reach = module.c.abs(), module.L_multiplier.abs() * FIRE["init_L"]
    first, second = (module.get_submodule(f"mlp.{n}") for n in (0, 2))
    n = (pos_q[:, :, None] - pos_k[:, None, :]).abs().double()
    at = pos_q[:, :, None].double()
    x = (c * n + 1).log() / ((c * torch.where(at > reach, at, reach) + 1).log() + 1e-6)
    hidden = torch.relu(x[..., None] * first.weight[:, 0] + first.bias)
    return (hidden @ second.weight.T + second.bias).permute(0, 3, 1, 2)


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("call", [*OFFSETS, "one query"])
def test_fire_beyond_its_threshold(call, rows):
    scene = Scene(**CALLS[call], kv_heads=HK, is_causal=True)
    module = relpos.FIRE(H, **FIRE).double()
    with torch.no_grad():
        module.L_multiplier.copy_(torch.tensor([-0.9]))
    assert (scene.pos_q > 0.9 * FIRE["init_L"]).any() == (call != "early")
    bias = relpos.ALiBi(H, learned=True).double()
    position = relpos.RoPE(D, layout="half") + module + bias

    def formula(q, k, v):
        scores = scene.scale * turned(q, k, scene.distance)
        scores = scores - bias.slopes[:, None, None] * scene.distance.abs()[:, None]
        return scene.attended(scores + interpolated(module, scene.pos_q, scene.pos_k), v)

    run = partial(compose.fire, position=position, rows=rows)
    scene.agree(run, formula, [*module.parameters(), bias.slopes])


def test_fire_up_to_its_threshold_is_the_fused_call():
    q, k, v, _ = drawn(7, 7, dtype=torch.float32)
    module = relpos.FIRE(H, **FIRE)
    fused = relpos.attention(q, k, v, position=module, is_causal=True)
    assert torch.equal(compose.fire(q, k, v, position=module, is_causal=True), fused)
    with pytest.raises(ValueError, match="beyond it"):
        relpos.attention(q, k, v, position=module, is_causal=True, q_offset=1, k_offset=1)


def test_fire_slices_what_belongs_to_rows():
    rows = torch.arange(12)
    sinks = torch.randn(B, H, 12, dtype=DOUBLE, requires_grad=True)
    options = {"key_range": (rows.sub(3).clamp(min=0), rows + 1), "sinks": sinks}
    scene, module = Scene(12, 12), relpos.FIRE(H, **FIRE).double()

    def formula(q, k, v):
        bias = interpolated(module, scene.pos_q, scene.pos_k)
        return relpos.attention(q, k, v, attn_mask=bias, return_lse=True, **options)

    run = partial(compose.fire, position=module, rows=2, **options)
    scene.agree(run, formula, [*module.parameters(), sinks])


def test_dropout_of_blocks_is_the_same_in_the_backward_pass():
    """The gradient of the sum over values is the dropped weights, of which the output is made."""
    q, k, v, dout = (x.requires_grad_() for x in drawn(8, 8))
    torch.manual_seed(5)
    table = torch.randn(3, D, dtype=DOUBLE)
    out = compose.cope(q, k, v, table=table, dropout_p=0.4, rows=3)
    (dv,) = torch.autograd.grad(out, v, dout)
    torch.testing.assert_close((dv * v).sum(), (out * dout).sum())
