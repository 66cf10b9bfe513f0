"""relpos.compose.bias_by_rows: any bias that torch computes, against the formula over all pairs."""

from functools import partial

import pytest
import relpos
import torch
from relpos import compose

from tests.call.composed import (
    CALLS,
    DOUBLE,
    HK,
    B,
    D,
    H,
    Scene,
    drawn,
    softmax_over,
    spread,
    turned,
)
from tests.support.oracle import gradients

pytestmark = pytest.mark.usefixtures("one_thread")


def leaves(*shapes):
    torch.manual_seed(2)
    return [torch.randn(shape, dtype=DOUBLE, requires_grad=True) for shape in shapes]


def quotient(q, k, pos_q, pos_k, slope, gate, of_key):
    """No function of a distance: it divides positions, and reads the query and the key."""
    share = (pos_k[..., None, :] + 7.5) / (pos_q[..., :, None].abs() + 2.0)
    mixed = torch.tanh(q @ gate).unsqueeze(-1) * torch.tanh(spread(k) @ of_key).unsqueeze(-2)
    share = share.unsqueeze(-3) if share.dim() > 2 else share
    return slope[:, None, None] * share.to(q.dtype) + mixed


SAID = {name: call for name, call in CALLS.items() if "softcap" not in call}
SAID["grouped heads, padding, sinks"] = {
    name: x for name, x in CALLS["grouped heads, padding, sinks, softcap"].items()
} | {"softcap": None}
SAID["given positions"] = {
    "queries": 5,
    "keys": 11,
    "q_positions": torch.tensor([[3, 1, 8, 9, 20], [0, 4, 4, 5, 30]]),
    "k_positions": torch.arange(11) * 2 - 3,
}


@pytest.mark.parametrize("rows", [None, 1, 4])
@pytest.mark.parametrize("call", SAID)
def test_a_bias_of_query_key_and_positions(call, rows):
    scene = Scene(**SAID[call], is_causal=True)
    parameters = leaves((H,), (D,), (D,))
    alibi = relpos.ALiBi(H, learned=True).double()
    position = relpos.RoPE(D, layout="half") + alibi

    def formula(q, k, v):
        scores = scene.scale * turned(q, k, scene.distance)
        scores = scores - alibi.slopes[:, None, None] * scene.distance.abs()[:, None]
        bias = quotient(q, k, scene.pos_q, scene.pos_k, *parameters)
        return scene.attended(scores + bias, v)

    run = partial(
        compose.bias_by_rows,
        bias=quotient,
        parameters=parameters,
        rows=rows,
        position=position,
    )
    scene.agree(run, formula, [*parameters, alibi.slopes])


def test_each_block_is_computed_once_in_each_pass():
    """Also the first, whose graph is read for what it depends on."""
    seen = []

    def bias(q, k, pos_q, pos_k, slope):
        seen.append(pos_q.tolist())
        return slope * (pos_k - pos_q[:, None])[None, None].to(slope.dtype)

    scene, (slope,) = Scene(9, 9, is_causal=True), leaves(())
    run = partial(compose.bias_by_rows, bias=bias, parameters=[slope], rows=4, is_causal=True)
    blocks = [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    out = run(scene.q.requires_grad_(), scene.k, scene.v)
    assert seen == blocks
    out.sum().backward()
    assert seen == 2 * blocks
    with torch.no_grad():
        run(scene.q, scene.k, scene.v)
    assert seen == 3 * blocks


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (B, 1), (1, H)])
def test_axes_that_all_share(batch, heads):
    scene = Scene(9, 9, is_causal=True)
    (numbers,) = leaves((batch, heads, 9, 9))

    def bias(q, k, pos_q, pos_k, table):
        return table[:, :, pos_q]

    def formula(q, k, v):
        return scene.attended(scene.scale * q @ k.mT + numbers, v)

    run = partial(compose.bias_by_rows, bias=bias, parameters=[numbers], rows=2)
    scene.agree(run, formula, [numbers])


class Pair(torch.nn.Module):
    """A network of both positions. Its second layer is not trained, and its third never read."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.third = (
            torch.nn.Linear(*n) for n in ((2, 6), (6, H), (2, 2))
        )
        self.second.requires_grad_(False)
        self.register_buffer("unit", torch.tensor(0.1))
        self.double()

    def forward(self, q, k, pos_q, pos_k, factor=1.0):
        at = torch.broadcast_tensors(pos_q[:, None], pos_k[None, :])
        hidden = torch.tanh(self.first(self.unit * torch.stack(at, -1)))
        return factor * self.second(hidden).movedim(-1, -3)[None]

    def by_another_name(self, q, k, pos_q, pos_k):
        return self(q, k, pos_q, pos_k)


FORMS = {
    "module": lambda module: module,
    "method": lambda module: module.by_another_name,
    "forward": lambda module: module.forward,
    "partial": lambda module: partial(module, factor=2.0),
    "partial of a method": lambda module: partial(module.forward, factor=2.0),
}


@pytest.mark.parametrize("form", FORMS)
def test_parameters_of_a_module_are_found(form):
    scene, module = Scene(11, 11, is_causal=True), Pair()
    bias = FORMS[form](module)
    at = torch.arange(11)

    def formula(q, k, v):
        return scene.attended(scene.scale * q @ k.mT + bias(q, k, at, at), v)

    run = partial(compose.bias_by_rows, bias=bias, rows=3)
    scene.agree(run, formula, [*module.first.parameters()])
    out = run(scene.q, scene.k, scene.v, is_causal=True)
    out.sum().backward()
    assert module.first.weight.grad.abs().max() > 0
    assert module.second.weight.grad is None
    assert module.third.weight.grad is None


def test_parameters_that_replace_those_of_a_module_get_the_gradients():
    """As torch.func.functional_call puts them there during the forward pass alone."""
    q, k, v, dout = drawn(7, 7)
    module = Pair()

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = module

        def forward(self, q, k, v):
            return compose.bias_by_rows(q, k, v, bias=self.pair, rows=2)

    (factor,) = leaves(())

    def replaced(prefix):
        return {n: factor * x.detach() for n, x in module.named_parameters(prefix=prefix)}

    out = torch.func.functional_call(Layer(), replaced("pair"), (q, k, v))
    at = torch.arange(7)
    bias = torch.func.functional_call(module, replaced(""), (q, k, at, at))
    wanted, _ = softmax_over(q @ k.mT / D**0.5 + bias, v, torch.tensor(False))
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-13)
    found, exact = (torch.autograd.grad(each, factor, dout)[0] for each in (out, wanted))
    torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-13)


def test_the_rows_of_inputs_and_sinks_are_cut():
    scene = Scene(12, 12)
    c, sinks, slope = leaves((B, H, 12, 3), (B, H, 12), (H,))
    rows = torch.arange(12)
    options = {"key_range": (rows.sub(5).clamp(min=0), rows + 1), "sinks": sinks}
    inkling = relpos.Inkling(3, 6).double()

    def bias(q, k, pos_q, pos_k, slope):
        return (slope[:, None, None] * (pos_q[:, None] * pos_k[None]).double())[None] / 40

    def formula(q, k, v):
        mask = bias(q, k, rows, rows, slope)
        position = inkling(c)
        return relpos.attention(
            q, k, v, attn_mask=mask, position=position, return_lse=True, **options
        )

    def run(q, k, v, **said):
        return compose.bias_by_rows(
            q, k, v, bias=bias, parameters=[slope], rows=5, position=inkling(c), **options, **said
        )

    scene.agree(run, formula, [c, sinks, slope, inkling.proj])


def test_decoding_gives_the_rows_of_the_prefill():
    q, k, v, _ = drawn(9, 9, kv_heads=HK)
    run = partial(
        compose.bias_by_rows,
        bias=quotient,
        parameters=leaves((H,), (D,), (D,)),
        enable_gqa=True,
        is_causal=True,
    )
    whole = run(q, k, v)
    for n in range(9):
        row = run(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], q_offset=n)
        torch.testing.assert_close(row, whole[:, :, n : n + 1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_random_numbers_are_the_same_in_the_backward_pass(dropout_p):
    """The gradient of the sum over values is the weights, of which the output is made."""
    q, k, v, dout = (x.requires_grad_() for x in drawn(8, 8))
    torch.manual_seed(5)

    def bias(q, k, pos_q, pos_k):
        return 3 * torch.rand(1, H, q.shape[2], 8, dtype=DOUBLE)

    out = compose.bias_by_rows(q, k, v, bias=bias, dropout_p=dropout_p, rows=3)
    (dv,) = torch.autograd.grad(out, v, dout)
    torch.testing.assert_close((dv * v).sum(), (out * dout).sum())


# What would lose a gradient


def closures():
    (table,) = leaves((1, H, 6, 6))
    made = 2 * table

    return {
        "leaf": lambda q, k, pos_q, pos_k: table[:, :, pos_q],
        "not a leaf": lambda q, k, pos_q, pos_k: made[:, :, pos_q],
        "sum": lambda q, k, pos_q, pos_k, own: own[:, None, None] + table[:, :, pos_q],
        "returned": lambda q, k, pos_q, pos_k: table,
        "partial": partial(lambda table, q, k, pos_q, pos_k: table[:, :, pos_q], table),
    }


@pytest.mark.parametrize("name", closures())
def test_refuses_a_closure_over_what_is_trained(name):
    q, k, v, _ = drawn(6, 6)
    bias = closures()[name]
    parameters = leaves((H,)) if name == "sum" else []
    run = partial(compose.bias_by_rows, q, k, v, bias=bias, parameters=parameters, rows=6)
    with pytest.raises(ValueError, match=r"bias: reads a tensor \[1, 4, 6, 6\].*parameters="):
        run()
    with torch.no_grad():
        assert run().isfinite().all()


def test_refuses_the_key_of_a_closure():
    q, k, v, _ = drawn(6, 6)
    k.requires_grad_()
    with pytest.raises(ValueError, match=r"bias: reads a tensor \[2, 4, 6, 8\]"):
        compose.bias_by_rows(q, k, v, bias=lambda *_: k.sum().expand(1, 1, 6, 6))


def test_refuses_what_a_later_block_reads():
    q, k, v, _ = drawn(6, 6)
    q.requires_grad_()
    (late,) = leaves(())

    def bias(q, k, pos_q, pos_k):
        made = torch.zeros(1, 1, len(pos_q), 6, dtype=DOUBLE)
        return made if pos_q[0] == 0 else made + late

    out = compose.bias_by_rows(q, k, v, bias=bias, rows=3)
    with pytest.raises(ValueError, match=r"bias: reads a tensor \[\]"):
        out.sum().backward()


def test_what_is_detached_is_no_trained_tensor():
    q, k, v, _ = drawn(6, 6)
    (table,) = leaves((1, H, 6, 6))
    out = compose.bias_by_rows(q, k, v, bias=lambda q, k, i, j: table.detach()[:, :, i], rows=2)
    assert not out.requires_grad


# Arguments

Q, K, V, _ = drawn(6, 6)
UNCALLED = {
    "bias: expected a function": {"bias": torch.zeros(6, 6)},
    "parameters: expected a sequence of tensors, got Tensor": {"parameters": torch.zeros(3)},
    r"parameters\[1\]: expected a torch.Tensor, got float": {"parameters": [torch.zeros(3), 1.0]},
    "rows: expected an int from 1": {"rows": 0},
    "attn_mask: not with": {"attn_mask": torch.zeros(6, 6)},
    "softcap: not with": {"softcap": 3.0},
    "return_weights: not with": {"return_weights": True},
    "bias_by_rows.* unexpected keyword argument 'scales'": {"scales": 1.0},
    "key: has 2 heads and query 4": {"key": K[:, :2]},
    "key: expected the dtype of query|key: expected torch.float64": {"key": K.float()},
    r"key: expected \[2, 4, 6, 8\]": {"key": K[..., :4]},
    "key: expected rank 4": {"key": K[0]},
    "value: expected a torch.Tensor": {"value": 3},
    "dropout_p: expected a number|0 <= dropout_p <= 1": {"dropout_p": 1.5},
    "window: expected a pair": {"window": 3},
    "k_positions: give both": {"q_positions": torch.arange(6)},
    "q_positions: expected int64": {
        "q_positions": torch.arange(5),
        "k_positions": torch.arange(6),
    },
    "q_offset: not given, and Lq = 3 differs from Lk = 6": {"query": Q[:, :, :3]},
    "places tokens where its own rule": {"position": relpos.SwinBias(H, [2, 3])},
    "depends on the length of the call": {
        "position": relpos.DynamicRoPE(D, layout="half", factor=2.0, max_position_embeddings=4)
    },
}


@pytest.mark.parametrize("text", UNCALLED)
def test_refused_before_the_bias_is_called(text):
    def bias(*_):
        raise AssertionError("called")

    given = {"query": Q, "key": K, "value": V, "bias": bias} | UNCALLED[text]
    with pytest.raises((TypeError, ValueError), match=text):
        compose.bias_by_rows(**given)


RETURNED = {
    "bias: expected a function that returns a torch.Tensor, got list": [1.0],
    r"bias: expected float32, .* got torch.bool": torch.ones(1, 1, 3, 6, dtype=torch.bool),
    r"bias: expected \[2 or 1, 4 or 1, 3, 6\] .*, got \[3, 6\]": torch.zeros(3, 6),
    r"bias: expected .*, got \[2, 2, 3, 6\]": torch.zeros(2, 2, 3, 6),
    r"bias: expected .*, got \[1, 1, 6, 6\]": torch.zeros(1, 1, 6, 6),
    "bias: expected a tensor on cpu, as query is, got meta": torch.zeros(1, 1, 3, 6, device="meta"),
}


@pytest.mark.parametrize("text", RETURNED)
def test_refuses_what_the_bias_returns(text):
    with pytest.raises((TypeError, ValueError), match=text):
        compose.bias_by_rows(Q, K, V, bias=lambda *_: RETURNED[text], rows=3)


def test_a_float32_bias_is_not_rounded_to_the_queries_dtype():
    """Of 999 and 1000, which are one number in bfloat16."""
    q, k, v = (torch.zeros(1, 1, 2, 2, dtype=torch.bfloat16) for _ in range(3))
    v[..., 1, :] = 1
    bias = torch.tensor([999.0, 1000.0]).expand(1, 1, 2, 2)
    out = compose.bias_by_rows(q, k, v, bias=lambda *_: bias)
    wanted = torch.tensor(1.0).sigmoid()
    assert (out.float() - wanted).abs().max() < 2**-8


def test_autocast_holds_in_the_backward_pass():
    q, k, v, dout = drawn(9, 9, dtype=torch.float32)
    (slope,) = leaves((H,))
    own = slope.detach().float().requires_grad_()
    tensors = [x.requires_grad_() for x in (q, k, v)]

    def bias(q, k, pos_q, pos_k, slope):
        return (slope[:, None, None] * (pos_q[:, None] / (1 + pos_k)))[None]

    def attend(rows):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = compose.bias_by_rows(q, k, v, bias=bias, parameters=[own], rows=rows)
        assert out.dtype == torch.bfloat16
        return gradients([out], [dout.bfloat16()], [*tensors, own])

    for one, other in zip(attend(9), attend(4), strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= 2**-7 * one.abs().max()
