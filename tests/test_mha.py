"""relpos.nn.MultiheadAttention against the notebook's module, torch's module, torch's encoder."""

import copy
import warnings

import pytest
import relpos
import torch
from near import close, close_to_largest
from torch import nn

pytestmark = pytest.mark.peers


class NotebookAttention(nn.Module):
    """The last notebook's MultiheadAttentionWithBiasRPE, in meaning."""

    def __init__(self, embed_dim, num_heads, dropout, r_max):
        super().__init__()
        self.h, self.d = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.biases = nn.Parameter(torch.zeros(num_heads, 2 * r_max - 1))

    def gather_biases(self, queries, keys):
        r_max = (self.biases.shape[1] + 1) // 2
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        return self.biases[:, distance.clamp(-r_max + 1, r_max - 1) + r_max - 1]

    def split_heads(self, x):
        return x.view(x.size(0), x.size(1), self.h, self.d).transpose(1, 2)

    def forward(self, query, key, value):
        q, k = self.split_heads(self.q_proj(query)), self.split_heads(self.k_proj(key))
        v = self.split_heads(self.v_proj(value))
        scores = q @ k.transpose(2, 3) / self.d**0.5
        scores = scores + self.gather_biases(query.size(-2), key.size(-2))
        weights = self.dropout(scores.softmax(dim=-1))
        heads = (weights @ v).transpose(1, 2)
        return self.out_proj(heads.reshape(*heads.shape[:2], -1)), weights


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


def notebook_pair(embed_dim, heads, r_max, dropout=0.1):
    theirs = NotebookAttention(embed_dim, heads, dropout, r_max).eval()
    with torch.no_grad():
        theirs.biases.normal_()
    ours = relpos.nn.MultiheadAttention(
        embed_dim, heads, dropout, position=relpos.BiasRPE(heads, r_max), batch_first=True
    ).eval()
    ours.load_state_dict(from_notebook(theirs.state_dict()))
    return theirs, ours


def test_the_notebooks_cell():
    torch.manual_seed(42)
    query = torch.randn(32, 700, 512)
    key, value = torch.randn(32, 800, 512), torch.randn(32, 800, 512)
    theirs, ours = notebook_pair(512, 8, 512)
    with torch.no_grad():
        call = {"q_offset": 0, "need_weights": True, "average_attn_weights": False}
        got, got_weights = ours(query, key, value, **call)
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


def test_an_offset_must_be_said():
    module = relpos.nn.MultiheadAttention(16, 2, position=relpos.BiasRPE(2, 4), batch_first=True)
    with pytest.raises(ValueError, match=r"q_offset = Lk - Lq.*q_offset = 0"):
        module(torch.randn(1, 3, 16), *[torch.randn(1, 5, 16)] * 2)


def torch_pair(**options):
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True, **options).double()
    ours = relpos.nn.MultiheadAttention(16, 4, batch_first=True, **options).double()
    if theirs.in_proj_bias is not None:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [{}, {"kdim": 6, "vdim": 10}])
@pytest.mark.parametrize("masked", ["", "padding", "bool", "float", "per head", "both"])
def test_parity_with_torch(bias, dims, masked):
    theirs, ours = torch_pair(bias=bias, **dims)
    query = torch.randn(3, 5, 16).double()
    key = torch.randn(3, 7, dims.get("kdim", 16)).double()
    value = torch.randn(3, 7, dims.get("vdim", 16)).double()
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True
    blocked = torch.rand(5, 7) < 0.3
    blocked[:, 0] = False
    extra = {
        "": {},
        "padding": {"key_padding_mask": padding},
        "bool": {"attn_mask": blocked},
        "float": {"attn_mask": torch.randn(5, 7).double()},
        "per head": {"attn_mask": torch.randn(12, 5, 7).double()},
        "both": {
            "key_padding_mask": torch.zeros(3, 7).double().masked_fill(padding, -torch.inf),
            "attn_mask": torch.zeros(5, 7).double().masked_fill(blocked, -torch.inf),
        },
    }[masked]
    for average in (True, False):
        want, want_weights = theirs(
            query, key, value, need_weights=True, average_attn_weights=average, **extra
        )
        got, got_weights = ours(
            query, key, value, need_weights=True, average_attn_weights=average, **extra
        )
        close(got, want)
        close(got_weights, want_weights)
    theirs(query, key, value, **extra)[0].square().sum().backward()
    ours(query, key, value, **extra)[0].square().sum().backward()
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        close(a.grad, b.grad, what=name)


def test_a_finite_floating_padding_mask_is_added():
    theirs, ours = torch_pair()
    x = torch.randn(2, 5, 16).double()
    padding = torch.randn(2, 5).double()
    padding[0, 3] = -torch.inf
    for mask in (None, torch.randn(5, 5).double(), torch.eye(5).roll(1, 0) > 0):
        if mask is not None and mask.dtype == torch.bool:
            canonical = torch.zeros(5, 5).double().masked_fill(mask, -torch.inf)
            want, _ = theirs(x, x, x, attn_mask=canonical, key_padding_mask=padding)
        else:
            want, _ = theirs(x, x, x, attn_mask=mask, key_padding_mask=padding)
        got, _ = ours(x, x, x, attn_mask=mask, key_padding_mask=padding)
        close(got, want)


def test_layouts():
    _, ours = torch_pair()
    x = torch.randn(3, 5, 16).double()
    call = {"need_weights": True, "average_attn_weights": False}
    want, weights = ours(x, x, x, **call)
    sequence_first = relpos.nn.MultiheadAttention(16, 4).double()
    sequence_first.load_state_dict(ours.state_dict())
    got, _ = sequence_first(*[x.transpose(0, 1)] * 3)
    close(got.transpose(0, 1), want)
    padding = torch.tensor([False] * 4 + [True])
    for module in (ours, sequence_first):
        got, got_weights = module(x[1], x[1], x[1], **call)
        close(got, want[1])
        close(got_weights, weights[1])
        padded, _ = module(x[1], x[1], x[1], key_padding_mask=padding)
        shorter, _ = module(x[1], x[1, :4], x[1, :4])
        close(padded, shorter)


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


def encoder(position, heads=4, **options):
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(16, heads, 32, dropout=0.1, batch_first=True, **options)
    model = nn.TransformerEncoder(layer, 2)
    for block in model.layers:
        ours = relpos.nn.MultiheadAttention(
            16, heads, dropout=0.1, position=position, batch_first=True
        )
        ours.load_state_dict(block.self_attn.state_dict(), strict=position is None)
        block.self_attn = ours
    return model


def composed(model, x, **masks):
    """The encoder's formula, a layer at a time, from its parts."""
    for block in model.layers:
        attended = block.self_attn(x, x, x, **masks)[0]
        if block.norm_first:
            y = block.norm1(x)
            x = x + block.self_attn(y, y, y, **masks)[0]
            x = x + block.linear2(block.activation(block.linear1(block.norm2(x))))
        else:
            x = block.norm1(x + attended)
            x = block.norm2(x + block.linear2(block.activation(block.linear1(x))))
    return x


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


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.usefixtures("fast_path_raises")
def test_inside_the_encoder_in_eval_without_grad(norm_first, activation):
    torch.manual_seed(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = encoder(biased(), norm_first=norm_first, activation=activation).double().eval()
        plain = encoder(None, norm_first=norm_first, activation=activation).double().eval()
    x = torch.randn(3, 7, 16).double()
    for no_grad in (torch.no_grad, torch.inference_mode):
        with no_grad():
            got = model(x)
            close(got, composed(model, x))
            assert not torch.allclose(got, plain(x), atol=1e-2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.usefixtures("fast_path_raises")
def test_inside_the_encoder_with_masks():
    # Swapped in after TransformerEncoder chose nested tensors.
    model = encoder(biased()).double().eval()
    x = torch.randn(3, 7, 16).double()
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[0, 4:] = True
    padding[2, 6:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.double)
    with torch.no_grad():
        got = model(x, src_key_padding_mask=padding)
        want = composed(model, x, key_padding_mask=padding)
        close(got[~padding], want[~padding])
        close(model(x, mask=causal, is_causal=True), composed(model, x, is_causal=True))
        close(model(x, mask=causal), composed(model, x, is_causal=True))
    model.train()
    model(x, src_key_padding_mask=padding).sum().backward()
    assert model.layers[0].self_attn.position.biases.grad.abs().sum() > 0


@pytest.mark.usefixtures("fast_path_raises")
def test_an_encoder_built_from_a_layer_with_positions():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    layer.self_attn = relpos.nn.MultiheadAttention(16, 4, position=biased(), batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    x = torch.randn(2, 5, 16).double()
    with torch.no_grad():
        close(model(x), composed(model, x))
    tables = [block.self_attn.position.biases for block in model.layers]
    assert tables[0] is not tables[1]


def test_inside_the_decoder():
    layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    theirs = copy.deepcopy(layer)
    for name in ("self_attn", "multihead_attn"):
        ours = relpos.nn.MultiheadAttention(16, 4, batch_first=True).double()
        ours.load_state_dict(getattr(layer, name).state_dict())
        setattr(layer, name, ours)
    x, memory = torch.randn(2, 5, 16).double(), torch.randn(2, 8, 16).double()
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.double)
    want = theirs(x, memory, tgt_mask=mask, tgt_is_causal=True)
    close(layer(x, memory, tgt_mask=mask, tgt_is_causal=True), want)


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
    inputs = [
        torch.randn(3, 3, width).double()
        for width in (16, options.get("kdim", 16), options.get("vdim", 16))
    ]
    close(ours(*inputs)[0], theirs(*inputs)[0])
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert not torch.allclose(ours(*inputs)[0], theirs(*inputs)[0])
    theirs.load_state_dict(ours.state_dict())
    close(ours(*inputs)[0], theirs(*inputs)[0])


def test_from_torch_with_a_position():
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    position = biased().double()
    ours = relpos.nn.MultiheadAttention.from_torch(theirs, position=position)
    assert ours.position is position
    x = torch.randn(2, 5, 16).double()
    assert not torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-3)
    bias = position.dense(5, 5).expand(2, -1, -1, -1).flatten(0, 1)
    close(ours(x, x, x)[0], theirs(x, x, x, attn_mask=bias)[0])
    state = {n: p for n, p in ours.state_dict().items() if not n.startswith("position.")}
    theirs.load_state_dict(state)


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
    torch.manual_seed(7)
    position = biased()
    ours = relpos.nn.MultiheadAttention(16, 4, position=position, batch_first=True).double()
    query, memory = torch.randn(2, 3, 16).double(), torch.randn(2, 8, 16).double()
    blocked = torch.rand(3, 8) < 0.2
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, 6:] = True
    masks = {"attn_mask": blocked, "key_padding_mask": padding, "is_causal": True}
    got, weights = ours(
        query, memory, memory, q_offset=5, need_weights=True, average_attn_weights=True, **masks
    )
    bias = position.dense(3, 8, q_offset=5)
    future = torch.arange(8) > torch.arange(3)[:, None] + 5
    bias = bias.masked_fill(blocked | future, -torch.inf).expand(2, -1, -1, -1).flatten(0, 1)
    plain = relpos.nn.MultiheadAttention(16, 4, batch_first=True).double()
    plain.load_state_dict({n: p for n, p in ours.state_dict().items() if "position" not in n})
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    theirs.load_state_dict(plain.state_dict())
    floating = torch.zeros(2, 8).double().masked_fill(padding, -torch.inf)
    want, want_weights = theirs(query, memory, memory, floating, True, bias)
    close(got, want)
    close(weights, want_weights)


def test_autocast_leaves_the_position_in_float32():
    ours = relpos.nn.MultiheadAttention(16, 4, position=biased())
    x = torch.randn(2, 5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = ours(x, x, x)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert {p.grad.dtype for p in ours.parameters()} == {torch.float32}
    torch.testing.assert_close(out.float(), ours(x, x, x)[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((16, 3), {}, "embed_dim: expected a multiple of num_heads 3, got 16"),
        ((16, 4), {"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads 4, got 3"),
    ],
)
def test_bad_sizes(arguments, options, text):
    with pytest.raises(ValueError, match=text):
        relpos.nn.MultiheadAttention(*arguments, **options)


def test_bad_inputs():
    module = relpos.nn.MultiheadAttention(16, 4, kdim=6, batch_first=True)
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 6)
    with pytest.raises(ValueError, match="key: expected 6 features, got 16"):
        module(x, x, x)
    with pytest.raises(ValueError, match="query: expected rank 3"):
        module(x[None], memory, torch.randn(2, 7, 16))
    with pytest.raises(ValueError, match="attn_mask: expected"):
        module(x, memory, torch.randn(2, 7, 16), attn_mask=torch.zeros(3, 5, 7))
