"""relpos._call.Call: one list of options for the operators, vmap and the binding; and the inputs
that a position takes by call."""

import dataclasses
import functools

import pytest
import relpos
import torch
from relpos import _autograd, _core, _ops
from relpos._call import RANKS, SCHEMA, Call
from relpos._position import _class_of
from relpos._registry import Scheme
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_operator_takes_the_call_in_its_order():
    for name in ("attention", "attention_backward", "weights", "scores", "scores_backward"):
        arguments = getattr(_ops, name)._schema.arguments
        assert [a.name for a in arguments[-len(Call._fields) :]] == list(Call._fields)
    assert "Tensor? attn_mask" in SCHEMA
    assert "SymInt[]? window" in SCHEMA
    assert "float? scale" in SCHEMA
    assert SCHEMA.endswith("Tensor[] parameters")
    assert RANKS["attn_mask"] == 4
    assert "seed" not in RANKS


def test_the_binding_refuses_fields_that_it_does_not_know():
    try:
        with pytest.raises(ValueError, match="nothing here reads its field softness"):
            _core.read_fields([*Call._fields, "softness"])
        count = len(Call._fields)
        with pytest.raises(ValueError, match=f"expected {count} fields, got {count - 1}"):
            _core.read_fields(Call._fields[1:])
        _core.read_fields(Call._fields[::-1])  # any order, as long as both sides agree
        x = torch.randn(1, 1, 3, 4)
        out = torch.empty_like(x)
        call = Call(is_causal=True, scale=0.5, window=[1, -1])
        _core.attention(x, x, x, call[::-1], out, None, None)
    finally:
        _core.read_fields(Call._fields)
    want = relpos.attention(x, x, x, is_causal=True, scale=0.5, window=(1, -1))
    assert torch.equal(out, want)


def test_flat_and_back():
    call = Call(attn_mask=torch.ones(1), scale=2.0, parameters=(torch.zeros(2), torch.zeros(3)))
    assert Call.unflat(call.flat()) == call
    assert call.without_tensors() == Call(scale=2.0)
    assert call.without_tensors().with_tensors(call.tensors()) == call


def use_torch(exchange):
    types = (torch.Tensor, torch.nn.Parameter)
    _core.use_torch(exchange, types, torch.is_grad_enabled, _autograd._OBSERVERS)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_tensors_are_read_alike_without_the_exchange_api(dtype):
    """PyTorch before 2.10 has none."""
    wide = torch.randn(2, 7, 3, 9, dtype=dtype)
    query, key, value = (wide[..., n : n + 4].transpose(1, 2) for n in (0, 2, 5))
    mask = torch.rand(7, 7) < 0.7
    offset = torch.tensor([3, 0], dtype=torch.int32)

    def run():
        return relpos.attention(
            *(query, key, value[:, :, :, ::2]),
            position=relpos.ALiBi(3),
            attn_mask=mask,
            q_offset=offset,
            key_range=(torch.tensor([0, 1]).repeat(4)[:7], torch.tensor(9).expand(7)),
            return_lse=True,
        )

    want = run()
    try:
        use_torch(None)
        assert not _core.unobserved(query, key, value, Call())
        got = run()
    finally:
        use_torch(getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="PyTorch shows no memory"
)
def test_what_is_observed_goes_through_the_dispatcher():
    x = torch.randn(1, 2, 5, 4)
    grad = x.clone().requires_grad_()
    assert _core.unobserved(x, x, x, Call())
    for call in (
        Call(attn_mask=torch.zeros(5, 5), window=[1, 1], parameters=(torch.zeros(2),)),
        Call(attn_mask=None, scale=2.0, position="alibi(heads=2)", parameters=[torch.zeros(2)]),
    ):
        assert _core.unobserved(x, x, x, call)
    with torch.no_grad():
        assert _core.unobserved(grad, x, x, Call(attn_mask=grad))
    negated = torch.randn(1, 2, 5, 4, dtype=torch.complex64).conj().imag
    for other in (grad, negated, x.double(), x.long(), x[0], x.to("meta"), x.to_sparse(), None, 3):
        assert not _core.unobserved(x, other, x, Call())
    assert not _core.unobserved(x, x, x, Call(attn_mask=grad))
    assert not _core.unobserved(x, x, x, Call(parameters=(torch.zeros(2), negated)))

    def hidden():
        return not _core.unobserved(x, x, x, Call())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hidden()
    with torch.device("cpu"):  # a mode of functions
        assert hidden()
    with torch.profiler.profile():
        assert hidden()
    with torch.autograd.forward_ad.dual_level():
        assert hidden()
    with FlopCounterMode(display=False):
        assert hidden()
    seen = []
    torch.vmap(lambda y: (seen.append(hidden()), y)[1])(x)
    assert seen == [True]
    assert not hidden()


# Inputs of a call. A stand-in: ALiBi whose slopes are given with each call.


class SlopesByCall(Scheme):
    def describe(self, **options):
        found = super().describe(**options)
        (slopes,) = found.parameters
        spec = dataclasses.replace(slopes, shape=("heads",), trainable=False, input=True)
        return dataclasses.replace(found, parameters=(spec,))


@functools.cache
def by_call():
    (alibi,) = (scheme for scheme in relpos.schemes() if scheme.name == "alibi")
    values = {f.name: getattr(alibi, f.name) for f in dataclasses.fields(alibi)}
    return _class_of(SlopesByCall(**values))


@pytest.fixture
def position():
    return by_call()(2, symmetric=False)


@pytest.fixture
def slopes():
    return torch.tensor([0.3, 0.7], requires_grad=True)


def own(slopes):
    """The same with slopes of the module."""
    position = relpos.ALiBi(2, symmetric=False, learned=True)
    with torch.no_grad():
        position.slopes.copy_(slopes)
    return position


def test_a_position_takes_its_inputs_by_call(position, slopes):
    assert not list(position.parameters())
    assert not list(position.buffers())
    x = torch.randn(1, 2, 5, 4, requires_grad=True)
    twin = own(slopes)
    want = relpos.attention(x, x, x, position=twin)
    want.square().sum().backward()
    for given in (position(slopes), position(slopes=slopes)):
        slopes.grad = None
        out = relpos.attention(x, x, x, position=given)
        out.square().sum().backward()
        assert torch.equal(out, want)
        assert torch.equal(slopes.grad, twin.slopes.grad)
    assert torch.equal(position(slopes).dense(5, 5), twin.dense(5, 5))
    assert torch.equal(position(slopes).indices(5, 5), twin.indices(5, 5))
    assert "input slopes [heads], of each call" in position.describe()
    assert "position(slopes)" in type(position).__doc__


def test_inputs_in_sums(position, slopes):
    x = torch.randn(1, 2, 5, 4)
    table = relpos.BiasRPE(2, 3)
    torch.nn.init.normal_(table.biases)
    given, rope = position(slopes), relpos.RoPE(4, layout="half")
    want = relpos.attention(x, x, x, position=[rope, own(slopes), table])
    both = rope + position + table
    assert isinstance(both, relpos.Sum)
    sums = (rope + given + table, sum([rope, given, table]), [rope, [given, table]], both(slopes))
    for each in sums:
        assert torch.equal(relpos.attention(x, x, x, position=each), want)
    assert torch.equal((given + table).dense(5, 5)[1], table.dense(5, 5))
    assert torch.equal((table + given).dense(5, 5)[1], given.dense(5, 5))
    with pytest.raises(TypeError):
        given + 1


def test_inputs_under_transforms(position, slopes):
    x = torch.randn(3, 1, 2, 5, 4)

    def run(x, slopes):
        return relpos.attention(x, x, x, position=position(slopes), is_causal=True)

    want = [run(row, slopes) for row in x]
    mapped = torch.vmap(run, in_dims=(0, None))(x, slopes)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for row, out, expected in zip(x, mapped, want, strict=True):
        assert torch.equal(out, expected)
        got = compiled(row, slopes)
        assert torch.equal(got, expected)
        (gradient,) = torch.autograd.grad(got.square().sum(), slopes)
        found = torch.func.grad(lambda s: run(row, s).square().sum())(slopes.detach())  # noqa: B023
        assert torch.equal(gradient, found)
    each = torch.stack([slopes.detach(), slopes.detach() * 2])
    for n, out in enumerate(torch.vmap(run, in_dims=(None, 0))(x[0], each)):
        assert torch.equal(out, run(x[0], each[n]))


def test_inputs_that_are_missing_or_too_many(position, slopes):
    x = torch.randn(1, 2, 5, 4)
    table = relpos.BiasRPE(2, 3)
    wanted = r"needs slopes \[heads\] for each call.*position=position\(slopes\)"
    for alone in (position, [table, position], table + position):
        with pytest.raises(ValueError, match=wanted):
            relpos.attention(x, x, x, position=alone)
    with pytest.raises(ValueError, match=wanted):
        position.dense(5, 5)
    for call in (
        lambda: position(),
        lambda: position(slopes, slopes),
        lambda: position(slopes, slopes=slopes),
        lambda: position(gates=slopes),
    ):
        with pytest.raises(ValueError, match=wanted):
            call()
    with pytest.raises(TypeError, match="slopes: expected a tensor, got float"):
        position(0.5)
    with pytest.raises(ValueError, match="BiasRPE: has no inputs of a call"):
        table(slopes)
    with pytest.raises(ValueError, match="expected its inputs slopes, got 0"):
        (table + position)()
    with pytest.raises(ValueError, match="expected its inputs none"):
        (table + table)(slopes)


@pytest.mark.skipif(not hasattr(relpos, "ForgettingGate"), reason="this build has no such scheme")
def test_inputs_with_a_batch_axis_under_vmap():
    position = relpos.ForgettingGate()
    x = torch.randn(3, 2, 2, 5, 4, dtype=torch.float64)
    log_f = torch.nn.functional.logsigmoid(x[..., 0]).requires_grad_()

    def run(x, log_f):
        return relpos.attention(x, x, x, position=position(log_f), is_causal=True)

    def formula(x, log_f):
        mask = -log_f.cumsum(-1)[:, :, None, :]
        return relpos.attention(x, x, x, attn_mask=mask, is_causal=True)

    for dims in ((0, 0), (0, None), (None, 0)):
        args = [each if dim == 0 else each[0] for each, dim in zip((x, log_f), dims, strict=True)]
        got, want = (torch.vmap(f, in_dims=dims)(*args) for f in (run, formula))
        torch.testing.assert_close(got, want)
        found, expected = (torch.autograd.grad(y.square().sum(), log_f)[0] for y in (got, want))
        torch.testing.assert_close(found, expected)
