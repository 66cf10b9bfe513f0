"""Dense masks in every dtype and layout: rows whose keys lie side by side are read by vectors."""

import pytest
import relpos
import torch

from tests.support.oracle import gradients, naive
from tests.support.steps import same_at_any_thread_count, same_bits, step

LENGTHS = [(1, 70), (5, 64), (49, 49), (130, 193)]


def inputs(queries, keys):
    draw = torch.Generator().manual_seed(queries)
    q, k, v = (torch.randn(2, 4, n, 16, generator=draw) for n in (queries, keys, keys))
    hidden = torch.rand(2, 4, queries, keys, generator=draw) < 0.3
    hidden[..., 3] = False
    return q, k, v, hidden


def output_gradient(q):
    return torch.randn(q.shape, generator=torch.Generator().manual_seed(3))


def run(q, k, v, mask):
    torch.manual_seed(0)
    return step(q, k, v, output_gradient(q), relpos.T5Bias(4), attn_mask=mask, q_offset=0)


def mask_gradient(q, k, v, mask, dout):
    return gradients([relpos.attention(q, k, v, attn_mask=mask)], [dout], [mask])


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_hiding_has_one_result_in_every_dtype(queries, keys, dtype):
    q, k, v, hidden = inputs(queries, keys)
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    same_bits(run(q, k, v, mask), run(q, k, v, ~hidden))


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float16])
def test_a_layout_changes_no_bit(queries, keys, dtype):
    """Transposed, every second key, from an odd byte, one row for all queries."""
    q, k, v, hidden = inputs(queries, keys)
    mask = ~hidden
    if dtype != torch.bool:
        mask = torch.randn(hidden.shape).masked_fill(hidden, -torch.inf).to(dtype)
    wide = mask.repeat_interleave(2, -1)
    memory = bytearray(1) + bytearray(mask.view(torch.uint8).numpy().tobytes())
    odd = torch.frombuffer(memory, dtype=dtype, offset=1).view_as(mask)
    assert odd.data_ptr() % 2 == 1
    expected = run(q, k, v, mask)
    for layout in (mask.mT.contiguous().mT, wide[..., ::2], odd):
        same_bits(run(q, k, v, layout), expected)
    row = mask[:, :, :1]
    same_bits(run(q, k, v, row), run(q, k, v, row.repeat(1, 1, queries, 1)))


@pytest.mark.parametrize("shape", [(2, 4, 130, 193), (1, 4, 130, 193), (130, 193), (2, 1, 1, 193)])
def test_a_gradient_has_the_same_bits_at_any_thread_count(shape):
    q, k, v, _ = inputs(130, 193)
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
    dout = output_gradient(q)
    (found,) = same_at_any_thread_count(lambda: mask_gradient(q, k, v, mask, dout), (1, 2, 5))
    exact = mask.detach().double().requires_grad_()
    out = naive(q.double(), k.double(), v.double(), mask=exact).out
    (expected,) = gradients([out], [dout.double()], [exact])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_heads_that_share_a_mask_lose_nothing_of_its_gradient():
    """Tasks of 256 heads add to the same 4,096 numbers."""
    draw = torch.Generator().manual_seed(2)
    q, k, v, dout = torch.randn(4, 8, 32, 64, 8, generator=draw)
    mask = torch.zeros(64, 64, requires_grad=True)
    same_at_any_thread_count(lambda: mask_gradient(q, k, v, mask, dout), [1] + 10 * [2])


@pytest.mark.parametrize("where", [slice(0, 20), slice(0, 32), slice(80, 96), slice(60, 193)])
def test_keys_that_no_query_sees_have_weight_0_and_score_minus_infinity(where):
    q, k, v, _ = inputs(49, 193)
    seen = torch.zeros(2, 193, dtype=torch.bool)
    seen[:, where] = True
    for hidden in ({"key_padding_mask": ~seen}, {"attn_mask": seen[:, None, None]}):
        _, weights = relpos.attention(q, k, v, return_weights=True, **hidden)
        scores = relpos.scores(q, k, **hidden)
        expected = (q @ k.mT * 0.25).masked_fill(~seen[:, None, None], -torch.inf)
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weights, expected.softmax(-1), rtol=1e-5, atol=1e-6)
        assert not weights.masked_select(~seen[:, None, None]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_mask_of_all_pairs_gets_what_a_shared_one_sums(dtype):
    """Pairs that a window hides get 0, whatever the memory of the gradient held."""
    q, k, v, _ = inputs(130, 193)
    shared = torch.randn(130, 193, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = torch.empty(2, 4, 193, 130, dtype=dtype).mT  # rows are not contiguous
    grads = []
    for mask in (shared, shared.expand(2, 4, -1, -1).contiguous(), wide.copy_(shared)):
        leaf = mask.detach().requires_grad_()
        out = relpos.attention(q, k, v, attn_mask=leaf, q_offset=63, window=(20, 5))
        torch.full_like(mask, torch.nan)  # freed for the gradient to take
        grads += torch.autograd.grad(out.square().sum(), [leaf])
    far = torch.arange(193) - torch.arange(63, 193)[:, None]
    assert not grads[1][..., (far < -20) | (far > 5)].any()
    assert torch.equal(grads[1], grads[2])
    close = {"rtol": 0.02, "atol": 0.02} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(grads[1].float().sum((0, 1)), grads[0].float(), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_lowest_float_changes_no_bit_of_other_rows(dtype):
    """Beyond 2.2e38 numbers are compressed, in any row of a tile, at keys that are hidden, too."""
    q, k, v, hidden = inputs(130, 193)
    mask = torch.randn(hidden.shape).masked_fill(hidden, -torch.inf).to(dtype)
    low = mask.clone()
    low[:, :, 5, 7:90] = torch.finfo(dtype).min
    plain, changed = (relpos.attention(q, k, v, attn_mask=m, q_offset=0) for m in (mask, low))
    rows = [n for n in range(130) if n != 5]
    assert torch.equal(plain[:, :, rows], changed[:, :, rows])
    assert changed.isfinite().all()
    assert not torch.equal(plain[:, :, 5], changed[:, :, 5])
    padding = torch.zeros(2, 193, dtype=torch.bool)
    padding[:, 60:90] = True
    low = mask.clone()
    low[..., 60:90] = torch.finfo(dtype).min
    plain, changed = (
        relpos.attention(q, k, v, attn_mask=m, key_padding_mask=padding, q_offset=0)
        for m in (mask, low)
    )
    assert torch.equal(plain, changed)


FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DTYPES = [(dtype, dtype) for dtype in FLOATS] + [(torch.float32, mask) for mask in FLOATS[1:]]


@pytest.mark.parametrize("hides", ["nothing", "causal", "window", "padding", "range"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 70), (6, 6), *LENGTHS[1:], (3, 1300)])
@pytest.mark.parametrize(("dtype", "mask_dtype"), DTYPES)
def test_a_nan_is_seen_by_its_row_and_no_other(queries, keys, dtype, mask_dtype, hides):
    """One that causal, a window, padding or a range hides has no influence."""
    q, k, v, minus = (x[:1, :2] for x in inputs(queries, keys))
    row, key, far = queries // 2, keys // 2 - (keys > 6), keys - 1
    seen = torch.ones(queries, keys, dtype=torch.bool)
    call = {"q_offset": 0}
    if hides == "causal":
        call = {"q_offset": keys - queries, "is_causal": True}
        seen = seen.tril(keys - queries)
    elif hides == "window":
        call = {"q_offset": keys // 2 - row, "window": (3, 2)}
        distance = torch.arange(keys) - torch.arange(queries)[:, None] - keys // 2 + row
        seen = (distance >= -3) & (distance <= 2)
    elif hides == "padding":
        seen[:, far] = False
        call["key_padding_mask"] = torch.arange(keys)[None] == far
    elif hides == "range":
        seen[:, far] = False
        call["key_range"] = tuple(torch.full((queries,), n) for n in (0, far))
    mask = torch.zeros(1, 2, queries, keys).masked_fill(minus, -torch.inf).to(mask_dtype)
    mask[..., row, key] = 0.0
    wrong = mask.masked_fill(~seen, torch.nan)
    wrong[..., row, key] = torch.nan
    spoiled = torch.zeros(1, 2, queries, dtype=torch.bool)
    spoiled[..., row] = seen[row, key]
    visible = seen & (mask != -torch.inf)
    reached = spoiled[..., None] & visible
    results = []
    q, k, v, dout = (x.to(dtype) for x in (q, k, v, output_gradient(q)))
    for used in (mask, wrong):
        bound = {"attn_mask": used.requires_grad_(), **call}
        results.append(step(q, k, v, dout, also=[used], **bound))
        results[-1] += [relpos.attention(q, k, v, return_weights=True, **bound)[1]]
        results[-1] += [relpos.scores(q, k, **bound)]
    clean, found = results
    of_keys = reached.any(-2)
    places = [spoiled, spoiled, spoiled, of_keys, of_keys, reached, spoiled]
    for number, (got, was, place) in enumerate(zip(found, clean, places, strict=False)):
        place = place.reshape(place.shape + (1,) * (got.dim() - place.dim())).expand(got.shape)
        assert torch.equal(got.isnan(), place), number
        torch.testing.assert_close(got[~place], was[~place], rtol=1e-6, atol=1e-6)
    assert not found[5][~visible].any()
    nan = seen & wrong.isnan()
    assert torch.equal(found[7].isnan(), nan)
    assert torch.equal(found[7][~nan], clean[7][~nan])
