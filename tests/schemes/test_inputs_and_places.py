"""Positions that take tensors by call, and positions that place tokens in an image."""

import pytest
import relpos
import torch

from tests.support.oracle import gradients, naive, oracle_of
from tests.support.sample import HEADS, tensors
from tests.support.steps import same_bits, step

pytestmark = pytest.mark.usefixtures("one_thread")


def log_gates(batch, keys, dtype=torch.float32, times=1.0):
    draw = torch.Generator().manual_seed(7)
    drawn = torch.randn(batch, HEADS, keys, generator=draw, dtype=torch.float64)
    return (-times * drawn.abs()).to(dtype).requires_grad_()


def attend(q, k, v, log_f, **call):
    gate = relpos.ForgettingGate()
    return relpos.attention(q, k, v, position=gate(log_f), is_causal=True, **call)


def test_a_position_takes_its_inputs_by_call():
    gate, log_f = relpos.ForgettingGate(), log_gates(1, 8)
    assert not list(gate.parameters())
    assert not list(gate.buffers())
    inputs = tensors()
    by_place, by_name = (
        step(*inputs, given, also=[log_f], is_causal=True)
        for given in (gate(log_f), gate(log_f=log_f))
    )
    same_bits(by_place, by_name)
    sums = log_f[0].cumsum(-1)[:, None]  # the query's own sum is the same for all its keys
    torch.testing.assert_close(gate(log_f).dense(8, 8), -sums.expand(-1, 8, -1))
    assert gate(log_f).indices(8, 8).shape == (8, 8)
    assert "input log_f [batch, heads, keys], of each call" in gate.describe()
    assert "position(log_f)" in type(gate).__doc__


def test_inputs_in_sums():
    q, k, v, _ = tensors()
    gate, log_f = relpos.ForgettingGate(), log_gates(1, 8)
    table, rope = relpos.BiasRPE(HEADS, 3), relpos.RoPE(8, layout="half")
    torch.nn.init.normal_(table.biases)
    given, both = gate(log_f), rope + gate + table
    assert isinstance(both, relpos.Sum)
    sums = (rope + given + table, sum([rope, given, table]), [rope, [given, table]], both(log_f))
    turned = [rope.rotate(x) for x in (q, k)]
    bias = given.dense(8, 8) + table.dense(8, 8)
    future = torch.full((8, 8), -torch.inf).triu(1)
    for each in sums:
        out = relpos.attention(q, k, v, position=each, is_causal=True)
        torch.testing.assert_close(out, naive(*turned, v, bias + future).out)
    assert torch.equal((given + table).dense(8, 8)[1], table.dense(8, 8))
    assert torch.equal((table + given).dense(8, 8)[1], given.dense(8, 8))
    with pytest.raises(TypeError):
        given + 1


def test_inputs_that_are_missing_too_many_or_wrong():
    q, k, v, _ = tensors()
    gate, log_f, table = relpos.ForgettingGate(), log_gates(1, 8), relpos.BiasRPE(HEADS, 3)
    wanted = r"needs log_f \[batch, heads, keys\] for each call.*position=position\(log_f\)"
    for run in (
        *(
            lambda p=p: relpos.attention(q, k, v, position=p)
            for p in (gate, [table, gate], table + gate)
        ),
        lambda: gate.dense(5, 5),
        lambda: gate(),
        lambda: gate(log_f, log_f),
        lambda: gate(log_f, log_f=log_f),
        lambda: gate(gates=log_f),
    ):
        with pytest.raises(ValueError, match=wanted):
            run()
    for wrong in (log_f[..., 1:], log_f[:, 1:], log_f[0], log_f.long(), [[0.0]]):
        with pytest.raises((TypeError, ValueError), match="log_f"):
            relpos.attention(q, k, v, position=gate(wrong))
    with pytest.raises(TypeError, match="log_f: expected a tensor, got float"):
        gate(0.5)
    with pytest.raises(ValueError, match="BiasRPE: has no inputs of a call"):
        table(log_f)
    with pytest.raises(ValueError, match="expected its inputs log_f, got 0"):
        (table + gate)()
    with pytest.raises(ValueError, match="expected its inputs none"):
        (table + table)(log_f)


@pytest.mark.parametrize("times", [10.0, 1000.0])
def test_sums_that_fall_far(times):
    """The last of 300 gates differ by little, however large their sum is."""
    q, k, v, dout = tensors(queries=300, keys=300)
    log_f = log_gates(1, 300, times=times)
    with torch.no_grad():
        log_f[..., 150:] *= 1e-2 / times
    total = log_f.detach().double().cumsum(-1)
    leaves = [x.requires_grad_() for x in (q, k, v, log_f)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    total_by_row = wide[3].cumsum(-1)
    future = torch.full((300, 300), -torch.inf, dtype=torch.float64).triu(1)
    bias = total_by_row[..., :, None] - total_by_row[..., None, :] + future
    expected, exact_lse = naive(*wide[:3], bias)[:2]
    out, lse = attend(*leaves, return_lse=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    rounding = float(total.abs().max()) * 2.0**-23
    close = {"rtol": 1e-6, "atol": 1e-5 + rounding}
    torch.testing.assert_close(lse.double() + total, exact_lse, **close)
    found = [x.double() for x in gradients([out], [dout], leaves)]
    wanted = gradients([expected], [dout.double()], wide)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_batch_row_does_not_depend_on_the_batch_and_strides_do_not_matter():
    inputs, log_f = tensors(batch=3, queries=70, keys=70), log_gates(3, 70)
    gate = relpos.ForgettingGate()
    found = step(*inputs, gate(log_f), also=[log_f], is_causal=True)
    for b in range(3):
        row = slice(b, b + 1)
        own = log_f.detach()[row].mT.contiguous().mT.requires_grad_()
        alone = step(*(x[row] for x in inputs), gate(own), also=[own], is_causal=True)
        same_bits(alone, [x[row] for x in found])


def test_nan_reaches_the_rows_that_see_its_sums():
    q, k, v, _ = tensors(batch=2, queries=80, keys=80)
    log_f = log_gates(2, 80).detach()
    clean = attend(q, k, v, log_f)
    log_f[1, 2, 66] = torch.nan
    out = attend(q, k, v, log_f)
    assert out[1, 2, 66:].isnan().all()
    out[1, 2, 66:] = clean[1, 2, 66:]
    torch.testing.assert_close(out, clean)


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


def test_parts_share_one_place():
    q, k, v, _ = tensors(queries=12, keys=12)
    one, same, other = (relpos.SwinBias(HEADS, w) for w in ([3, 4], [3, 4], [4, 3]))
    relpos.attention(q, k, v, position=one + same + relpos.ALiBi(HEADS))
    with pytest.raises(ValueError, match="swin"):
        relpos.attention(q, k, v, position=one + other)
    ids = torch.arange(12)
    relpos.attention(q, k, v, position=one + other, q_positions=ids, k_positions=ids)
