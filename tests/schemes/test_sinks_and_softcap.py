"""sinks= and softcap= of relpos.attention and of what calls it, against dense formulas."""

import pytest
import relpos
import torch

from tests.support.near import close_with_gradients
from tests.support.oracle import naive
from tests.support.steps import same_bits, step

HEADS = 3


def drawn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def qkv(queries=9, keys=9, dtype=torch.float64):
    return [drawn(2, HEADS, n, 8, seed=s, dtype=dtype) for s, n in enumerate((queries, keys, keys))]


def test_the_argument_is_the_scheme():
    q, k, v = qkv()
    position = relpos.AttentionSink(HEADS).double()
    sinks = drawn(2, HEADS, 9, seed=4)
    by_query = relpos.AttentionSink(HEADS, per_query=True)
    mask, table = drawn(9, 9, seed=5), relpos.T5Bias(HEADS).double()
    call = {"softcap": 0.8, "attn_mask": mask}
    for argument, scheme in ((position.sinks, position), (sinks, by_query(sinks))):
        leaves = [argument, mask, *table.parameters()]
        by_argument = step(q, k, v, v, [table], also=leaves, sinks=argument, **call)
        same_bits(by_argument, step(q, k, v, v, [table, scheme], also=leaves, **call))
    both = relpos.attention(q, k, v, position=position, sinks=position.sinks)
    two = position.sinks + torch.log(torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(both, relpos.attention(q, k, v, sinks=two))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_see_nothing_and_sinks_at_the_ends(dtype):
    q, k, v = qkv(3, 20, dtype)
    sinks = torch.tensor([-torch.inf, 100.0, torch.nan], dtype=dtype)
    out, lse = relpos.attention(q, k, v, sinks=sinks, return_lse=True)
    assert torch.equal(out[:, 0], relpos.attention(q, k, v)[:, 0])
    assert out[:, 1].abs().max() < 1e-30
    assert bool((lse[:, 1] == 100.0).all() and out[:, 2].isnan().all() and lse[:, 2].isnan().all())
    leaf = drawn(HEADS, seed=4, dtype=dtype)
    nothing = torch.zeros(3, 20, dtype=torch.bool)
    out, lse = relpos.attention(q, k, v, sinks=leaf, attn_mask=nothing, return_lse=True)
    assert not out.any()
    torch.testing.assert_close(lse, leaf[:, None].expand(2, -1, 3))
    (gradient,) = torch.autograd.grad(lse.sum(), [leaf])
    assert bool((gradient == 6).all())
    position = relpos.ALiBi(HEADS)
    far = {"q_offset": 10**6, "position": position, "sinks": leaf}
    bias = position.double().dense(3, 20, q_offset=10**6)
    out, lse = relpos.attention(q, k, v, return_lse=True, **far)
    expected = naive(*(x.double() for x in (q, k, v)), bias, sinks=leaf.double()).lse
    torch.testing.assert_close(lse, expected.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("queries", "keys"), [(3, 3), (3, 20), (1, 20), (3, 5000)])
def test_sinks_far_from_all_scores(queries, keys, dtype):
    """finfo.min, 1e10 and the like: the row's own float, without weight or with all of it."""
    q, k, v = (x.detach() for x in qkv(queries, keys, dtype))
    most = torch.finfo(dtype).max
    plain, plain_lse = relpos.attention(q, k, v, return_lse=True)
    for size in (most, 1e9, 3e9, 7e9, 1e10, 5e10 / 3, 7e12 / 3, 1e20, 1e38):
        if size > most:
            continue
        exactly = {"rtol": 1e-6 if size == most else 0.0, "atol": 0.0}
        sinks = torch.tensor([-size, 0.0, size], dtype=dtype).requires_grad_()
        out, lse = relpos.attention(q, k, v, sinks=sinks, return_lse=True)
        assert torch.equal(out[:, 0], plain[:, 0])
        assert torch.equal(lse[:, 0], plain_lse[:, 0])
        assert not out[:, 2].any()
        torch.testing.assert_close(lse[:, 2], sinks[2].float().expand_as(lse[:, 2]), **exactly)
        (gradient,) = torch.autograd.grad(lse.sum(), [sinks])
        torch.testing.assert_close(gradient[[0, 2]].float(), torch.tensor([0.0, 2.0 * queries]))
        nothing = torch.zeros(queries, keys, dtype=torch.bool)
        out, lse = relpos.attention(q, k, v, sinks=sinks, attn_mask=nothing, return_lse=True)
        assert not out.any()
        torch.testing.assert_close(lse, sinks.float()[:, None].expand(2, -1, queries), **exactly)


@pytest.mark.parametrize("queries", [1, 5])
def test_decoding_sees_the_sink_once(queries):
    """Chunks of a long cache are merged; a sum of merged calls has it in one of them."""
    q, k, v = qkv(queries, 5000, torch.float32)
    sinks = drawn(HEADS, seed=4, dtype=torch.float32)
    expected = naive(q, k, v, softcap=3.0, sinks=sinks)[:2]
    found = relpos.attention(q, k, v, sinks=sinks, softcap=3.0, return_lse=True)
    close_with_gradients(found, expected, [q, k, v, sinks], 2e-6)
    halves = [(k[:, :, :3000], v[:, :, :3000], sinks), (k[:, :, 3000:], v[:, :, 3000:], None)]
    parts = [relpos.attention(q, a, b, sinks=s, softcap=3.0, return_lse=True) for a, b, s in halves]
    close_with_gradients(relpos.merge(*zip(*parts, strict=True)), expected, [q, k, v, sinks], 2e-6)


def test_softcap_is_as_exact_near_0_as_at_its_ends():
    near, wide = torch.logspace(-30, 1, 4001), torch.linspace(-12, 12, 4001)
    for cap in (1.0, 3.7, 50.0):
        score = cap * torch.cat([near, -near, wide])
        found = relpos.scores(score.view(1, 1, -1, 1), torch.ones(1, 1, 1, 1), softcap=cap, scale=1)
        exact = cap * torch.tanh(score.double() / cap)
        assert ((found.flatten() - exact).abs() <= 8 * 2.0**-24 * exact.abs()).all()


@pytest.mark.parametrize("queries", [1, 5, 70])
def test_far_keys_count_under_a_softcap(queries):
    """Without it, ALiBi leaves them no weight and their tiles are skipped."""
    q, k, v = qkv(queries, 2000, torch.float32)
    position = relpos.ALiBi(HEADS)
    place = {"q_offset": 2000 - queries}
    found = relpos.attention(q, k, v, position=position, softcap=2.0, return_lse=True, **place)
    bias = position.double().dense(queries, 2000, **place)
    expected = naive(*(x.double() for x in (q, k, v)), bias, softcap=2.0)
    for a, b in zip(found, expected[:2], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)


def test_packed_sequences():
    q, k, v = (drawn(30, HEADS, 8, seed=s) for s in range(3))
    starts = torch.tensor([0, 11, 11, 30])
    of_heads = drawn(HEADS, seed=4)
    module = relpos.AttentionSink(HEADS).double()
    more = torch.tensor([0, 12, 13, 30])  # as many keys as the others have: sinks read no position
    with torch.no_grad():
        module.sinks.copy_(of_heads)
    torch.testing.assert_close(
        relpos.attention_varlen(q, k, v, starts, more, position=module),
        relpos.attention_varlen(q, k, v, starts, more, sinks=of_heads),
    )
    for sinks in (drawn(HEADS, seed=4), drawn(HEADS, 30, seed=5)):
        found = relpos.attention_varlen(q, k, v, starts, sinks=sinks, softcap=1.5)
        for a, b in ((0, 11), (11, 30)):
            own = [x[a:b].transpose(0, 1)[None] for x in (q, k, v)]
            cut = sinks if sinks.dim() == 1 else sinks[None, :, a:b]
            expected = naive(*own, softcap=1.5, sinks=cut).out
            torch.testing.assert_close(found[a:b].transpose(0, 1)[None], expected)


def test_weights_and_scores():
    q, k, v = (x.detach() for x in qkv(dtype=torch.float32))
    sinks = torch.tensor([0.3, -1.0, 2.0])
    out, weights = relpos.attention(q, k, v, sinks=sinks, softcap=2.0, return_weights=True)
    torch.testing.assert_close(out, weights @ v)
    assert bool((weights.sum(-1) < 1).all())
    score = q @ k.mT * 8**-0.5
    for cap in (1e-30, 2.0, 1e30):
        limited = cap * torch.tanh(score.double() / cap)
        torch.testing.assert_close(relpos.scores(q, k, softcap=cap), limited.float())


@pytest.mark.parametrize("queries", [2, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_nan_is_seen_by_the_rows_of_its_head(dtype, queries):
    """Beside a sink of -inf, before it and after it, and in a row that sees no key."""
    q, k, v = (x.detach() for x in qkv(queries, 1100, dtype=dtype))
    ends = torch.full((queries,), 1100)
    ends[1] = 0
    call = {"q_offset": 0, "key_range": (torch.zeros_like(ends), ends), "return_lse": True}
    for wrong in (0, 1):
        sinks = [torch.zeros(HEADS), torch.zeros(HEADS)]
        sinks[wrong][0], sinks[1 - wrong][0] = torch.nan, -torch.inf
        position = relpos.AttentionSink(HEADS)
        with torch.no_grad():
            position.sinks.copy_(sinks[1])
        found = relpos.attention(q, k, v, sinks=sinks[0], position=position, **call)
        for x in found:
            assert x[:, 0].isnan().all()
            assert not x[:, 1:].isnan().any()


def test_what_is_refused():
    q, k, v = qkv()
    gate = relpos.ForgettingGate()(torch.zeros(2, HEADS, 9, dtype=torch.float64))
    for name, given in (("sinks", drawn(HEADS)), ("softcap", 1.0)):
        with pytest.raises(ValueError, match=f"{name}: expected none beside forgetting"):
            relpos.attention(q, k, v, position=gate, **{name: given})
    with pytest.raises(ValueError, match=r"query: expected rank 4"):
        relpos.attention(q[0], k[0], v[0], sinks=drawn(HEADS))
    flat = [x[0].transpose(0, 1) for x in (q, k, v)]
    with pytest.raises(ValueError, match=r"sinks: expected \[3\] or \[3, 9\], got \[3, 4\]"):
        relpos.attention_varlen(*flat, torch.tensor([0, 9]), sinks=drawn(HEADS, 4))
