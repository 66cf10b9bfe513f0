"""Bad arguments give an error that names the argument; nothing is written."""

import numpy as np
import pytest
import relpos
import torch

from tests.support.sample import HEADS, UNBOUND, position, tensors, trained

NAN = float("nan")
B, L = 2, 5


def base():
    q, k, v, _ = tensors(batch=B, queries=L, keys=L)
    return {"query": q, "key": k, "value": v}


def mask(*shape, dtype=torch.bool):
    return torch.ones(shape, dtype=dtype)


def sized(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def whole(*shape):
    return torch.zeros(shape, dtype=torch.int64)


def trained_number(value):
    return torch.tensor(value, requires_grad=True)


# What is changed in a good call, the error, and words of its text.
BAD = [
    ({"query": [1.0]}, TypeError, "query: expected a torch.Tensor, got list"),
    ({"query": sized(B, L, 8)}, ValueError, "query"),
    ({"query": whole(B, HEADS, L, 8)}, TypeError, "query: expected float32, .*int64"),
    ({"query": sized(B, HEADS, L, 8, dtype=torch.complex64)}, TypeError, "query"),
    ({"query": sized(B, HEADS, L, 8, dtype=torch.float64)}, TypeError, "key"),
    ({"key": None}, TypeError, "key"),
    ({"key": sized(B, HEADS, L, 7)}, ValueError, "key.*8.*7"),
    ({"key": sized(B + 1, HEADS, L, 8)}, ValueError, "key"),
    ({"key": sized(B, 3, L, 8)}, ValueError, "key"),
    ({"key": sized(B, HEADS, L, 8, dtype=torch.bfloat16)}, TypeError, "key"),
    ({"value": sized(B, HEADS, L + 1, 6)}, ValueError, "value"),
    ({"value": sized(B, HEADS, 6)}, ValueError, r"value: expected rank 4, .*got \[2, 4, 6\]"),
    ({"value": sized(B, HEADS, L, 6).half()}, TypeError, "value: expected torch.float32"),
    ({"key": sized(B, 2, L, 8), "value": sized(B, 2, L, 6)}, ValueError, "enable_gqa"),
    ({"attn_mask": mask(L, L + 1)}, ValueError, "attn_mask"),
    ({"attn_mask": mask(3, 1, 1, L, L)}, ValueError, "attn_mask"),
    ({"attn_mask": whole(L, L)}, TypeError, "attn_mask: expected bool.*int64"),
    ({"attn_mask": [[True]]}, TypeError, "attn_mask: expected.*got list"),
    ({"key_padding_mask": mask(B, L + 1)}, ValueError, "key_padding_mask"),
    ({"key_padding_mask": mask(L)}, ValueError, "key_padding_mask"),
    ({"key_padding_mask": sized(B, L)}, TypeError, "key_padding_mask: expected bool"),
    ({"dropout_p": 1.5}, ValueError, "dropout_p: expected 0 <= dropout_p <= 1, got 1.5"),
    ({"dropout_p": -0.1}, ValueError, "dropout_p"),
    ({"dropout_p": NAN}, ValueError, "dropout_p"),
    ({"dropout_p": "0.1"}, TypeError, "dropout_p"),
    ({"scale": NAN}, ValueError, "scale"),
    ({"scale": float("inf")}, ValueError, "scale"),
    ({"scale": "1"}, TypeError, "scale"),
    ({"window": (-2, 0)}, ValueError, "window"),
    ({"window": (1, 2, 3)}, (TypeError, ValueError), "window"),
    ({"window": 3}, TypeError, "window: expected a pair"),
    ({"window": (3, 0.5)}, TypeError, "window: expected an int, got 0.5"),
    ({"q_offset": 1.5}, TypeError, "q_offset: expected an int, got 1.5"),
    ({"q_offset": whole(B + 1)}, ValueError, "q_offset"),
    ({"q_offset": sized(B)}, TypeError, "q_offset: expected int64"),
    ({"q_offset": 2**62}, ValueError, "q_offset"),
    ({"q_offset": 2**70}, (ValueError, OverflowError), "q_offset"),
    ({"q_offset": 0, "k_offset": whole(B, 1)}, ValueError, "k_offset"),
    ({"q_offset": 0, "k_offset": None}, TypeError, "k_offset: expected an int"),
    ({"q_positions": whole(L)}, ValueError, "k_positions"),
    ({"k_positions": whole(L)}, ValueError, "q_positions"),
    ({"q_positions": whole(L), "k_positions": whole(L), "q_offset": 0}, ValueError, "q_offset"),
    ({"q_positions": whole(L + 1), "k_positions": whole(L)}, ValueError, "q_positions"),
    ({"q_positions": whole(L), "k_positions": whole(3, L)}, ValueError, "k_positions"),
    ({"q_positions": sized(L), "k_positions": whole(L)}, TypeError, "q_positions"),
    ({"key_range": whole(L)}, TypeError, "key_range: expected a pair"),
    ({"key_range": (whole(L), whole(L + 1))}, ValueError, "key_range"),
    ({"key_range": (whole(L), sized(L))}, TypeError, "key_range: expected int64"),
    ({"position": "t5"}, TypeError, "position: expected None, a relpos position"),
    ({"position": torch.nn.Linear(2, 2)}, TypeError, "position"),
    ({"position": relpos.T5Bias}, TypeError, "position: .*class T5Bias"),
    ({"position": [relpos.ALiBi(HEADS), relpos.T5Bias]}, TypeError, "position: .*class T5Bias"),
    ({"scale": trained_number(1.0)}, ValueError, "scale: .*requires grad"),
    ({"softcap": trained_number(1.0)}, ValueError, "softcap: .*requires grad"),
    ({"position": relpos.ALiBi(3)}, ValueError, "heads"),
    ({"sinks": torch.zeros(3)}, ValueError, r"^sinks: expected \[4\]"),
    ({"sinks": 1.0}, TypeError, "sinks: expected"),
    *(
        ({"softcap": number}, ValueError, r"softcap: expected a number from 1e-30 to 1e\+?30")
        for number in (0.0, -1.0, 1e-31, 1e31, float("inf"), NAN)
    ),
    ({"softcap": "2"}, TypeError, "softcap: expected a number"),
    ({"causal": True}, TypeError, "causal"),
]
NOT_OF_SCORES = {"value", "dropout_p", "sinks"}


@pytest.mark.parametrize(
    ("change", "error", "words"), BAD, ids=[f"{next(iter(row[0]))}, {row[2]}" for row in BAD]
)
def test_the_argument_is_named(change, error, words):
    call = base() | change
    held = {n: x.clone() for n, x in call.items() if isinstance(x, torch.Tensor)}
    with pytest.raises(error, match=words):
        relpos.attention(**call)
    assert all(torch.equal(call[n], x) for n, x in held.items())
    if not NOT_OF_SCORES & change.keys() and words != "enable_gqa":
        del call["value"]
        with pytest.raises(error, match=words):
            relpos.scores(**call)


@pytest.mark.parametrize(
    "name", ["is_causal", "enable_gqa", "float32_products", "return_lse", "return_weights"]
)
def test_flags_are_bools(name):
    for value in ("no", "", 0, 1, None, torch.tensor(True)):
        with pytest.raises(TypeError, match=f"{name}: expected a bool, got"):
            relpos.attention(*base().values(), **{name: value})
    for value in (True, False):
        want = relpos.attention(*base().values(), **{name: value})
        got = relpos.attention(*base().values(), **{name: np.bool_(value)})
        assert type(got) is type(want)


def test_flags_of_other_functions_are_bools():
    q, k, v = base().values()
    packed, starts = q[0].transpose(0, 1), torch.tensor([0, L])
    blhd = [x.transpose(1, 2) for x in (q, q, q)]
    layer, y = relpos.nn.MultiheadAttention(8, 2), sized(L, B, 8)
    rope, compose = relpos.RoPE(8, layout="half"), relpos.compose
    for name, run in {
        "is_causal": (
            lambda flag: relpos.scores(q, k, is_causal=flag),
            lambda flag: relpos.sdpa(q, k, v, is_causal=flag),
            lambda flag: relpos.attention_varlen(packed, packed, packed, starts, is_causal=flag),
            lambda flag: relpos.KVCache().attend(q, k, v, is_causal=flag),
            lambda flag: layer(y, y, y, is_causal=flag),
            lambda flag: compose.rerope(q, q, q, position=rope, window_size=2, is_causal=flag),
        ),
        "causal": (lambda flag: relpos.flash_attn_func(*blhd, causal=flag),),
        "return_attn_probs": (
            lambda flag: relpos.flash_attn_func(*blhd, return_attn_probs=flag),
            lambda flag: relpos.flash_attn_varlen_func(
                packed, packed, packed, starts, starts, return_attn_probs=flag
            ),
        ),
        "return_lse": (
            lambda flag: relpos.attention_varlen(packed, packed, packed, starts, return_lse=flag),
            lambda flag: compose.cope(q, q, q, table=sized(2, 8), return_lse=flag),
            lambda flag: compose.rerope(q, q, q, position=rope, window_size=2, return_lse=flag),
            lambda flag: compose.fire(q, q, q, position=relpos.FIRE(HEADS), return_lse=flag),
        ),
        "need_weights": (
            lambda flag: layer(y, y, y, need_weights=flag, average_attn_weights=True),
        ),
        "average_attn_weights": (
            lambda flag: layer(y, y, y, need_weights=True, average_attn_weights=flag),
        ),
        "bias": (lambda flag: relpos.nn.MultiheadAttention(8, 2, bias=flag),),
        "batch_first": (lambda flag: relpos.nn.MultiheadAttention(8, 2, batch_first=flag),),
        "undo": (lambda flag: compose.rotate_values(q, q, q, position=rope, undo=flag),),
        "bidirectional": (lambda flag: relpos.T5Bias(2, bidirectional=flag),),
    }.items():
        for call in run:
            with pytest.raises(TypeError, match=rf"{name}: expected (a bool|true or false)"):
                call("no")
            call(np.bool_(True))


def test_numbers_that_require_grad_are_refused():
    q, k, v = base().values()
    blhd = [x.transpose(1, 2) for x in (q, q, q)]
    half = trained_number(0.5)
    refused = {
        "dropout_p": [
            lambda: relpos.attention(q, k, v, dropout_p=half),
            lambda: relpos.attention(q, k, v, dropout_p=trained_number(0.0)),
        ],
        "softmax_scale": [lambda: relpos.flash_attn_func(*blhd, softmax_scale=half)],
        "softcap": [lambda: relpos.flash_attn_func(*blhd, softcap=half)],
        "slopes": [
            lambda: relpos.ALiBi(2, slopes=trained_number([0.5, 0.5])),
            lambda: relpos.ALiBi(2, slopes=[half, 0.5]),
        ],
        "scale": [
            lambda: relpos.sdpa(q, k, v, scale=half),
            lambda: relpos.T5Bias(2, bias_scale=half),
            lambda: relpos.compose.cope(q, q, q, table=sized(2, 8), scale=half),
            lambda: relpos.compose.tupe(
                q, q, q, scale=half, query_position=q, key_position=q, cls=(half.expand(HEADS),) * 2
            ),
        ],
        "base": [
            lambda: relpos.RoPE(8, layout="half", base=half),
            lambda: relpos.compose.polar(q, q, q, base=half),
        ],
    }
    for name, calls in refused.items():
        for call in calls:
            with pytest.raises(ValueError, match=f"{name}: .*(requires grad|requires_grad)"):
                call()
    with pytest.raises(TypeError, match="slopes: expected a number, got '1'"):
        relpos.ALiBi(2, slopes=["1", "2"])
    assert torch.equal(
        relpos.attention(q, k, v, scale=torch.tensor(0.5)), relpos.attention(q, k, v, scale=0.5)
    )


def test_integers_beyond_64_bits_are_named():
    large, rope, t5 = 2**70, relpos.RoPE(8, layout="half"), relpos.T5Bias(HEADS)
    x = base()["query"]
    for error, name, call in (
        (TypeError, "t5: heads", lambda: relpos.T5Bias(large)),
        (TypeError, "t5: buckets", lambda: relpos.T5Bias(2, buckets=10**400)),
        (ValueError, "rope: base", lambda: relpos.RoPE(8, layout="half", base=10**400)),
        (ValueError, "length", lambda: rope.tables(large)),
        (ValueError, "length", lambda: rope.tables(-1)),
        (ValueError, "offset", lambda: rope.tables(3, large)),
        (ValueError, "offset", lambda: rope.rotate(x, large)),
        *(
            (ValueError, name, lambda see=see, grid=grid: see(*grid))
            for see in (t5.dense, t5.indices, t5.steps)
            for name, grid in (
                ("queries", (large, 3)),
                ("keys", (3, -1)),
                ("q_offset", (3, 3, large)),
            )
        ),
    ):
        with pytest.raises(error, match=f"^{name}: expected"):
            call()
    assert relpos.RoPE(8, layout="half", base=10**23).base == 1e23


def test_positions_that_decrease_under_a_boundary():
    place = {"q_positions": torch.arange(L), "k_positions": torch.arange(L).flip(0)}
    relpos.attention(*base().values(), **place)
    for boundary in ({"is_causal": True}, {"window": (1, 1)}):
        with pytest.raises(ValueError, match=r"k_positions.*key_range"):
            relpos.attention(*base().values(), **place, **boundary)


@pytest.mark.parametrize("name", UNBOUND)
def test_a_position_made_for_other_sizes(name):
    """Each scheme refuses at least one call of other sizes, in words that name its own option."""
    refusals = []
    for sizes in ({"heads": 2}, {"head_dim": 12}):
        q, k, v, _ = tensors(batch=B, queries=L, keys=L, **sizes)
        try:
            relpos.attention(q, k, v, position=trained(name)[0])
        except ValueError as error:
            refusals.append(str(error))
    assert refusals
    assert all(name in text for text in refusals)


def refuses(call, *args, **more):
    with pytest.raises(ValueError, match=r"q_offset") as caught:
        call(*args, **more)
    text = str(caught.value)
    assert "Lk - Lq" in text
    assert "q_offset = 0" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [("is_causal", True), ("window", (2, 2)), ("k_offset", 3), ("k_offset", torch.tensor([3, 3]))],
)
def test_refuses_to_guess_the_offset(name, value):
    guess = {name: value}
    q, k, v, _ = tensors(batch=B, queries=3, keys=L)
    for module in (None, position("sum")[0]):
        refuses(relpos.attention, q, k, v, position=module, **guess)
        refuses(relpos.scores, q, k, position=module, **guess)
        relpos.attention(q, k, v, position=module, q_offset=2, **guess)
        relpos.scores(q, k, position=module, q_offset=2, **guess)
    refuses(relpos.attention, *base().values(), k_offset=1)  # though lengths agree
    module = relpos.nn.MultiheadAttention(16, 2, position=relpos.BiasRPE(2, 4), batch_first=True)
    refuses(module, sized(1, 3, 16), *[sized(1, 5, 16)] * 2)


@pytest.mark.parametrize("name", UNBOUND)
def test_every_position_asks_for_the_offset(name):
    module, _ = trained(name)
    q, k, v, _ = tensors(batch=B, queries=3, keys=L)
    refuses(relpos.attention, q, k, v, position=module)
    refuses(relpos.scores, q, k, position=module)
    for call in (module.dense, module.indices, module.steps):
        refuses(call, 3, L)
        call(3, L, q_offset=0)
        call(3, L, q_offset=2)
        call(L, L)


def test_plain_cross_attention_never_asks():
    q, k, v, _ = tensors(batch=B, queries=3, keys=L)
    ranges = (whole(3), whole(3) + 2)
    relpos.attention(q, k, v)
    relpos.attention(q, k, v, key_padding_mask=~mask(B, L), key_range=ranges)
    relpos.attention(q, k, v, attn_mask=mask(3, L), position=[])
    relpos.scores(q, k)


@pytest.mark.parametrize("make", [relpos.T5Bias, relpos.LayoutBias], ids=lambda m: m.__name__)
def test_scale_is_another_name_of_bias_scale(make):
    assert "bias_scale=0.5" in make(2, scale=0.5).describe()
    assert make(2, scale=0.5).describe() == make(2, bias_scale=0.5).describe()
    with pytest.raises(TypeError, match="multiple values for argument 'bias_scale'"):
        make(2, scale=0.5, bias_scale=0.5)


def test_t5_says_which_scale_its_scores_have():
    assert "scale=1.0" in relpos.T5Bias.__doc__.split("\n\n")[0]
