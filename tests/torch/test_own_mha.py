"""A position of one's own in relpos.nn.MultiheadAttention, against the layer in plain torch."""

import copy
import io
import pickle

import pytest
import relpos
import torch
from torch import nn

from tests.support.near import close_with_gradients
from tests.support.oracle import naive
from tests.support.own_positions import (
    DIM,
    HEADS,
    MADE,
    Gated,
    Kerple,
    KeyGated,
    Picture,
    Shaw,
    distances,
    drawn,
    given,
    gradients,
    numbers,
    plain,
)

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = HEADS * DIM
DOUBLE = {"atol": 1e-10, "rtol": 1e-10}


def sum_with_t5():
    t5 = drawn(relpos.T5Bias, heads=HEADS, buckets=8, max_distance=20)
    return t5 + drawn(Gated, width=WIDTH) + drawn(Kerple)


def layer_with(name, **sizes):
    if name == "sum":
        position = sum_with_t5()
    else:
        made = MADE[name]
        position = drawn(made, width=WIDTH) if made is Gated else drawn(made)
    torch.manual_seed(4)
    sizes = {"batch_first": True, "dtype": torch.float64} | sizes
    return relpos.nn.MultiheadAttention(WIDTH, HEADS, position=position, **sizes)


def of_call(layer, hidden):
    """The position of a call, or None where the layer's own is enough."""
    called = given(layer.position, hidden)
    return None if called is layer.position else called


def dense(layer, x, memory, visible, q_offset=0):
    """The layer by plain formulas."""
    widths = (WIDTH, *2 * [layer.num_kv_heads * DIM])
    weights, biases = layer.in_proj_weight.split(widths), layer.in_proj_bias.split(widths)
    q, k, v = (
        (of @ w.mT + b).unflatten(-1, (-1, DIM)).transpose(1, 2)
        for of, w, b in zip((x, memory, memory), weights, biases, strict=True)
    )
    at = distances(x.shape[1], memory.shape[1], q_offset)
    out, _ = plain(layer.position, q, k, v, at, visible(at), hidden=x)
    return layer.out_proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("name", [*MADE, "sum"])
def test_a_layer(name, kv_heads):
    layer = layer_with(name, num_kv_heads=kv_heads)
    x, memory = (numbers(n, 2, length, WIDTH).requires_grad_() for n, length in ((1, 7), (2, 11)))
    for causal in (False, True):
        got, _ = layer(x, memory, memory, position=of_call(layer, x), q_offset=4, is_causal=causal)
        want = dense(layer, x, memory, lambda at, causal=causal: at <= 0 if causal else at < 99, 4)
        torch.testing.assert_close(got, want, **DOUBLE)
        seed = numbers(5, *got.shape)
        leaves = [x, memory, *layer.parameters()]
        pairs = zip(
            gradients((got * seed).sum(), leaves),
            gradients((want * seed).sum(), leaves),
            strict=True,
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other, **DOUBLE)


@pytest.mark.parametrize("name", [*MADE, "sum"])
def test_decoding_with_a_cache(name):
    layer, cache = layer_with(name), relpos.KVCache()
    x = numbers(1, 2, 40, WIDTH)
    with torch.no_grad():
        whole = dense(layer, x, x, lambda at: at <= 0)
        for start in range(0, 40, 1):
            token = x[:, start : start + 1]
            got, _ = layer(
                token, token, token, position=of_call(layer, token), is_causal=True, cache=cache
            )
            torch.testing.assert_close(got, whole[:, start : start + 1], **DOUBLE)


def test_nested_tensors():
    layer = layer_with("shaw").eval()
    rows = [numbers(n, length, WIDTH) for n, length in ((1, 5), (2, 9))]
    with torch.no_grad():
        got, _ = layer(*3 * [torch.nested.nested_tensor(rows)])
        for one, row in zip(got.unbind(), rows, strict=True):
            want = dense(layer, row[None], row[None], lambda at: at < 99)[0]
            torch.testing.assert_close(one, want, **DOUBLE)
    inputs = layer_with("gated").eval()
    with pytest.raises(ValueError, match=r"Gated called with hidden"), torch.no_grad():
        inputs(*3 * [torch.nested.nested_tensor(rows)])


def test_an_encoder():
    """torch's own modules around the layer, with padding, as nested tensors and as plain ones."""
    base = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True, dtype=torch.float64)
    base.self_attn = layer_with("kerple")
    encoder = nn.TransformerEncoder(base, 2, enable_nested_tensor=True).eval()
    x = numbers(1, 2, 9, WIDTH)
    padding = torch.arange(9) >= torch.tensor([[9], [6]])
    with torch.no_grad():
        got = encoder(x, src_key_padding_mask=padding)
        short = encoder(x[1:, :6])
    torch.testing.assert_close(got[1, :6], short[0], **DOUBLE)


@pytest.mark.parametrize("name", [*MADE, "sum"])
def test_state_copies_and_pickles(name):
    layer = layer_with(name)
    parameters = dict(layer.position.named_parameters())
    held = {n for n in layer.state_dict() if n.startswith("position.")}
    assert held == {f"position.{n}" for n in parameters}
    x = numbers(1, 2, 6, WIDTH)

    def run(which):
        with torch.no_grad():
            return which(x, x, x, position=of_call(which, x), is_causal=True)[0]

    want = run(layer)
    others = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer_with(name)]
    with torch.no_grad():
        for parameter in others[-1].parameters():
            parameter.zero_()
    others[-1].load_state_dict(layer.state_dict())
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    others.append(torch.load(buffer, weights_only=False))
    for other in others:
        torch.testing.assert_close(run(other), want, rtol=0, atol=0)
    for parameter in others[0].position.parameters():
        parameter.data.mul_(2.0)
    assert not torch.equal(run(others[0]), want)  # a copy has tables of its own
    torch.testing.assert_close(run(layer), want, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "heads", "kv_heads", "message"),
    [
        (Kerple, 2, 2, r"Kerple.bias: expected \[2, 3\] or \[1, 3\].*got \[4, 3\]"),
        (Shaw, 2, 2, r"Shaw.rows: expected \[13, 16\].*got \[13, 8\]"),
        (KeyGated, 8, 8, r"KeyGated.bias: expected \[8, 3\]"),
        (Picture, 8, 8, r"Picture.bias: expected .*8, 5, 7"),
    ],
)
def test_heads_are_checked_when_the_layer_is_made(make, heads, kv_heads, message):
    with pytest.raises(ValueError, match=message):
        relpos.nn.MultiheadAttention(
            WIDTH, heads, num_kv_heads=kv_heads, position=[relpos.ALiBi(heads), drawn(make)]
        )


class Terms(relpos.Position):
    """A slope of each head, and a sink."""

    def __init__(self, heads):
        super().__init__()
        self.slopes, self.sinks = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.rand(heads))

    def terms(self, distance):
        return [relpos.terms.Slopes(self.slopes), relpos.terms.Sink(self.sinks)]


def test_heads_of_terms_are_checked():
    relpos.nn.MultiheadAttention(WIDTH, HEADS, position=Terms(HEADS))
    with pytest.raises(ValueError, match=r"expected \[4\], got \[2\]"):
        relpos.nn.MultiheadAttention(WIDTH, HEADS, position=Terms(2))


def projected(layer, x):
    widths = (WIDTH, *2 * [layer.num_kv_heads * DIM])
    both = zip(layer.in_proj_weight.split(widths), layer.in_proj_bias.split(widths), strict=True)
    return [(x @ w.mT + b).unflatten(-1, (-1, DIM)).transpose(1, 2) for w, b in both]


def agrees(layer, x, own, q, k, v, bias=0.0, **call):
    """The layer, with gradients of its parameters and of `own`, is softmax over these q and k."""
    out = naive(q, k, v, bias).out.transpose(1, 2).flatten(2)
    want, got = layer.out_proj(out), layer(x, x, x, **call)[0]
    close_with_gradients(got, want, [x, *layer.parameters(), *own])


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("where", ["layer", "call"])
def test_rotary_tables_of_each_key_head(where, kv_heads):
    """A term that asks for the head size of a call, in the layer and with a call."""
    x = numbers(1, 2, 7, WIDTH).requires_grad_()
    tables = [numbers(n, 2, kv_heads, 7, DIM // 2).requires_grad_() for n in range(4)]
    term = relpos.terms.RotaryTables(*tables, layout="half")
    torch.manual_seed(4)
    sizes = {"num_kv_heads": kv_heads, "batch_first": True, "dtype": torch.float64}
    if where == "layer":
        sizes["position"] = term
    layer = relpos.nn.MultiheadAttention(WIDTH, HEADS, **sizes)

    def turned(x, cos, sin):
        cos, sin = (t.repeat_interleave(x.shape[1] // kv_heads, 1) for t in (cos, sin))
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    q, k, v = projected(layer, x)
    call = {} if where == "layer" else {"position": term}
    agrees(layer, x, tables, turned(q, *tables[:2]), turned(k, *tables[2:]), v, **call)
    # Beside a position of distances, in one call.
    distance = distances(7, 7, 0)
    slopes = numbers(8, HEADS).requires_grad_()
    call = {"position": term + relpos.terms.Slopes(slopes, -slopes)}
    bias = slopes[:, None, None] * (distance.clamp(max=0) - distance.clamp(min=0))
    q, k = turned(q, *tables[:2]), turned(k, *tables[2:])
    agrees(layer, x, [*tables, slopes], q, k, v, bias, **call)
    other = relpos.nn.MultiheadAttention(
        WIDTH, HEADS, **sizes | {"num_kv_heads": 1, "position": None}
    )
    with pytest.raises(ValueError, match=f"made with kv_heads={kv_heads}, the call has 1"):
        other(x, x, x, position=term)


def test_biases_of_keys_of_a_score_mod():
    """Which become a KeyBias of the keys of each call; alone in the layer, and with a call."""
    of_keys, by_distance = (numbers(n, HEADS, 30).requires_grad_() for n in (1, 2))

    def keys(score, b, h, q_idx, kv_idx):
        return score + of_keys[h, kv_idx]

    def both(score, b, h, q_idx, kv_idx):
        return keys(score, b, h, q_idx, kv_idx) + by_distance[h, kv_idx - q_idx + 15]

    torch.manual_seed(4)
    sizes = {"batch_first": True, "dtype": torch.float64}
    position, summed = (
        relpos.from_score_mod(score_mod, HEADS, dtype=torch.float64).options["position"]
        for score_mod in (keys, both)
    )
    for length in (7, 11):
        x = numbers(3, 2, length, WIDTH).requires_grad_()
        layer = relpos.nn.MultiheadAttention(WIDTH, HEADS, position=position, **sizes)
        bias = of_keys[:, None, :length]
        agrees(layer, x, [of_keys], *projected(layer, x), bias)
        bias = bias + by_distance[:, distances(length, length, 0) + 15]
        agrees(layer, x, [of_keys, by_distance], *projected(layer, x), bias, position=summed)
    with pytest.raises(ValueError, match=r"key_bias: .*expected \[2, 11\].*got \[4, 11\]"):
        relpos.nn.MultiheadAttention(WIDTH, 2, position=position, **sizes)(x, x, x)
    with pytest.raises(TypeError, match="positions that are modules, got ScoreModKeys: add it by"):
        relpos.nn.MultiheadAttention(WIDTH, HEADS, position=summed, **sizes)


def test_a_layer_on_the_meta_device():
    with torch.device("meta"):
        layer = relpos.nn.MultiheadAttention(WIDTH, HEADS, position=Kerple())
        with pytest.raises(ValueError, match=r"Kerple.bias"):
            relpos.nn.MultiheadAttention(WIDTH, HEADS, position=Kerple(HEADS - 1))
    assert layer.position.p.is_meta


def test_inputs_are_asked_for():
    layer, x = layer_with("gated"), numbers(1, 2, 6, WIDTH)
    with pytest.raises(ValueError, match="expected Gated called with hidden"):
        layer(x, x, x)
    with pytest.raises(ValueError, match="hidden"):
        layer.position(x, hidden=x)


def test_from_torch():
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    layer = relpos.nn.MultiheadAttention.from_torch(theirs, position=drawn(Kerple))
    x = numbers(1, 2, 6, WIDTH)
    torch.testing.assert_close(layer(x, x, x)[0], dense(layer, x, x, lambda at: at < 99), **DOUBLE)
