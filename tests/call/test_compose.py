"""relpos.compose: distances that stop growing, against the papers' formulas over all pairs, and
what every composition refuses."""

import math
from functools import partial

import pytest
import relpos
import torch
from relpos import compose
from relpos._call import attention as attention_module

from tests.call.composed import (
    CALLS,
    DOUBLE,
    REMAPS,
    B,
    D,
    H,
    Scene,
    distances,
    drawn,
    leaking,
    softmax_over,
    turned,
)
from tests.support.oracle import gradients

pytestmark = pytest.mark.usefixtures("one_thread")

ROPE = relpos.RoPE(D, layout="half")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REMAPS)
def test_remapped_distances(name, call):
    function, rule, sizes = REMAPS[name]
    scene = Scene(**CALLS[call])
    distance = distances(rule, scene.pos_q, scene.pos_k)
    bias = relpos.ALiBi(H, learned=True).double()
    biased = name != "leaky"  # its fractions are a rotation's alone

    def formula(q, k, v):
        scores = scene.scale * turned(q, k, distance)
        if biased:
            scores = scores - bias.slopes[:, None, None] * distance[:, None]
        return scene.attended(scores, v)

    run = partial(function, position=ROPE + bias if biased else ROPE, **sizes)
    scene.agree(run, formula, [bias.slopes] if biased else [])


@pytest.mark.parametrize(
    ("name", "last", "wanted"),
    [
        ("self_extend", 9, [6, 6, 5, 5, 4, 4, 3, 2, 1, 0]),
        ("rerope", 9, [4, 4, 4, 4, 4, 4, 3, 2, 1, 0]),
        ("dual_chunk", 10, [5, 4, 3, 2, 5, 4, 3, 2, 2, 1, 0]),
        ("dual_chunk", 8, [5, 4, 3, 2, 4, 3, 2, 1, 0]),
    ],
)
def test_published_distances(name, last, wanted):
    """Read off the weights of a bias of -1 for each step, whose values are the identity."""
    function, rule, sizes = REMAPS[name]
    count = last + 1
    zeros, values = torch.zeros(1, 1, count, 2, dtype=DOUBLE), torch.eye(count, dtype=DOUBLE)
    bias = relpos.ALiBi(1, slopes=[1.0])
    weights = function(zeros, zeros, values[None, None], position=bias, **sizes)[0, 0, -1]
    found = -(weights / weights[-1]).log()
    assert found.round().tolist() == wanted
    assert (found - found.round()).abs().max() < 1e-12
    assert [rule(last, j) for j in range(count)] == wanted


def test_leaking_distances_are_those_of_su():
    assert [leaking(9, j, leak=2) for j in range(10)] == [6.5, 6, 5.5, 5, 4.5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("name", REMAPS)
def test_remaps_in_float32(name):
    """Errors are at most 16 roundings of float32 of the largest number."""
    function, rule, sizes = REMAPS[name]
    scene = Scene(150, 150, dtype=torch.float32)
    distance = distances(rule, scene.pos_q, scene.pos_k)

    def results(attend, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in (scene.q, scene.k, scene.v)]
        out = attend(*leaves)
        return [out.detach(), *gradients([out], [scene.dout.to(dtype)], leaves)]

    def formula(q, k, v):
        return softmax_over(turned(q, k, distance) / math.sqrt(D), v, scene.hidden)[0]

    truth = results(formula, DOUBLE)
    found = results(partial(function, position=ROPE, **sizes), torch.float32)
    for n, (exact, ours) in enumerate(zip(truth, found, strict=True)):
        error, largest = (ours - exact).abs().max(), exact.abs().max()
        assert error <= 16 * 2.0**-24 * largest, n


@pytest.mark.parametrize("name", REMAPS)
def test_decoding_gives_the_rows_of_the_prefill(name):
    function, _, sizes = REMAPS[name]
    q, k, v, _ = drawn(12, 12)
    run = partial(function, position=ROPE, **sizes)
    whole = run(q, k, v)
    for n in range(12):
        row = run(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], q_offset=n)
        torch.testing.assert_close(row, whole[:, :, n : n + 1], rtol=1e-11, atol=1e-12)


def test_short_inputs_are_plain_attention():
    """While no key is beyond the window, nothing changes."""
    q, k, v, _ = drawn(9, 9)
    plain = relpos.attention(q, k, v, position=ROPE, is_causal=True)
    for out in (
        compose.self_extend(q, k, v, position=ROPE, group_size=3, window_size=9),
        compose.rerope(q, k, v, position=ROPE, window_size=9),
        compose.rerope(q, k, v, position=ROPE, window_size=2, leak=1),
        compose.dual_chunk(q, k, v, position=ROPE, chunk_size=10, local_size=1),
    ):
        torch.testing.assert_close(out, plain, rtol=1e-12, atol=1e-13)


def test_dropout_of_merged_calls_keeps_the_mean():
    q, k, v, _ = drawn(12, 12)
    torch.manual_seed(3)
    many = [x.repeat(400, 1, 1, 1) for x in (q, k, v)]
    call = {"position": ROPE, "window_size": 4}
    dropped = compose.rerope(*many, **call, dropout_p=0.3).unflatten(0, (400, B)).mean(0)
    whole = compose.rerope(q, k, v, **call)
    # 400 draws of a factor of variance 0.3 / 0.7: six standard errors of values up to 4
    assert (dropped - whole).abs().max() < 6 * math.sqrt(0.3 / 0.7 / 400) * float(v.abs().max())
    assert (dropped - whole).abs().max() > 0


# Arguments


SIZES = {"group_size": 2, "window_size": 4}
REFUSED = [
    ("group_size: expected an int from 1", compose.self_extend, {**SIZES, "group_size": 0}),
    ("window_size: expected a multiple", compose.self_extend, {**SIZES, "window_size": 5}),
    ("is_causal: expected True", compose.self_extend, {**SIZES, "is_causal": False}),
    ("return_weights: not with", compose.self_extend, {**SIZES, "return_weights": True}),
    ("q_positions: not with", compose.self_extend, {**SIZES, "q_positions": torch.arange(6)}),
    ("position: expected one", compose.self_extend, {**SIZES, "position": None}),
    ("expected its option length=", compose.rerope, {"window_size": 4, "position": "dynamic"}),
    ("expected sinks=", compose.rerope, {"window_size": 4, "position": "sink"}),
    ("turns by given coordinates", compose.rerope, {"window_size": 4, "position": "mrope"}),
    ("leak: expected None or", compose.rerope, {"window_size": 4, "leak": 0.5}),
    ("leak: expected window_size", compose.rerope, {"window_size": 4, "leak": 1.1}),
    ("leak: expected position", compose.rerope, {"window_size": 4, "leak": 2, "position": "sum"}),
    ("local_size: expected at most 5", compose.dual_chunk, {"chunk_size": 6, "local_size": 6}),
    ("k_offset is given", compose.dual_chunk, {"chunk_size": 6, "local_size": 2, "k_offset": 1}),
    ("position: expected one rotation", compose.rotate_values, {"undo": True, "position": "bias"}),
    ("value: expected 8 columns", compose.rotate_values, {"undo": True}),
    ("position: expected one relpos.FIRE", compose.fire, {}),
    ("softcap: not with", compose.fire, {"softcap": 3.0, "position": "fire"}),
    ("attn_mask: not with", compose.fire, {"attn_mask": torch.zeros(6, 6), "position": "fire"}),
]


def made(name):
    return {
        "dynamic": lambda: relpos.DynamicRoPE(
            D, layout="half", factor=2.0, max_position_embeddings=4
        ),
        "sink": lambda: ROPE + relpos.AttentionSink(H),
        "mrope": lambda: relpos.MRoPE(D, layout="half", section=[1, 1, 2])(
            *torch.zeros(2, B, 3, 6, dtype=torch.int64)
        ),
        "sum": lambda: ROPE + relpos.ALiBi(H),
        "bias": lambda: relpos.ALiBi(H),
        "fire": lambda: relpos.FIRE(H),
    }[name]()


@pytest.mark.parametrize(("text", "function", "options"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused(text, function, options):
    q, k, v, _ = drawn(6, 6)
    position = options.get("position", ROPE)
    position = made(position) if isinstance(position, str) else position
    with pytest.raises(ValueError, match=text):
        function(q, k, v, **{**options, "position": position})


PLACING = [s.name for s in relpos.schemes() if s.describe(**s.example()).places_tokens]


@pytest.mark.parametrize("name", PLACING)
def test_refuses_what_places_tokens(name):
    """Groups, chunks and thresholds count tokens one after another."""
    scheme = next(s for s in relpos.schemes() if s.name == name)
    placing = getattr(relpos, scheme.class_name)(**scheme.example())
    q, k, v, _ = drawn(6, 6)
    if placing._inputs:
        placing = placing(*(torch.zeros(B, 6, dtype=torch.int64) for _ in placing._inputs))
    for call in (
        partial(compose.self_extend, position=placing, **SIZES),
        partial(compose.rerope, position=[placing], window_size=4),
        partial(compose.dual_chunk, position=[placing, ROPE], chunk_size=6, local_size=2),
        partial(compose.fire, position=[relpos.FIRE(H), placing]),
    ):
        with pytest.raises(
            ValueError, match=f"position: {name}.* places tokens where its own rule"
        ):
            call(q, k, v)


def test_refused_tensors():
    q, k, v, _ = drawn(6, 6)
    with pytest.raises(ValueError, match="q_offset: not given, and Lq = 3 differs from Lk = 6"):
        compose.self_extend(q[:, :, :3], k, v, position=ROPE, **SIZES)
    with pytest.raises(TypeError, match="key_range: expected a pair"):
        compose.self_extend(q, k, v, position=ROPE, **SIZES, key_range=torch.arange(6))
    with pytest.raises(ValueError, match="decays with the distance"):
        compose.rotate_values(q, k, k, position=relpos.XPos(D, layout="half"), undo=True)
    with pytest.raises(TypeError, match="positions: expected int64"):
        compose.log_temperature(torch.rand(3))
    with pytest.raises(ValueError, match="rule: expected one of llama4"):
        compose.log_temperature(torch.arange(3), "llama")
    with pytest.raises(ValueError, match=r"phase: expected \[4, 8\]"):
        compose.polar(q, k, v, phase=torch.zeros(8))
    with pytest.raises(ValueError, match=r"table: expected \[P, 8\]"):
        compose.cope(q, k, v, table=torch.zeros(4, 5))
    places_of = {"query_position": q, "key_position": k}
    with pytest.raises(ValueError, match=r"key_position: expected \[4, 6, E\] or"):
        compose.tupe(q, k, v, query_position=q, key_position=k[:, :, :3])
    with pytest.raises(ValueError, match=r"cls: expected \[4\]"):
        compose.tupe(q, k, v, **places_of, cls=(torch.zeros(3), torch.zeros(4)))
    with pytest.raises(ValueError, match="q_offset: not with"):
        compose.tupe(q, k, v, **places_of, cls=(torch.zeros(4), torch.zeros(4)), q_offset=3)


def test_refused_where_a_shard_is_not_the_sequence(monkeypatch):
    monkeypatch.setattr(attention_module, "ELSEWHERE", [None])
    q, k, v, _ = drawn(6, 6)
    with pytest.raises(RuntimeError, match=r"compose\.self_extend: not under"):
        compose.self_extend(q, k, v, position=ROPE, **SIZES)
    with pytest.raises(RuntimeError, match=r"compose\.cope: not under"):
        compose.cope(q, k, v, table=torch.zeros(4, D))


# Every composition


def fixed_fire():
    torch.manual_seed(1)
    return relpos.FIRE(H, init_L=4.0)


def crossing(q, k, pos_q, pos_k):
    return ((pos_q[:, None] * pos_k[None] % 7).to(q.dtype) / 8)[None, None]


EACH = {
    "self_extend": partial(compose.self_extend, position=ROPE, **SIZES),
    "dual_chunk": partial(compose.dual_chunk, position=ROPE, chunk_size=6, local_size=2),
    "rotate_values": lambda q, k, v, **options: compose.rotate_values(
        q, k, k, position=ROPE, undo=True, **options
    ),
    "polar": partial(compose.polar, phase=torch.full((H, D), -1.0)),
    "tupe": lambda q, k, v, **options: compose.tupe(
        *(q, k, v), query_position=q, key_position=k, cls=(torch.ones(H), torch.zeros(H)), **options
    ),
    "cope": partial(compose.cope, table=torch.ones(4, D), rows=5),
    "fire": lambda *x, **options: compose.fire(*x, position=fixed_fire(), rows=5, **options),
    "bias_by_rows": partial(compose.bias_by_rows, bias=crossing, rows=5),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", EACH)
def test_sixteen_bits(name, dtype):
    """Results have the dtype of the inputs. What is rounded to it on the way (values or vectors of
    up to 4, their outputs, biases) changes an output by some units of it."""
    q, k, v, dout = drawn(12, 12, dtype=dtype)
    dout = torch.cat([dout, dout], -1)

    def results(dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        out = EACH[name](*leaves)
        assert out.dtype == dtype
        out.backward(dout[..., : out.shape[-1]].to(dtype))
        return [out, *(x.grad for x in leaves if x.grad is not None)]

    for found, wanted in zip(results(dtype), results(torch.float32), strict=True):
        assert found.dtype == dtype
        allowed = 16 * torch.finfo(dtype).eps * wanted.abs().max()
        assert (found.float() - wanted).abs().max() <= allowed


@pytest.mark.parametrize("name", EACH)
def test_nothing_to_attend_to(name):
    q, k, v, _ = drawn(6, 6)
    q, k, v = (x.float().requires_grad_() for x in (q, k, v))
    for rows in (slice(0, 0), slice(0, 6)):
        if rows.stop and name == "tupe":  # of which a token 0 is on both sides
            continue
        options = {} if name == "tupe" else {"q_offset": 0}
        out = EACH[name](q[:, :, rows], k[:, :, :0], v[:, :, :0], **options)
        assert out.shape[:3] == (B, H, rows.stop)
        assert not out.any()
        (dq,) = torch.autograd.grad(out.sum(), q, allow_unused=True)
        assert dq is None or not dq.any()
