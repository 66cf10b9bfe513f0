"""All tensors of a call lie on one device and have memory, or an error names one that does not."""

import pytest
import relpos
import torch
from relpos._call.attention import workspace_bytes
from relpos._call.call import Call
from relpos._position.part import Given
from torch._subclasses import FakeTensorMode

B, H, L, D = 2, 2, 5, 4
CPU, META = torch.device("cpu"), torch.device("meta")


def x(*shape, device=CPU):
    return torch.randn(shape or (B, H, L, D)).to(device)


def whole(*shape, device=CPU):
    return torch.zeros(shape, dtype=torch.int64, device=device)


# Each tensor of a call, made on a device, and the name by which an error must call it.
BESIDE = {
    "key": lambda d: {"key": x(device=d)},
    "value": lambda d: {"value": x(device=d)},
    "attn_mask": lambda d: {"attn_mask": x(L, L, device=d)},
    "key_padding_mask": lambda d: {"key_padding_mask": x(B, L, device=d) > 9},
    "q_offset": lambda d: {"q_offset": whole(B, device=d)},
    "k_offset": lambda d: {"q_offset": 0, "k_offset": whole(B, device=d)},
    "q_positions": lambda d: {
        "q_positions": whole(L, device=d),
        "k_positions": whole(L, device="meta" if d == CPU else "cpu"),
    },
    "key_range": lambda d: {"key_range": (whole(L, device=d), whole(L, device=d))},
    "sinks": lambda d: {"sinks": x(H, device=d)},
    "t5.relative_attention_bias.weight": lambda d: {"position": relpos.T5Bias(H).to(d)},
    "alibi.slopes": lambda d: {"position": [relpos.ALiBi(H).to(d)]},
    "forgetting.log_f": lambda d: {
        "position": relpos.ForgettingGate()(-x(B, H, L, device=d).abs())
    },
}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("other", [META, CPU], ids=str)
def test_a_tensor_on_another_device_is_named(name, other, trained):
    here = CPU if other == META else META
    call = {"query": x(device=here), "key": x(device=here), "value": x(device=here)}
    call["query"].requires_grad_(trained)
    call |= BESIDE[name](other)
    q, k, v = (call.pop(given) for given in ("query", "key", "value"))
    text = rf"{name}: expected a tensor on {here}.*, got {other}"
    with pytest.raises(ValueError, match=text):
        relpos.attention(q, k, v, **call)
    if name not in ("value", "sinks"):
        with pytest.raises(ValueError, match=text):
            relpos.scores(q, k, **call)


def test_all_on_meta_give_shapes():
    at = {"device": META}
    q, k, v = x(**at), x(**at), x(**at)
    for name, more in BESIDE.items():
        call = {"query": q, "key": k, "value": v} | more(META)
        if name == "q_positions":
            call["k_positions"] = whole(L, **at)
        args = call.pop("query"), call.pop("key"), call.pop("value")
        wanted = {"dropout_p": 0.5, "return_lse": True, "return_weights": True}
        found = relpos.attention(*args, **wanted, **call)
        assert all(result.is_meta for result in found)
        assert [result.shape for result in found] == [(B, H, L, D), (B, H, L), (B, H, L, L)]
    mixed = relpos.RoPEMixed(H, D, 2).to(META)
    assert all(table.is_meta for table in mixed.tables(L))
    assert relpos.T5Bias(H).to(META).dense(L, L).is_meta


def test_a_default_device_is_not_that_of_tables_and_results():
    q = x()
    with torch.device("meta"):
        layer = relpos.nn.MultiheadAttention(8, H, position=relpos.ALiBi(H))
        rope = relpos.RoPE(D, layout="half")
        found = [rope.tables(3)[0], rope.indices(3, 3), relpos.attention(q, q, q, dropout_p=0.5)]
    assert {result.device for result in found} == {CPU}
    assert layer.position.slopes.is_meta
    with pytest.raises(ValueError, match="expected a tensor on the CPU, got meta"):
        layer.position.indices(3, 3)
    layer.to_empty(device="cpu")
    assert torch.equal(layer.position.slopes, relpos.ALiBi(H).slopes)
    with FakeTensorMode():
        elsewhere = torch.empty(B, H, L, D, device="mps")
        with pytest.raises(
            ValueError, match=r"query: expected a tensor on the CPU or on CUDA, got"
        ):
            relpos.attention(elsewhere, elsewhere, elsewhere)


def test_the_operators_refuse_them_in_both_passes():
    q, k, v = x(), x(), x()
    out, _, softmax = torch.ops.relpos.attention(q, k, v, *Call())
    needs = [True, True, True, False]
    ops = torch.ops.relpos
    table = torch.zeros(32, H, device=META)
    for name, run in {
        "value": lambda: ops.attention(q, k, v.to(META), *Call()),
        "seed": lambda: ops.attention(q, k, v, *Call(seed=whole(device=META), dropout_p=0.5)),
        "t5.relative_attention_bias.weight": lambda: ops.attention(
            q, k, v, *Call(position=f"t5(heads={H})", parameters=[table])
        ),
        "dout": lambda: ops.attention_backward(
            q, k, v, out, softmax, out.to(META), None, needs, *Call()
        ),
        "softmax": lambda: ops.attention_backward(
            q, k, v, out, softmax.to(META), out, None, needs, *Call()
        ),
        "dscores": lambda: ops.scores_backward(
            q, k, torch.zeros(B, H, L, L, device=META), [True, True, False], *Call()
        ),
        "positions": lambda: relpos.RoPE(D, layout="half").rotate(q, 0, whole(L, device=META)),
        "x": lambda: ops.rotate_backward(
            q, [], q.to(META), f"rope(head_dim={D}, layout=half)", 0, None, False, []
        ),
    }.items():
        with pytest.raises(ValueError, match=rf"{name}: expected a tensor on cpu"):
            run()


def test_modules_and_functions_around_a_call():
    layer = relpos.nn.MultiheadAttention(8, H, position=relpos.T5Bias(H), batch_first=True)
    y, there = x(B, L, 8), x(B, L, 8, device=META)
    for more in ({"attn_mask": x(L, L, device=META)}, {"key_padding_mask": x(B, L, device=META)}):
        with pytest.raises(ValueError, match=f"{next(iter(more))}: expected a tensor on cpu"):
            layer(y, y, y, **more)
    with pytest.raises(ValueError, match="key: expected a tensor on cpu, as the module is"):
        layer(y, there, y)
    assert layer.to(META)(there, there, there)[0].is_meta
    q, packed = x(), x(L, H, D)
    cache = relpos.KVCache()
    cache.append(q, q)
    out, lse = relpos.attention(q, q, q, return_lse=True)
    starts = torch.tensor([0, 2, L])
    compose = relpos.compose
    rope = relpos.RoPE(D, layout="half")
    for name, run in {
        "key": lambda: cache.append(q.to(META), q),
        "value": lambda: relpos.KVCache().append(q, q.to(META)),
        r"outs\[1\]": lambda: relpos.merge([out, out.to(META)], [lse, lse]),
        r"lses\[1\]": lambda: relpos.merge([out, out], [lse, lse.to(META)]),
        "cu_seqlens_q": lambda: relpos.attention_varlen(packed, packed, packed, starts.to(META)),
        "q_offset": lambda: relpos.attention_varlen(
            packed, packed, packed, starts, is_causal=True, q_offset=whole(2, device=META)
        ),
        "table": lambda: compose.cope(q, q, q, table=x(3, D, device=META)),
        "phase": lambda: compose.polar(q, q, q, phase=x(H, D, device=META)),
        "query_position": lambda: compose.tupe(
            q, q, q, query_position=x(H, L, 3, device=META), key_position=x(H, L, 3)
        ),
        "k_offset": lambda: compose.rerope(
            q, q, q, position=rope, window_size=2, q_offset=0, k_offset=whole(B, device=META)
        ),
        "attn_mask": lambda: relpos.sdpa(q, q, q, x(L, L, device=META)),
        "alibi.slopes": lambda: relpos.flash_attn_func(
            *[q.transpose(1, 2)] * 3, alibi_slopes=x(H, device=META)
        ),
    }.items():
        with pytest.raises(ValueError, match=rf"{name}: expected a tensor on cpu"):
            run()


def freed(like, offset=0):
    """A tensor whose storage holds nothing any more."""
    rest = like.new_zeros(like.numel() + offset)[offset:].view(like.shape)
    rest.untyped_storage().resize_(0)
    return rest


def test_a_tensor_without_memory_is_refused_by_name():
    q = x()
    alibi = relpos.ALiBi(H)
    alibi.slopes = freed(alibi.slopes)
    for offset in (0, 3, 2**20):
        gone = freed(q, offset)
        for call in (
            lambda: relpos.attention(gone, q, q),  # noqa: B023
            lambda: relpos.attention(gone.requires_grad_(), q, q),  # noqa: B023
            lambda: relpos.scores(gone, q),  # noqa: B023
        ):
            with pytest.raises(ValueError, match="query: expected a tensor with memory"):
                call()
    with FakeTensorMode():
        fake = torch.empty(2)
    for name, call in (
        ("attn_mask", lambda: relpos.attention(q, q, q, attn_mask=freed(x(L, L)))),
        ("position: alibi.slopes", lambda: relpos.attention(q, q, q, position=alibi)),
        ("position: alibi.slopes", lambda: alibi.dense(3, 3)),
        ("position: alibi.slopes", lambda: alibi.indices(3, 3)),
        ("position: alibi.slopes", lambda: Given(f"alibi(heads={H})", [fake]).indices(3, 3)),
        ("x", lambda: relpos.RoPE(D, layout="half").rotate(freed(q))),
        ("tensor", lambda: relpos.check("alibi", freed(x(8)))),
        ("key", lambda: workspace_bytes(q, freed(q), q)),
    ):
        with pytest.raises(ValueError, match=f"^{name}: expected a tensor with memory"):
            call()
    query = x().requires_grad_()
    out = relpos.attention(query, query, query)
    with pytest.raises(ValueError, match="dout: expected a tensor with memory"):
        out.backward(freed(out))
    empty = torch.empty(B, H, 0, D)
    assert relpos.attention(empty, empty, empty).shape == empty.shape


@pytest.mark.parametrize("trained", [False, True])
def test_zeros_that_pytorch_keeps_without_memory_are_zeros(trained):
    q = x().requires_grad_(trained)
    zeros, real = torch._efficientzerotensor((B, H, L, D)), torch.zeros(B, H, L, D)
    assert torch.equal(relpos.attention(q, q, zeros), relpos.attention(q, q, real))
    assert torch.equal(relpos.attention(q, zeros, q), relpos.attention(q, real, q))
    learned = [
        Given(f"alibi(heads={H})", [t]) for t in (torch._efficientzerotensor((H,)), x(H) * 0)
    ]
    ours, want = (relpos.attention(q, q, q, position=position) for position in learned)
    assert torch.equal(ours, want)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layouts_and_types_without_plain_memory_are_named():
    q, t5 = x(), relpos.T5Bias(H)
    t5.relative_attention_bias.weight = None
    nested = torch.nested.nested_tensor([x(L, L)])

    def given(bad):
        return Given(f"alibi(heads={H})", [bad])

    odd = [x(H).to(torch.complex64), x(H).to_sparse(), 3.0]
    for name, run in (
        ("query", lambda: relpos.attention(q.to_sparse(), q, q)),
        ("value", lambda: relpos.attention(q, q, q.to_mkldnn())),
        ("attn_mask", lambda: relpos.attention(q, q, q, attn_mask=x(L, L).to_sparse())),
        ("attn_mask", lambda: relpos.attention(q, q, q, attn_mask=nested)),
        (
            "position: t5.relative_attention_bias.weight",
            lambda: relpos.attention(q, q, q, position=t5),
        ),
        ("position: t5.relative_attention_bias.weight", lambda: t5.indices(3, 3)),
        *(
            ("position: alibi.slopes", lambda b=bad: relpos.attention(q, q, q, position=given(b)))
            for bad in odd
        ),
        ("position: alibi.slopes", lambda: given(x(H).to_sparse()).steps(2, 2)),
        ("query", lambda: workspace_bytes([1.0], q, q)),
        ("tensor", lambda: relpos.check("alibi", x(8).to_sparse())),
        ("tensor", lambda: relpos.check("alibi", x(8).to(torch.complex64))),
        ("x.slopes", lambda: relpos.check("alibi", {"x.slopes": None})),
    ):
        with pytest.raises(TypeError, match=f"^{name}: expected a"):
            run()


def test_negated_views_are_read_as_they_are():
    q, slopes = x(), 2.0 ** -torch.arange(1.0, H + 1)
    negated_q, negated = (torch.complex(t, -t).conj().imag for t in (q, slopes))
    assert negated_q.is_neg()
    assert negated.is_neg()
    assert torch.equal(relpos.attention(negated_q, q, q), relpos.attention(q, q, q))
    position, want = (Given(f"alibi(heads={H})", [t]) for t in (negated, slopes))
    for (_, a), (_, b) in zip(position.steps(3, 3), want.steps(3, 3), strict=True):
        assert torch.equal(a, b)
    assert relpos.check("alibi", negated) == relpos.check("alibi", slopes)


def test_a_subclass_is_a_tensor():
    class Marked(torch.Tensor):
        pass

    q = x()
    assert torch.equal(relpos.attention(q.as_subclass(Marked), q, q), relpos.attention(q, q, q))
