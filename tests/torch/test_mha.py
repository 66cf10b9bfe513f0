"""relpos.nn.MultiheadAttention against the notebook and torch, alone and in an encoder: a call
means the same there, or raises."""

import copy
import inspect

import pytest
import relpos
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.near import close, close_to_largest
from tests.support.oracle import naive

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

APART = {"need_weights": True, "average_attn_weights": False}


class NotebookAttention(nn.Module):
    """The last notebook's MultiheadAttentionWithBiasRPE, in meaning."""

    def __init__(self, embed_dim, num_heads, r_max):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.biases = nn.Parameter(torch.zeros(num_heads, 2 * r_max - 1))

    def forward(self, query, key, value):
        projected = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = (x.unflatten(2, (self.h, -1)).transpose(1, 2) for x in projected)
        most = self.biases.shape[1] // 2
        distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        found = naive(q, k, v, self.biases[:, distance.clamp(-most, most) + most])
        return self.out_proj(found.out.transpose(1, 2).flatten(2)), found.weights


def from_notebook(state):
    """The notebook's parameter names -> ours (docs/notebooks.md has the same table)."""
    projections = ("q_proj", "k_proj", "v_proj")
    return {
        "in_proj_weight": torch.cat([state[f"{name}.weight"] for name in projections]),
        "in_proj_bias": torch.cat([state[f"{name}.bias"] for name in projections]),
        "out_proj.weight": state["out_proj.weight"],
        "out_proj.bias": state["out_proj.bias"],
        "position.biases": state["biases"],
    }


def notebook_pair(embed_dim, heads, r_max):
    theirs = NotebookAttention(embed_dim, heads, r_max)
    with torch.no_grad():
        theirs.biases.normal_()
    ours = relpos.nn.MultiheadAttention(
        embed_dim, heads, position=relpos.BiasRPE(heads, r_max), batch_first=True
    )
    ours.load_state_dict(from_notebook(theirs.state_dict()))
    return theirs, ours


def test_the_notebooks_cell():
    torch.manual_seed(42)
    query = torch.randn(32, 700, 512)
    key, value = torch.randn(32, 800, 512), torch.randn(32, 800, 512)
    theirs, ours = notebook_pair(512, 8, 512)
    with torch.no_grad():
        got, got_weights = ours(query, key, value, q_offset=0, **APART)
        rows = [0, 17, 31]  # theirs takes seconds for all
        want, want_weights = theirs.double()(*(x[rows].double() for x in (query, key, value)))
    assert got.shape == (32, 700, 512)
    assert got_weights.shape == (32, 8, 700, 800)
    # Around the attention are two float32 products of 512 numbers: sqrt(512) roundings of 2^-24.
    close(got[rows].double(), want, 1e-5)
    close_to_largest(got_weights[rows].double(), want_weights, 1e-5)


def test_the_notebooks_module_trains_alike():
    torch.manual_seed(0)
    theirs, ours = (m.double() for m in notebook_pair(32, 4, 8))
    query, memory = torch.randn(2, 9, 32).double(), torch.randn(2, 13, 32).double()
    theirs(query, memory, memory)[0].square().sum().backward()
    ours(query, memory, memory, q_offset=0)[0].square().sum().backward()
    want = from_notebook({name: p.grad for name, p in theirs.named_parameters()})
    got = {name: p.grad for name, p in ours.named_parameters()}
    assert got.keys() == want.keys()
    for name, gradient in got.items():
        close(gradient, want[name], what=name)


def pair(heads=4, **options):
    """torch's module and ours, of the same arguments and weights."""
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(16, heads, **options).double()
    ours = relpos.nn.MultiheadAttention(16, heads, **options).double()
    if theirs.in_proj_bias is not None:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def as_floats(mask):
    return torch.zeros(mask.shape).double().masked_fill(mask, -torch.inf)


PADDING, BLOCKED = torch.zeros(3, 7, dtype=torch.bool), drawn(5, 7) < -0.5
PADDING[1, 5:], BLOCKED[:, 0] = True, False
MASKED = {
    "nothing": {},
    "padding": {"key_padding_mask": PADDING},
    "bool": {"attn_mask": BLOCKED},
    "float": {"attn_mask": drawn(5, 7)},
    "per head": {"attn_mask": drawn(12, 5, 7)},
    "both": {"key_padding_mask": as_floats(PADDING), "attn_mask": as_floats(BLOCKED)},
    "finite padding": {"key_padding_mask": drawn(3, 7)},
    "finite padding, float": {"key_padding_mask": drawn(3, 7), "attn_mask": drawn(5, 7)},
    "any padding, bool": {
        "key_padding_mask": drawn(3, 7).masked_fill(PADDING, -torch.inf),
        "attn_mask": BLOCKED,
    },
}


@pytest.mark.parametrize("layout", ["batch first", "sequence first", "unbatched"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [{}, {"kdim": 6, "vdim": 10}])
@pytest.mark.parametrize("masked", MASKED)
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")
def test_parity_with_torch(layout, bias, dims, masked):
    theirs, ours = pair(bias=bias, **dims, **{"batch_first": True} if "batch" in layout else {})
    extra = MASKED[masked]
    inputs = [drawn(3, 5, 16), drawn(3, 7, dims.get("kdim", 16)), drawn(3, 7, dims.get("vdim", 16))]
    if layout == "unbatched":
        inputs = [x[1] for x in inputs]
        rows = {"key_padding_mask": 1, "attn_mask": slice(4, 8) if masked == "per head" else ...}
        extra = {name: x[rows[name]] for name, x in extra.items()}
    elif layout == "sequence first":
        inputs = [x.transpose(0, 1) for x in inputs]
    for average in (True, False):
        wanted = {"need_weights": True, "average_attn_weights": average}
        close(*(module(*inputs, **wanted, **extra) for module in (ours, theirs)))
    got, want = (module(*inputs, **extra)[0] for module in (ours, theirs))
    assert got.view(-1, 16).shape[0] == got.numel() // 16
    close(
        torch.autograd.grad(got.square().sum(), list(ours.parameters())),
        torch.autograd.grad(want.square().sum(), list(theirs.parameters())),
    )


def test_grouped_heads():
    torch.manual_seed(2)
    ours = relpos.nn.MultiheadAttention(16, 4, num_kv_heads=2).double()
    assert ours.in_proj_weight.shape == (16 + 8 + 8, 16)
    full = relpos.nn.MultiheadAttention(16, 4).double()
    weights = ours.in_proj_weight.split((16, 8, 8))
    repeated = [w.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for w in weights[1:]]
    state = ours.state_dict() | {
        "in_proj_weight": torch.cat([weights[0], *repeated]),
        "in_proj_bias": torch.zeros(48).double(),
    }
    full.load_state_dict(state)
    x = torch.randn(2, 6, 16).double()
    close(ours(x, x, x)[0], full(x, x, x)[0])


def test_dropout_only_in_training():
    ours = relpos.nn.MultiheadAttention(16, 4, dropout=0.5)
    x = torch.randn(2, 6, 16)
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    ours.eval()
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    _, weights = ours.train()(x, x, x, need_weights=True, average_attn_weights=False)
    assert (weights == 0).any()


def biased():
    position = relpos.BiasRPE(4, 6)
    with torch.no_grad():
        position.biases.normal_(std=2.0)
    return position


@pytest.fixture
def fast_path_raises(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("torch took its fast path, which knows no positions")

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", refuse)
    monkeypatch.setattr(torch, "_native_multi_head_attention", refuse)


CAUSAL = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.double)
OF_ENCODER = {
    "nothing": {},
    "padding": {"src_key_padding_mask": PADDING},
    "causal mask": {"mask": CAUSAL},
    "causal": {"mask": CAUSAL, "is_causal": True},
}


@pytest.mark.parametrize("masked", OF_ENCODER)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.usefixtures("fast_path_raises")
def test_inside_the_encoder(masked, norm_first, activation):
    """torch's own encoder, which takes the bias for a mask, not on its fast path; relpos's
    attention is swapped in after TransformerEncoder chose nested tensors."""
    torch.manual_seed(3)
    options = {"norm_first": norm_first, "activation": activation, "batch_first": True}
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, **options), 2)
    theirs = theirs.double().eval()
    ours, position = copy.deepcopy(theirs), biased().double()
    for block in ours.layers:
        own = relpos.nn.MultiheadAttention.from_torch(block.self_attn, position=position)
        block.self_attn = own
    bias = position.dense(7, 7).detach()
    x, masks = drawn(3, 7, 16), OF_ENCODER[masked]
    seen = ~masks.get("src_key_padding_mask", torch.zeros(3, 7, dtype=torch.bool))
    mask = (bias + masks.get("mask", 0.0)).expand(3, -1, -1, -1).flatten(0, 1)
    want = theirs(x, mask=mask, src_key_padding_mask=as_floats(~seen))
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            close(ours(x, **masks)[seen], want[seen])
    ours.train()(x, **masks).square().sum().backward()
    assert ours.layers[0].self_attn.position.biases.grad.abs().sum() > 0


@pytest.mark.usefixtures("fast_path_raises")
def test_an_encoder_built_from_a_layer_with_positions():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    layer.self_attn = relpos.nn.MultiheadAttention(16, 4, position=biased(), batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    want = model(drawn(2, 5, 16))
    with torch.no_grad():
        close(model(drawn(2, 5, 16)), want)


def test_inside_the_decoder():
    layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    ours = copy.deepcopy(layer)
    for name in ("self_attn", "multihead_attn"):
        own = relpos.nn.MultiheadAttention.from_torch(getattr(layer, name))
        setattr(ours, name, own)
    given = {"tgt": drawn(2, 7, 16), "memory": drawn(2, 8, 16)}
    close(*(each(**given, tgt_mask=CAUSAL, tgt_is_causal=True) for each in (ours, layer)))


def test_initialisation_is_that_of_torch():
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(16, 4)
    torch.manual_seed(5)
    ours = relpos.nn.MultiheadAttention(16, 4)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 10}, {"bias": False}])
@pytest.mark.parametrize("batch_first", [True, False])
def test_weights_go_both_ways(options, batch_first):
    torch.manual_seed(6)
    theirs = nn.MultiheadAttention(16, 4, dropout=0.25, batch_first=batch_first, **options)
    theirs = theirs.double().eval()
    ours = relpos.nn.MultiheadAttention.from_torch(theirs)
    assert (ours.training, ours.dropout, ours.out_proj.weight.dtype) == (False, 0.25, torch.double)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    inputs = [drawn(3, 3, n) for n in (16, options.get("kdim", 16), options.get("vdim", 16))]
    close(ours(*inputs)[0], theirs(*inputs)[0])
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert not torch.allclose(ours(*inputs)[0], theirs(*inputs)[0])
    theirs.load_state_dict(ours.state_dict())
    close(ours(*inputs)[0], theirs(*inputs)[0])


def test_keys_outside_the_sequence_are_refused():
    for option in ("add_bias_kv", "add_zero_attn"):
        theirs = nn.MultiheadAttention(16, 4, **{option: True})
        with pytest.raises(ValueError, match=f"{option}: expected False"):
            relpos.nn.MultiheadAttention.from_torch(theirs)
    theirs = nn.Sequential(nn.MultiheadAttention(16, 4, add_bias_kv=True))
    ours = nn.Sequential(relpos.nn.MultiheadAttention(16, 4))
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"0.bias_k: of add_bias_kv; relpos has no keys"):
            ours.load_state_dict(theirs.state_dict(), strict=strict)


def test_cross_attention_with_a_position():
    """Queries that follow a memory: distances count from the memory's end."""
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    position = biased().double()
    ours = relpos.nn.MultiheadAttention.from_torch(theirs, position=position)
    assert ours.position is position
    query, memory = drawn(2, 3, 16), drawn(2, 8, 16)
    blocked = drawn(3, 8) < -0.8
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, 6:] = True
    masks = {"attn_mask": blocked, "key_padding_mask": padding, "is_causal": True}
    averaged = {"need_weights": True, "average_attn_weights": True}
    got = ours(query, memory, memory, q_offset=5, **averaged, **masks)
    bias = position.dense(3, 8, q_offset=5)
    future = torch.arange(8) > torch.arange(3)[:, None] + 5
    bias = bias.masked_fill(blocked | future, -torch.inf).expand(2, -1, -1, -1).flatten(0, 1)
    close(got, theirs(query, memory, memory, as_floats(padding), True, bias))
    state = {n: p for n, p in ours.state_dict().items() if not n.startswith("position.")}
    theirs.load_state_dict(state)


def test_autocast_leaves_the_position_in_float32():
    ours = relpos.nn.MultiheadAttention(16, 4, position=biased())
    x = torch.randn(2, 5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = ours(x, x, x)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert {p.grad.dtype for p in ours.parameters()} == {torch.float32}
    torch.testing.assert_close(out.float(), ours(x, x, x)[0], rtol=0.05, atol=0.05)


FUTURE = torch.ones(5, 5, dtype=torch.bool).triu(1)
X, MEMORY, VALUES = torch.randn(2, 5, 16), torch.randn(2, 7, 6), torch.randn(2, 7, 16)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda _: relpos.nn.MultiheadAttention(16, 3),
            "embed_dim: expected a multiple of num_heads 3, got 16",
        ),
        (
            lambda _: relpos.nn.MultiheadAttention(16, 4, num_kv_heads=3),
            "num_kv_heads: expected a divisor of num_heads 4, got 3",
        ),
        (lambda module: module(X, X, X), "key: expected 6 features, got 16"),
        (lambda module: module(X[None], MEMORY, VALUES), "query: expected rank 3"),
        (
            lambda module: module(X, MEMORY, VALUES, attn_mask=torch.zeros(3, 5, 7)),
            "attn_mask: expected",
        ),
        (lambda module: module(X[:1], MEMORY, VALUES), "expected"),
        (lambda module: module(X, MEMORY[:1], VALUES[:1]), "expected"),
        (lambda module: module(X, MEMORY, VALUES[:1]), "expected"),
    ],
)
def test_bad_sizes_and_inputs(run, text):
    module = relpos.nn.MultiheadAttention(16, 4, kdim=6, batch_first=True)
    with pytest.raises(ValueError, match=text):
        run(module)


@pytest.mark.parametrize(
    ("function", "different"),
    [
        ("__init__", set()),
        # Weights not asked for are None, and asking for them without saying which warns.
        ("forward", {"need_weights", "average_attn_weights"}),
    ],
)
def test_defaults_are_those_of_torch(function, different):
    ours, theirs = (
        inspect.signature(getattr(module, function)).parameters
        for module in (relpos.nn.MultiheadAttention, nn.MultiheadAttention)
    )
    shared = ours.keys() & theirs.keys()
    assert {name for name in shared if ours[name].default != theirs[name].default} == different
    positional = [n for n, p in ours.items() if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert positional == list(theirs)[: len(positional)]
    if function == "forward":
        for extra in ((None,), (None, False, torch.zeros(5, 5))):
            with pytest.raises(TypeError, match="positional argument"):
                relpos.nn.MultiheadAttention(16, 4)(X, X, X, *extra)


def test_weights_are_never_another_tensor_in_silence():
    theirs, ours = pair()
    x = torch.randn(5, 3, 16).double()
    assert ours(x, x, x)[1] is None
    with pytest.warns(UserWarning, match="average_attn_weights: not given") as caught:
        _, weights = ours(x, x, x, need_weights=True)
    assert caught[0].filename == __file__
    close(weights, theirs(x, x, x, average_attn_weights=False)[1])
    _, weights = ours(x, x, x, need_weights=True, average_attn_weights=True)
    close(weights, theirs(x, x, x)[1])


@pytest.mark.parametrize("average", [False, True])
def test_a_loss_on_weights_raises(average):
    _, ours = pair()
    x = torch.randn(5, 3, 16).double()
    out, weights = ours(x, x, x, need_weights=True, average_attn_weights=average)
    with pytest.raises(RuntimeError, match="weights of MultiheadAttention have no gradient"):
        (out.sum() + weights.square().sum()).backward()
    out, weights = ours(x, x, x, need_weights=True, average_attn_weights=average)
    (out.sum() + weights.detach().square().sum()).backward()
    assert ours.in_proj_weight.grad.abs().sum() > 0
    with torch.no_grad():
        assert not ours(x, x, x, **APART)[1].requires_grad


def test_a_wrong_causal_hint_raises():
    """torch takes is_causal for a promise about attn_mask and computes one of the two."""
    theirs, ours = pair()
    x = torch.randn(5, 3, 16).double()
    blocked = torch.rand(5, 5, generator=torch.Generator().manual_seed(1)) < 0.4
    blocked.fill_diagonal_(False)
    both = blocked | FUTURE
    for wrong in (
        blocked,
        as_floats(blocked),
        torch.randn(12, 5, 5).double(),
        blocked.expand(3, 4, 5, 5),
    ):
        with pytest.raises(ValueError, match="is_causal: expected an attn_mask"):
            ours(x, x, x, attn_mask=wrong, is_causal=True)
    lowest = torch.finfo(torch.double).min
    for mask in (FUTURE, both):
        want, _ = theirs(x, x, x, attn_mask=mask)
        for least in (-torch.inf, lowest):
            said = torch.zeros(5, 5).double().masked_fill(mask, least)
            close(ours(x, x, x, attn_mask=said, is_causal=True)[0], want)
        close(ours(x, x, x, attn_mask=mask, is_causal=True)[0], want)
    want, _ = theirs(x, x, x, attn_mask=both)
    for option in ({"window": (-1, 0)}, {"is_causal": True, "q_offset": 0}):
        close(ours(x, x, x, attn_mask=blocked, **option)[0], want)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_a_wrong_causal_hint_raises_when_compiled():
    _, ours = pair()
    x = torch.randn(5, 3, 16).double()
    torch._dynamo.reset()
    run = torch.compile(ours, backend="aot_eager", fullgraph=True)
    want, _ = ours(x, x, x, is_causal=True)
    got, _ = run(x, x, x, attn_mask=FUTURE, is_causal=True)
    close(got, want)
    with pytest.raises(RuntimeError, match="is_causal: expected an attn_mask"):
        run(x, x, x, attn_mask=torch.eye(5, dtype=torch.bool), is_causal=True)


MISFITS = {
    "t5": lambda: relpos.T5Bias(3),
    "alibi": lambda: relpos.ALiBi(8),
    "bias_rpe": lambda: relpos.BiasRPE(3, 5),
    "rope": lambda: relpos.RoPE(8, layout="half"),
    "shaw dim": lambda: relpos.Shaw(4, 5),
    "shaw value dim": lambda: relpos.Shaw(4, 4, value_dim=5),
    "shaw heads": lambda: relpos.Shaw(4, 4, heads=2),
    "music dim": lambda: relpos.MusicTransformer(9, 8),
    "music heads": lambda: relpos.MusicTransformer(9, 4, heads=3),
    "sum": lambda: relpos.RoPE(4, layout="half") + relpos.T5Bias(3),
    "list": lambda: [relpos.T5Bias(4), relpos.ALiBi(2)],
    "two rotations": lambda: [relpos.RoPE(4, layout="half"), relpos.RoPE(4, layout="half")],
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_position_that_does_not_fit_is_refused_when_the_module_is_made(name):
    with pytest.raises(ValueError, match=r"heads|dim|rotation"):
        relpos.nn.MultiheadAttention(16, 4, position=MISFITS[name]())
    theirs = nn.MultiheadAttention(16, 4)
    with pytest.raises(ValueError, match=r"heads|dim|rotation"):
        relpos.nn.MultiheadAttention.from_torch(theirs, position=MISFITS[name]())


def test_a_position_that_fits_is_taken_wherever_it_lies():
    def positions():
        return [
            relpos.T5Bias(4),
            relpos.ALiBi(4),
            relpos.BiasRPE(4, 5),
            relpos.RoPE(4, layout="half"),
            relpos.Shaw(4, 4),
            relpos.Shaw(4, 4, heads=4),
            relpos.MusicTransformer(9, 4),
        ]

    for position in [None, positions(), *positions()]:
        relpos.nn.MultiheadAttention(16, 4, position=position)
        relpos.nn.MultiheadAttention(16, 4, position=position, dtype=torch.bfloat16)
    relpos.nn.MultiheadAttention(16, 4, position=relpos.T5Bias(4).double(), num_kv_heads=2)
    for mode in (torch.device("meta"), FakeTensorMode()):
        with mode:
            for position in positions()[:2]:
                relpos.nn.MultiheadAttention(16, 4, position=position)
    with pytest.raises(TypeError, match="position: expected None, a relpos position"):
        relpos.nn.MultiheadAttention(16, 4, position="t5")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_nested_tensors_would_drop_is_refused():
    _, ours = pair(batch_first=True)
    x = torch.nested.nested_tensor([torch.randn(n, 16).double() for n in (3, 5)])
    padding = torch.zeros(2, 5, dtype=torch.bool)
    with torch.no_grad():
        assert ours(x, x, x)[0].is_nested
        for name, value in (
            ("need_weights", True),
            ("key_padding_mask", padding),
            ("q_offset", 1),
            ("k_offset", 1),
            ("q_positions", torch.arange(5)),
            ("key_range", (torch.zeros(5).long(), torch.ones(5).long())),
            ("cache", relpos.KVCache()),
        ):
            with pytest.raises(ValueError, match=f"{name}: expected none with nested"):
                ours(x, x, x, **{name: value})
        _, sequence_first = pair()
        with pytest.raises(ValueError, match="query: expected no nested tensor without batch_fi"):
            sequence_first(x, x, x)


@pytest.mark.parametrize("shape", [(5,), (3, 5, 1), (5, 3), (3, 4)])
def test_a_padding_mask_of_another_shape_or_dtype_is_refused(shape):
    _, ours = pair()
    x = torch.randn(5, 3, 16).double()
    for dtype in (torch.bool, torch.double):
        with pytest.raises(ValueError, match=r"key_padding_mask|attn_mask"):
            ours(x, x, x, key_padding_mask=torch.ones(shape, dtype=dtype))
    with pytest.raises(TypeError, match="key_padding_mask: expected bool or a floating dtype"):
        ours(x, x, x, key_padding_mask=torch.zeros(3, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"key_padding_mask: expected \[Lk\]"):
        ours(x[:, 0], x[:, 0], x[:, 0], key_padding_mask=torch.zeros(1, 5, dtype=torch.bool))
