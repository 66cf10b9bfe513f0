"""Where relpos takes names of torch and FlashAttention: a call means the same there, or raises."""

import inspect

import pytest
import relpos
import torch
from near import close
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

APART = {"need_weights": True, "average_attn_weights": False}


def pair(heads=4, **options):
    """torch's module and ours, of the same arguments and weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(16, heads, **options).double()
    ours = relpos.nn.MultiheadAttention(16, heads, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def causal_mask(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def defaults(function):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "different"),
    [
        (relpos.nn.MultiheadAttention.__init__, nn.MultiheadAttention.__init__, set()),
        # Weights not asked for are None, and asking for them without saying which warns.
        (
            relpos.nn.MultiheadAttention.forward,
            nn.MultiheadAttention.forward,
            {"need_weights", "average_attn_weights"},
        ),
    ],
)
def test_defaults_are_those_of_torch(ours, theirs, different):
    ours, theirs = defaults(ours), defaults(theirs)
    shared = ours.keys() & theirs.keys()
    assert {name for name in shared if ours[name] != theirs[name]} == different
    positional = [
        name
        for name, parameter in inspect.signature(relpos.nn.MultiheadAttention).parameters.items()
        if parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    ]
    assert (
        positional == list(inspect.signature(nn.MultiheadAttention).parameters)[: len(positional)]
    )


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"batch_first": False}])
def test_the_same_arguments_give_the_same_numbers(options):
    theirs, ours = pair(**options)
    x = torch.randn(5, 3, 16).double()
    want, got = theirs(x, x, x)[0], ours(x, x, x)[0]
    close(got, want)
    assert got.view(-1, 16).shape == (15, 16)
    alone, weights = ours(x[:, 0], x[:, 0], x[:, 0], **APART)
    want, want_weights = theirs(x[:, 0], x[:, 0], x[:, 0], **APART)
    close(alone, want)
    close(weights, want_weights)
    for extra in ((None,), (None, False, torch.zeros(5, 5))):
        with pytest.raises(TypeError, match="positional argument"):
            ours(x, x, x, *extra)


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
    floating = torch.zeros(5, 5).double().masked_fill(blocked, -torch.inf)
    both = blocked | causal_mask(5)
    for wrong in (blocked, floating, torch.randn(12, 5, 5).double(), blocked.expand(3, 4, 5, 5)):
        with pytest.raises(ValueError, match="is_causal: expected an attn_mask"):
            ours(x, x, x, attn_mask=wrong, is_causal=True)
    lowest = torch.finfo(torch.double).min
    for mask in (causal_mask(5), both):
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
    got, _ = run(x, x, x, attn_mask=causal_mask(5), is_causal=True)
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


def test_batches_that_differ_are_refused():
    theirs, ours = pair()
    x, alone = torch.randn(5, 3, 16).double(), torch.randn(5, 1, 16).double()
    for inputs in ((alone, x, x), (x, alone, alone), (x, x, alone)):
        with pytest.raises((RuntimeError, AssertionError)):
            theirs(*inputs)
        with pytest.raises(ValueError, match="expected"):
            ours(*inputs)


def test_sdpa_refuses_a_causal_bias_of_other_lengths():
    query, key = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (5, 7))
    for bias in (causal_lower_right(4, 6), causal_upper_left(5, 5), causal_lower_right(7, 7)):
        with pytest.raises(
            ValueError, match="attn_mask: expected a causal bias of 5 queries and 7"
        ):
            relpos.sdpa(query, key, key, bias)
    want = functional.scaled_dot_product_attention(query, key, key, causal_lower_right(5, 7))
    close(relpos.sdpa(query, key, key, causal_lower_right(5, 7)), want)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name():
    for layout in (torch.strided, torch.jagged):
        rows = [torch.randn(n, 2, 4) for n in (3, 5)]
        x = torch.nested.nested_tensor(rows, layout=layout).transpose(1, 2)
        for call in (relpos.sdpa, relpos.attention):
            with pytest.raises(TypeError, match="query: expected a dense tensor, got a nested one"):
                call(x, x, x)


def test_flash_attn_func_refuses_weights_with_dropout():
    q = torch.randn(2, 5, 4, 8)
    with pytest.raises(ValueError, match="return_attn_probs: expected False where dropout_p > 0"):
        relpos.flash_attn_func(q, q, q, 0.5, return_attn_probs=True)
    with pytest.raises(TypeError, match=r"alibi_slopes: expected a torch\.Tensor, got list"):
        relpos.flash_attn_func(q, q, q, alibi_slopes=[0.5] * 4)
