"""relpos._call.Call: one list of options for the operators, vmap and the binding."""

import pytest
import relpos
import torch
from relpos import _core
from relpos._base.derivatives import AUTOGRAD, NOBODY, OBSERVERS, OTHERS
from relpos._call import ops
from relpos._call.call import RANKS, SCHEMA, TENSORS, Call
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_operator_takes_the_call_in_its_order():
    for name in ("attention", "attention_backward", "weights", "scores", "scores_backward"):
        arguments = getattr(ops, name)._schema.arguments
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


def test_apart_and_back():
    call = Call(attn_mask=torch.ones(1), scale=2.0, parameters=(torch.zeros(2), torch.zeros(3)))
    options, tensors = call.apart()
    assert options == Call(scale=2.0)
    assert len(tensors) == len(TENSORS) + 2
    assert options.with_tensors(tensors) == call
    assert options.apart() == (options, ())
    assert options.with_tensors(()) is options


def use_torch(exchange):
    types = (torch.Tensor, torch.nn.Parameter)
    _core.use_torch(exchange, types, torch.is_grad_enabled, OBSERVERS)


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
        assert _core.seen_by(query, key, value, Call()) == OTHERS
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
    assert _core.seen_by(x, x, x, Call()) == NOBODY
    for call in (
        Call(attn_mask=torch.zeros(5, 5), window=[1, 1], parameters=(torch.zeros(2),)),
        Call(attn_mask=None, scale=2.0, position="alibi(heads=2)", parameters=[torch.zeros(2)]),
    ):
        assert _core.seen_by(x, x, x, call) == NOBODY
    with torch.no_grad():
        assert _core.seen_by(grad, x, x, Call(attn_mask=grad)) == NOBODY
    for tensors in ((grad, x, x), (x, grad, x), (x, x, grad)):
        assert _core.seen_by(*tensors, Call()) == AUTOGRAD
    assert _core.seen_by(x, x, x, Call(attn_mask=grad)) == AUTOGRAD
    assert _core.seen_by(x, x, x, Call(parameters=(torch.zeros(2), grad))) == AUTOGRAD
    assert _core.seen_by(x, x, x, (None, grad)) == AUTOGRAD
    negated = torch.randn(1, 2, 5, 4, dtype=torch.complex64).conj().imag
    for other in (negated, x.double(), x.long(), x[0], x.to("meta"), x.to_sparse(), None, 3):
        assert _core.seen_by(x, other, x, Call()) == OTHERS
        assert _core.seen_by(grad, other, x, Call()) == OTHERS
    assert _core.seen_by(x, x, x, Call(parameters=(torch.zeros(2), negated))) == OTHERS

    def hidden():
        found = {_core.seen_by(query, x, x, Call()) for query in (x, grad)}
        assert found in ({NOBODY, AUTOGRAD}, {OTHERS})
        return found == {OTHERS}

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
