"""The Python names, their arguments and errors, and how the package behaves as a citizen."""

import inspect
import pathlib
import re

import pytest
import relpos
import torch
from relpos import _core, _stubs
from scheme_variants import HEAD_DIM, HEADS, IDS, VARIANTS, build, qkv
from torch._subclasses.fake_tensor import FakeTensorMode

ROOT = pathlib.Path(__file__).parent.parent
every_scheme = pytest.mark.parametrize(("name", "scheme", "options"), VARIANTS, ids=IDS)


# Names and metadata


def test_version_is_the_headers():
    header = (ROOT / "include/relpos/version.h").read_text()
    assert re.search(r'RELPOS_VERSION "(.*)"', header)[1] == relpos.__version__


def test_every_public_name_is_there():
    for name in relpos.__all__:
        assert getattr(relpos, name) is not None
    promised = {"attention", "scores", "skew", "rope_permute", "nn", "schemes", "show_config"}
    assert promised <= set(relpos.__all__)
    assert {scheme.class_name for scheme in relpos.schemes()} <= set(relpos.__all__)


def test_the_signatures_of_the_design():
    signatures = {
        "Shaw": "(max_distance, head_dim, *, heads=None, values=True, value_dim=None, "
        "distance='key-query', init='xavier_uniform', left=None, right=None, rows=None)",
        "MusicTransformer": "(max_length, head_dim, *, heads=None, bidirectional=False)",
        "T5Bias": "(heads, buckets=32, max_distance=128, bidirectional=True, scale=1.0)",
        "BiasRPE": "(heads, max_distance, *, right=None, symmetric=False)",
        "ALiBi": "(heads, *, slopes='paper', symmetric=True, learned=False, sides='same')",
        "RoPE": "(head_dim, *, layout, base=10000.0, rotary_dim=None, start=0, angle='double')",
    }
    for name, text in signatures.items():
        assert str(inspect.signature(getattr(relpos, name))) == text
    parameters = inspect.signature(relpos.attention).parameters
    assert list(parameters) == [
        *("query", "key", "value", "position", "attn_mask", "key_padding_mask", "dropout_p"),
        *("is_causal", "scale", "enable_gqa", "window", "q_offset", "k_offset", "q_positions"),
        *("k_positions", "key_range", "softcap", "sinks", "float32_products", "return_lse"),
        "return_weights",
    ]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[3:])


def test_stubs_name_every_scheme():
    stub = pathlib.Path(relpos.__file__).with_name("__init__.pyi").read_text()
    assert stub == _stubs.stubs()
    for scheme in relpos.schemes():
        assert f"class {scheme.class_name}(" in stub


@every_scheme
def test_classes_are_real(name, scheme, options):
    position = build(scheme, options)
    cls = type(position)
    assert cls.__module__ == "relpos"
    assert getattr(relpos, cls.__name__) is cls
    assert scheme.summary in cls.__doc__
    assert all(option.name in cls.__doc__ for option in scheme.options)
    assert inspect.signature(cls) == scheme.signature()
    assert issubclass(cls, torch.nn.Module)
    assert repr(position).startswith(scheme.class_name + "(")
    assert scheme.name in position.describe()
    described = scheme.describe(**position.scheme.describe(**options).options)
    trainable = {spec.name: spec.shape for spec in described.parameters if spec.trainable}
    assert {n: tuple(p.shape) for n, p in position.named_parameters()} == trainable
    assert set(position.state_dict()) == set(trainable)
    fixed = {spec.name for spec in described.parameters if not spec.trainable}
    assert {n for n, _ in position.named_buffers()} == fixed


@every_scheme
def test_parameters_are_drawn_from_the_default_generator(name, scheme, options):
    torch.manual_seed(11)
    first = build(scheme, options)
    torch.manual_seed(11)
    again = build(scheme, options)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == torch.float32
        assert a.requires_grad


def test_initialisations():
    torch.manual_seed(0)
    shaw = relpos.Shaw(100, 64)
    bound = (6 / (201 + 64)) ** 0.5
    assert shaw.key_table.abs().max() <= bound
    assert shaw.key_table.abs().max() > 0.95 * bound
    assert shaw.key_table.shape == shaw.value_table.shape == (201, 64)
    normal = relpos.Shaw(100, 64, init="xavier_normal").key_table
    assert abs(normal.std() / (2 / (201 + 64)) ** 0.5 - 1) < 0.05
    assert relpos.T5Bias(4).relative_attention_bias.weight.shape == (32, 4)
    assert not relpos.BiasRPE(4, 6).biases.any()
    assert relpos.BiasRPE(4, 6).biases.shape == (4, 11)
    assert relpos.MusicTransformer(7, 4, heads=3, bidirectional=True).Er.shape == (3, 13, 4)


def test_fixed_values_survive_casts_and_to_empty():
    position = relpos.ALiBi(12)
    want = torch.tensor([2 ** (-(h + 1)) for h in range(8)], dtype=torch.float64)
    assert torch.equal(position.slopes.double()[:8], want)
    odd = 2.0 ** -(0.5 * torch.arange(1, 9, 2, dtype=torch.float64))
    assert torch.equal(position.double().slopes[8:], odd)
    assert position.half().slopes.dtype == torch.float32
    assert torch.equal(position.slopes[8:], odd.float())
    moved = torch.nn.ModuleList([relpos.ALiBi(12)]).to("meta").to_empty(device="cpu")
    assert torch.equal(moved[0].slopes, position.slopes)
    assert relpos.ALiBi(12).bfloat16().slopes.dtype == torch.float32


def test_other_devices():
    with FakeTensorMode():
        query = torch.empty(1, 2, 5, 4, device="cuda")
        with pytest.raises(ValueError, match=r"query: expected a tensor on the CPU, got cuda"):
            relpos.attention(query, query, query)
    inputs = qkv()
    with torch.device("meta"):
        module = relpos.nn.MultiheadAttention(16, 2, position=relpos.ALiBi(2))
        rope = relpos.RoPE(4, layout="half")
        assert rope.tables(3)[0].device.type == "cpu"
        assert rope.indices(3, 3).device.type == "cpu"
        out = relpos.attention(*inputs, dropout_p=0.5)
        assert out.device.type == "cpu"
    assert module.position.slopes.is_meta
    with pytest.raises(ValueError, match="expected a tensor on the CPU, got meta"):
        module.position.indices(3, 3)
    module.to_empty(device="cpu")
    assert torch.equal(module.position.slopes, relpos.ALiBi(2).slopes)
    with pytest.raises(TypeError, match=r"query: expected a dense tensor, got torch\.sparse_coo"):
        relpos.attention(*[x.to_sparse() for x in qkv()])


def test_slopes_as_a_tensor():
    values = torch.tensor([0.1, 0.7], dtype=torch.float64)
    position = relpos.ALiBi(2, slopes=values)
    assert torch.equal(position.double().slopes, values)
    learned = relpos.ALiBi(2, slopes=values.tolist(), learned=True)
    assert torch.equal(learned.slopes, values.float())
    assert isinstance(learned.slopes, torch.nn.Parameter)
    with pytest.raises(ValueError, match=r"slopes: expected a tensor without requires_grad"):
        relpos.ALiBi(2, slopes=values.clone().requires_grad_())
    assert relpos.ALiBi(torch.tensor(2)).slopes.shape == (2,)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: relpos.T5Bias(), TypeError, r"T5Bias\(.*missing a required argument: 'heads'"),
        (lambda: relpos.RoPE(8), TypeError, "layout"),
        (lambda: relpos.RoPE(8, layout="halves"), ValueError, "layout.*half.*halves"),
        (lambda: relpos.RoPE(7, layout="half"), ValueError, "7"),
        (lambda: relpos.BiasRPE(4, -1), ValueError, "max_distance.*-1"),
        (lambda: relpos.BiasRPE(4, 1.5), (TypeError, ValueError), "max_distance"),
        (lambda: relpos.BiasRPE(4, object()), TypeError, "max_distance.*object"),
        (lambda: relpos.ALiBi(2, slopes=[0.5]), ValueError, "slopes.*2.*1"),
        (lambda: relpos.ALiBi(2, slopes=[0.5, float("nan")]), ValueError, "slopes.*nan"),
    ],
)
def test_bad_options(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


# Sums


def test_sums():
    t5, alibi, rope = relpos.T5Bias(2), relpos.ALiBi(2), relpos.RoPE(4, layout="half")
    sums = [t5 + alibi + rope, sum([t5, alibi, rope]), relpos.Sum(t5, [alibi, rope])]
    sums += [relpos.Sum(t5, relpos.Sum(alibi, rope)), t5 + (alibi + rope)]
    inputs = qkv()
    want = relpos.attention(*inputs, position=[t5, alibi, rope])
    for position in sums:
        assert isinstance(position, relpos.Sum)
        assert list(position.parts) == [t5, alibi, rope]
        assert torch.equal(relpos.attention(*inputs, position=position), want)
    assert len(sums[0].dense(3, 3)) == 3
    assert [m.shape for m in sums[0].indices(3, 4, q_offset=1)] == [(3, 4)] * 3
    names = [name for name, _ in sums[0].steps(3, 3)]
    assert any(name.startswith("T5Bias: ") for name in names)
    assert sums[0].describe().count("from ") >= 3
    assert torch.equal(relpos.attention(*inputs, position=[]), relpos.attention(*inputs))
    with pytest.raises(TypeError, match="position: expected None, a relpos position"):
        relpos.attention(*inputs, position=[t5, 3])
    with pytest.raises(TypeError):
        t5 + 3


def test_a_sum_of_biases_is_their_sum():
    t5, alibi = relpos.T5Bias(2), relpos.ALiBi(2)
    query, key, _ = qkv()
    plain = relpos.scores(query, key)
    got = relpos.scores(query, key, position=t5 + alibi)
    torch.testing.assert_close(got, plain + t5.dense(5, 5) + alibi.dense(5, 5))


# dense, indices, steps, rotations


@every_scheme
def test_dense_indices_and_steps(name, scheme, options):
    position = build(scheme, options)
    for queries, keys, offset in ((4, 4, None), (3, 6, 3), (3, 6, 0), (1, 1, None), (0, 0, None)):
        indices = position.indices(queries, keys, offset)
        assert indices.shape == (queries, keys)
        assert indices.dtype == torch.int64
        steps = position.steps(queries, keys, offset)
        assert len({step for step, _ in steps}) == len(steps)
        dense = position.dense(queries, keys, offset)
        if isinstance(dense, tuple):
            (cos_q, sin_q), (cos_k, sin_k) = dense
            heads = (position._rotary_heads,) if position._rotary_heads else ()
            assert cos_q.shape == sin_q.shape == (*heads, queries, position._rotary_dims)
            assert cos_k.shape == sin_k.shape == (*heads, keys, position._rotary_dims)
            if offset is not None:
                assert torch.equal(cos_q, cos_k[..., offset : offset + queries, :])
        else:
            assert queries in dense.shape
            assert dense.dtype == torch.float32
    for call in (position.dense, position.indices, position.steps):
        with pytest.raises(ValueError, match=r"q_offset = Lk - Lq.*q_offset = 0"):
            call(3, 6)


@every_scheme
def test_dense_is_what_scores_adds(name, scheme, options):
    """Slides a grid along: what dense says of (i, j) depends on the distance alone. Parameters
    that dense says nothing of are 0: vectors added to queries, a second table for keys."""
    position = build(scheme, options).double()
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.normal_()
    query, key, _ = (x.double() for x in qkv(queries=3, keys=6))
    dense = position.dense(3, 6, q_offset=2)
    parameters = list(position.parameters())
    if parameters:
        whole = dense if isinstance(dense, torch.Tensor) else dense[0][0] + dense[0][1]
        for parameter, gradient in zip(
            parameters,
            torch.autograd.grad(whole.sum(), parameters, allow_unused=True),
            strict=True,
        ):
            if gradient is None or not gradient.any():
                torch.nn.init.zeros_(parameter)
    got = relpos.scores(query, key, position=position, q_offset=2)
    if scheme.name == "xpos":
        with pytest.raises(ValueError, match="decays with the distance"):
            position.rotate(query)
        return
    if isinstance(dense, tuple):
        turned = position.rotate(query, offset=2) @ position.rotate(key).mT
        torch.testing.assert_close(got, turned / HEAD_DIM**0.5)
        return
    plain = relpos.scores(query, key)
    if dense.shape == (HEADS, 3, 6):
        torch.testing.assert_close(got, plain + dense)
    else:
        rows = dense if dense.dim() == 4 else dense[None]
        rows = rows.expand(HEADS, -1, -1, -1)
        terms = (("bhid,hijd->bhij", query), ("bhjd,hijd->bhij", key))
        term = torch.einsum(*terms[options.get("terms") == "p2c"], rows)
        if scheme.name == "relative_key" and options.get("kind") != "relative_key":
            term = term + torch.einsum(*terms[1], rows)
        scale = 1.0 if scheme.name == "decomposed" else HEAD_DIM**-0.5
        torch.testing.assert_close(got, plain + term * scale)


def test_rotary_tables_and_rotate():
    for layout in ("half", "interleaved"):
        rope = relpos.RoPE(8, layout=layout, rotary_dim=6)
        cos, sin = rope.tables(5, offset=2)
        assert cos.shape == sin.shape == (5, 6)
        assert cos.dtype == torch.float32
        angles = torch.arange(2, 7).double()[:, None] * 10000.0 ** (-torch.arange(3).double() / 3)
        spread = angles.repeat(1, 2) if layout == "half" else angles.repeat_interleave(2, 1)
        torch.testing.assert_close(cos, spread.cos().float(), rtol=0, atol=1e-7)
        wide = rope.tables(5, offset=2, dtype=torch.float64)
        torch.testing.assert_close(wide[1], spread.sin(), rtol=0, atol=1e-14)
        x = torch.randn(2, 3, 5, 8)
        assert torch.equal(rope.rotate(x, positions=torch.arange(2, 7)), rope.rotate(x, 2))
        assert torch.equal(rope.rotate(x, 2)[..., 6:], x[..., 6:])
        for shape in ((5, 8), (3, 5, 8), (2, 1, 3, 1, 5, 8)):
            part = x[: shape[0]].reshape(shape) if len(shape) > 4 else x[0, : shape[0]]
            part = x[0, 0] if len(shape) == 2 else part
            flat = rope.rotate(part.reshape(-1, 1, 5, 8), 2)
            assert torch.equal(rope.rotate(part, 2), flat.reshape(part.shape))
        with pytest.raises(ValueError, match="x: expected rank 2 or more"):
            rope.rotate(torch.randn(8))
        with pytest.raises(TypeError, match=r"x: expected a torch\.Tensor, got list"):
            rope.rotate([[1.0, 2.0]])
    assert not hasattr(relpos.ALiBi(2), "rotate")


def test_skew():
    x = torch.arange(9.0).reshape(3, 3)
    assert relpos.skew(x).tolist() == [[2, 0, 3], [4, 5, 0], [6, 7, 8]]
    assert relpos.skew(x.expand(2, 4, 3, 3)).shape == (2, 4, 3, 3)
    with pytest.raises(ValueError, match=r"x: expected \[..., L, L\], got \[3, 4\]"):
        relpos.skew(torch.zeros(3, 4))


@pytest.mark.parametrize("rotary_dim", [None, 4, 0])
def test_rope_permute(rotary_dim):
    heads, dim = 2, 8
    x = torch.randn(1, 5, 6)
    weights = [torch.randn(heads * dim, 6) for _ in range(2)]
    options = {} if rotary_dim == 0 else {"rotary_dim": rotary_dim}
    rope = {to: relpos.RoPE(dim, layout=to, **options) for to in ("half", "interleaved")}

    def scores(layout, weights):
        q, k = ((x @ w.T).unflatten(2, (heads, dim)).transpose(1, 2) for w in weights)
        position = None if rotary_dim == 0 else rope[layout]
        return relpos.scores(q, k, position=position)

    for to, other in (("half", "interleaved"), ("interleaved", "half")):
        moved = [relpos.rope_permute(w, dim, to=to, rotary_dim=rotary_dim) for w in weights]
        torch.testing.assert_close(scores(to, moved), scores(other, weights))
        back = relpos.rope_permute(moved[0], dim, to=other, rotary_dim=rotary_dim)
        assert torch.equal(back, weights[0])
    bias = torch.arange(8.0)
    assert relpos.rope_permute(bias, 8, to="half").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    with pytest.raises(ValueError, match="weight: expected rows in multiples of head_dim 5"):
        relpos.rope_permute(bias, 5, to="half")
    with pytest.raises(ValueError, match="to: expected 'half' or 'interleaved', got 'neox'"):
        relpos.rope_permute(bias, 8, to="neox")


# Arguments of attention


def test_what_is_returned():
    query, key, value = qkv()
    out = relpos.attention(query, key, value)
    pair = relpos.attention(query, key, value, return_lse=True)
    both = relpos.attention(query, key, value, return_lse=True, return_weights=True)
    weights = relpos.attention(query, key, value, return_weights=True)[1]
    assert out.is_contiguous()
    assert torch.equal(pair[0], out)
    assert torch.equal(both[1], pair[1])
    assert torch.equal(both[2], weights)
    torch.testing.assert_close(weights @ value, out)
    query.requires_grad_()
    detached = relpos.attention(query, key, value, return_weights=True)[1]
    assert not detached.requires_grad


def test_dropout_follows_the_default_generator():
    query, key, value = qkv(queries=20, keys=20)
    state = torch.random.get_rng_state()
    relpos.attention(query, key, value)
    assert torch.equal(state, torch.random.get_rng_state())
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        results.append(relpos.attention(query, key, value, dropout_p=0.5, return_weights=True))
    assert torch.equal(results[0][0], results[1][0])
    out, weights = results[0]
    torch.testing.assert_close(weights @ value, out)
    assert 0.3 < (weights == 0).float().mean() < 0.7
    assert not torch.equal(relpos.attention(query, key, value, dropout_p=0.5), out)


BAD = [
    ({"query": [1]}, TypeError, "query: expected a torch.Tensor, got list"),
    ({"key": torch.zeros(2, 3)}, ValueError, r"key: expected rank 4, .*got \[2, 3\]"),
    ({"value": torch.zeros(1, 2, 5, 4).double()}, TypeError, "value: expected torch.float32"),
    ({"query": torch.zeros(1, 2, 5, 4).long()}, TypeError, "query: expected float32, .*int64"),
    ({"key": torch.zeros(1, 2, 5, 3)}, ValueError, "key.*4.*3"),
    ({"key": torch.zeros(1, 1, 5, 4)}, ValueError, "enable_gqa"),
    ({"attn_mask": torch.zeros(5, 5).long()}, TypeError, "attn_mask: expected bool.*int64"),
    ({"attn_mask": torch.zeros(5, 6)}, ValueError, "attn_mask"),
    ({"attn_mask": [True]}, TypeError, "attn_mask: expected.*got list"),
    ({"key_padding_mask": torch.zeros(1, 5)}, TypeError, "key_padding_mask: expected bool"),
    ({"key_padding_mask": torch.zeros(1, 6).bool()}, ValueError, "key_padding_mask"),
    ({"dropout_p": 1.5}, ValueError, "dropout_p: expected 0 <= dropout_p <= 1, got 1.5"),
    ({"dropout_p": float("nan")}, ValueError, "dropout_p"),
    ({"window": 3}, TypeError, "window: expected a pair"),
    ({"window": (3, 0.5)}, TypeError, "window: expected an int, got 0.5"),
    ({"window": (-2, 0)}, ValueError, "window"),
    ({"q_offset": 1.0}, TypeError, "q_offset: expected an int, got 1.0"),
    ({"q_offset": torch.zeros(2).long()}, ValueError, "q_offset"),
    ({"q_offset": torch.zeros(1)}, TypeError, "q_offset: expected int64"),
    ({"k_offset": None}, TypeError, "k_offset: expected an int"),
    ({"k_offset": 3, "is_causal": True}, ValueError, "q_offset = Lk - Lq"),
    ({"q_positions": torch.arange(5)}, ValueError, "k_positions"),
    ({"key_range": torch.arange(5)}, TypeError, "key_range: expected a pair"),
    ({"key_range": (torch.arange(5), torch.zeros(5))}, TypeError, "key_range: expected int64"),
    ({"position": "t5"}, TypeError, "position: expected None, a relpos position"),
    ({"position": relpos.ALiBi(3)}, ValueError, "heads"),
    ({"scale": float("nan")}, ValueError, "scale"),
]


@pytest.mark.parametrize(("change", "kind", "text"), BAD, ids=[text for _, _, text in BAD])
def test_bad_arguments(change, kind, text):
    arguments = dict(zip(("query", "key", "value"), qkv(), strict=True)) | change
    with pytest.raises(kind, match=text):
        relpos.attention(**arguments)


def test_offsets_as_tensors_and_other_ints():
    query, key, value = qkv(batch=2, queries=3, keys=7)
    position = relpos.T5Bias(2)
    with torch.no_grad():
        position.relative_attention_bias.weight.normal_()
    want = relpos.attention(query, key, value, position=position, q_offset=4)
    for offset in (torch.tensor(4), torch.tensor([4, 4]), torch.tensor([4, 4]).int(), Four()):
        got = relpos.attention(query, key, value, position=position, q_offset=offset)
        assert torch.equal(got, want)
    positions = {"q_positions": torch.arange(4, 7), "k_positions": torch.arange(7).expand(2, 7)}
    assert torch.equal(relpos.attention(query, key, value, position=position, **positions), want)


class Four:
    def __index__(self):
        return 4


def test_workspace_is_far_below_a_dense_bias():
    from relpos._attention import workspace_bytes

    query = torch.empty(1, 8, 4096, 64)
    needed = workspace_bytes(query, query, query, position=relpos.T5Bias(8), backward=True)
    assert 0 < needed < 8 * 4096 * 4096 * 4 / 4


def test_force_path():
    inputs = qkv(queries=70, keys=70)
    want = relpos.attention(*inputs)
    try:
        _core.force_path("reference")
        torch.testing.assert_close(relpos.attention(*inputs), want)
        with pytest.raises(ValueError, match="path: expected auto, fused or reference"):
            _core.force_path("fast")
    finally:
        _core.force_path("auto")
