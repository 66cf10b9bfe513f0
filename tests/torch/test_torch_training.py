"""Training where nobody observes goes without the dispatcher, and nobody can tell."""

import os
import subprocess
import sys

import pytest
import relpos
import torch
from relpos import _core
from relpos._call import ops
from relpos._call.call import Call
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTH, LONG = 19, 1700  # gradients of LONG lie in kept blocks
OPERATORS = ("attention", "attention_backward")


def tensors(dtype, length=LENGTH):
    sizes = ((4, 8), (2, 8), (2, 11))
    return [torch.randn(2, n, length, d, dtype=dtype).requires_grad_() for n, d in sizes]


def call(name):
    """Options of a call, and their own leaves."""
    position = relpos.T5Bias(4, max_distance=50)
    mask = torch.randn(1, 1, LENGTH, LENGTH).requires_grad_()
    table = list(position.parameters())
    return {
        "plain": ({"is_causal": True}, []),
        "table": ({"position": position}, table),
        "mask": ({"attn_mask": mask, "softcap": 2.0, "window": (3, 4)}, [mask]),
        "fixed mask": ({"attn_mask": mask.detach() > 0, "dropout_p": 0.3}, []),
        "both": ({"position": position, "attn_mask": mask}, [*table, mask]),
    }[name]


def step(inputs, options, leaves, *, return_lse):
    """The output, the lse and all gradients, with the same dropout in every call."""
    torch.manual_seed(3)
    found = relpos.attention(*inputs, enable_gqa=True, return_lse=return_lse, **options)
    out = found if isinstance(found, tuple) else (found,)
    douts = [torch.randn(x.shape, generator=torch.Generator().manual_seed(4)).to(x) for x in out]
    wanted = [x for x in (*inputs, *leaves) if x.requires_grad]
    return [*out, *torch.autograd.grad(out, wanted, douts)]


@pytest.fixture
def operators(monkeypatch):
    """Names of the operators that ran."""
    ran = []

    def counted(name):
        operator = getattr(ops, name)
        return lambda *args: (ran.append(name), operator(*args))[1]

    for name in OPERATORS:
        monkeypatch.setattr(ops, name, counted(name))
    return ran


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("name", ["plain", "table", "mask", "fixed mask", "both"])
def test_a_step_has_the_bits_of_the_operators(operators, name, return_lse, dtype):
    inputs, (options, leaves) = tensors(dtype), call(name)
    got = step(inputs, options, leaves, return_lse=return_lse)
    assert not operators
    with FlopCounterMode(display=False):
        want = step(inputs, options, leaves, return_lse=return_lse)
    assert operators == [*OPERATORS]
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_long_sequences_have_them_too(operators):
    inputs, (options, leaves) = tensors(torch.float32, LONG), call("table")
    assert inputs[0].nbytes > 1 << 18
    got = step(inputs, options, leaves, return_lse=False)
    assert not operators
    with FlopCounterMode(display=False):
        want = step(inputs, options, leaves, return_lse=False)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_only_what_is_trained_gets_a_gradient(operators):
    query, key, value = (x.detach() for x in tensors(torch.float32))
    options, (table,) = call("table")
    out = relpos.attention(query, key, value, enable_gqa=True, **options)
    out.sum().backward()  # a gradient of one number, seen at strides of 0
    assert table.grad.shape == (32, 4)
    assert query.grad is None
    assert not operators
    frozen = relpos.attention(query, key.requires_grad_(), value, enable_gqa=True)
    (dk,) = torch.autograd.grad(frozen.sum(), [key])
    assert dk.shape == key.shape
    assert not operators


def test_a_backward_pass_may_be_observed_alone(operators):
    inputs, (options, leaves) = tensors(torch.float32), call("both")
    out = relpos.attention(*inputs, enable_gqa=True, **options)
    wanted = [*inputs, *leaves]
    want = torch.autograd.grad(out.sum(), wanted, retain_graph=True)
    assert not operators
    with torch.profiler.profile() as profile:
        got = torch.autograd.grad(out.sum(), wanted)
    assert operators == ["attention_backward"]
    assert "relpos::attention_backward" in {event.key for event in profile.key_averages()}
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_second_derivatives_are_refused(operators):
    inputs = tensors(torch.float64)
    out = relpos.attention(*inputs, enable_gqa=True)
    (dq,) = torch.autograd.grad(out.sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        dq.sum().backward()
    # By a gradient of the output that is trained itself.
    seed = torch.randn_like(out).requires_grad_()
    (dq,) = torch.autograd.grad(
        relpos.attention(*inputs, enable_gqa=True), inputs[:1], seed, create_graph=True
    )
    with pytest.raises(RuntimeError, match="second derivatives"):
        dq.sum().backward()


def test_what_the_backward_pass_needs_is_saved_as_autograd_saves_it(operators):
    inputs, (options, leaves) = tensors(torch.float32), call("both")
    want = step(inputs, options, leaves, return_lse=True)
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(tensor)
        return tensor.detach().clone()

    def unpack(tensor):
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        got = step(inputs, options, leaves, return_lse=True)
    assert len(packed) == len(unpacked) == len(inputs) + 2 + len(leaves)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert not operators
    out = relpos.attention(*inputs, enable_gqa=True, **options)
    with torch.no_grad():
        leaves[0].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_needs_are_as_many_as_what_may_need_a_gradient():
    inputs, (options, _) = tensors(torch.float32), call("table")
    query, key, value = (x.detach() for x in inputs)
    of = Call.of("attention", query, key, {"enable_gqa": True, **options})
    out, _, softmax = _core.attend(query, key, value, of, False, True)
    for needs in ([True, True], [True] * 6):
        with pytest.raises(ValueError, match=f"needs: expected 5, got {len(needs)}"):
            _core.attend_backward((query, key, value, out, softmax, out, None), needs, of)


# The binding alone: PyTorch's own Function.apply calls a null pointer where its memory ends.
NTH_FAILS = """
import _testcapi, torch
from relpos import _core
from relpos._call.call import Call
torch.set_num_threads(1)
x, call = torch.randn(2, 4, 64, 32), Call()
def forward():
    return _core.attend(x, x, x, call, True, True)
out, _, softmax = forward()
def backward():
    return _core.attend_backward((x, x, x, out, softmax, x, None), [True, False, True, False], call)
for run in (forward, backward):
    want, failed = run(), 0
    for n in range(40):
        _testcapi.set_nomemory(n, n + 1)
        try:
            run()
        except Exception:
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
        results = [run() for _ in range(3)]
        for got in results:
            assert all(a is b or torch.equal(a, b) for a, b in zip(got, want)), n
    print(failed)
"""


def test_an_allocation_of_python_that_fails_is_an_error():
    pytest.importorskip("_testcapi")
    command, small = [sys.executable, "-c", NTH_FAILS], {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | small, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(int(failed) >= 1 for failed in done.stdout.split())
