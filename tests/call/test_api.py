"""The Python names, their arguments and errors, and how the package behaves as a citizen."""

import inspect
import re

import pytest
import relpos
import torch
from relpos import _core

from tests import ROOT
from tests.support.sample import tensors
from tests.support.scheme_variants import build, every_scheme

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
        "T5Bias": "(heads, buckets=32, max_distance=128, bidirectional=True, bias_scale=1.0)",
        "BiasRPE": "(heads, max_distance, *, right=None, symmetric=False)",
        "ALiBi": "(heads, *, slopes='paper', symmetric=True, learned=False, sides='same')",
        "RoPE": "(head_dim, *, layout, base=10000.0, rotary_dim=None, start=0, angle='double')",
    }
    for name, text in signatures.items():
        assert str(inspect.signature(getattr(relpos, name))) == text
    parameters = inspect.signature(relpos.attention).parameters
    assert list(parameters) == [
        *("query", "key", "value", "position", "is_causal", "scale", "enable_gqa", "window"),
        *("q_offset", "softcap", "attn_mask", "key_padding_mask", "k_offset", "q_positions"),
        *("k_positions", "key_range", "dropout_p", "sinks", "float32_products", "return_lse"),
        "return_weights",
    ]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[3:])


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


def test_slopes_as_a_tensor():
    values = torch.tensor([0.1, 0.7], dtype=torch.float64)
    position = relpos.ALiBi(2, slopes=values)
    assert torch.equal(position.double().slopes, values)
    learned = relpos.ALiBi(2, slopes=values.tolist(), learned=True)
    assert torch.equal(learned.slopes, values.float())
    assert isinstance(learned.slopes, torch.nn.Parameter)
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
    inputs = tensors(heads=2, head_dim=4)[:3]
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


# dense, indices, steps, rotations


@every_scheme
def test_indices_steps_and_rotations(name, scheme, options):
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
        for shape in ((5, 8), (3, 5, 8), (2, 1, 3, 1, 5, 8)):
            part = x[: shape[0]].reshape(shape) if len(shape) > 4 else x[0, : shape[0]]
            part = x[0, 0] if len(shape) == 2 else part
            flat = rope.rotate(part.reshape(-1, 1, 5, 8), 2)
            assert torch.equal(rope.rotate(part, 2), flat.reshape(part.shape))
        with pytest.raises(ValueError, match="x: expected rank 2 or more"):
            rope.rotate(torch.randn(8))
        with pytest.raises(TypeError, match=r"x: expected a torch\.Tensor, got list"):
            rope.rotate([[1.0, 2.0]])
    with pytest.raises(ValueError, match="decays with the distance"):
        relpos.XPos(8, layout="half").rotate(x)
    assert not hasattr(relpos.ALiBi(2), "rotate")


def test_skew():
    x = torch.arange(9.0).reshape(3, 3)
    assert relpos.skew(x).tolist() == [[2, 0, 3], [4, 5, 0], [6, 7, 8]]
    assert relpos.skew(x.expand(2, 4, 3, 3)).shape == (2, 4, 3, 3)
    with pytest.raises(ValueError, match=r"x: expected \[..., L, L\], got \[3, 4\]"):
        relpos.skew(torch.zeros(3, 4))


# Arguments of attention


def test_what_is_returned():
    query, key, value = tensors()[:3]
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


def test_offsets_as_tensors_and_other_ints():
    query, key, value = tensors(2, 2, queries=3, keys=7)[:3]
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


def test_force_path():
    inputs = tensors(queries=70, keys=70)[:3]
    want = relpos.attention(*inputs)
    try:
        _core.force_path("reference")
        torch.testing.assert_close(relpos.attention(*inputs), want)
        with pytest.raises(ValueError, match="path: expected auto, fused or reference"):
            _core.force_path("fast")
    finally:
        _core.force_path("auto")
