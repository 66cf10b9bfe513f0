"""relpos.sdpa and relpos.flash_attn_func against torch and FlashAttention's formula; merge."""

import itertools
from functools import partial

import pytest
import relpos
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention

from tests.support.near import close, close_with_gradients
from tests.support.oracle import naive

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]


def draw(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-6}  # of float32: relpos in two ways


def same(got, want, leaves):
    """Equal values, and equal gradients of a random weighting."""
    close_with_gradients(got, want, leaves, BOUNDS[want.dtype])


MASKS = {
    "none": lambda *lead: None,
    "bool": lambda *lead: torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.6,
    "float": lambda *lead: draw((5, 7))[0],
    "whole": lambda *lead: draw((*lead, 5, 7))[0],
    "row": lambda *lead: draw((1, 7))[0],
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)], ids=len)
def test_sdpa_is_torchs(lead, kind):
    query, key, value = draw((*lead, 5, 4), (*lead, 7, 4), (*lead, 7, 6))
    mask = MASKS[kind](*lead)
    leaves = [query, key, value]
    if mask is not None and mask.requires_grad:
        leaves.append(mask)
    for scale in (None, 0.3):
        call = (query, key, value, mask, 0.0, False, scale)
        same(relpos.sdpa(*call), scaled_dot_product_attention(*call[:6], scale=scale), leaves)


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (6, 6)])
def test_sdpa_is_causal_from_the_upper_left(queries, keys):
    leaves = draw((2, 3, queries, 4), (2, 3, keys, 4), (2, 3, keys, 4))
    want = scaled_dot_product_attention(*leaves, is_causal=True)
    same(relpos.sdpa(*leaves, is_causal=True), want, leaves)
    for variant in (causal_upper_left, causal_lower_right):
        if variant is causal_lower_right and queries > keys:
            continue  # torch's own answer is NaN for rows without a key
        bias = variant(queries, keys)
        want = scaled_dot_product_attention(*leaves, attn_mask=bias)
        same(relpos.sdpa(*leaves, attn_mask=bias), want, leaves)


def test_sdpa_groups_and_broadcasts():
    leaves = draw((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4))
    want = scaled_dot_product_attention(*leaves, enable_gqa=True)
    same(relpos.sdpa(*leaves, enable_gqa=True), want, leaves)
    leaves = draw((2, 1, 3, 5, 4), (4, 1, 7, 4), (1, 1, 7, 4))
    same(relpos.sdpa(*leaves), scaled_dot_product_attention(*leaves), leaves)
    assert relpos.sdpa(*(x[:0] for x in draw(*[(2, 2, 3, 5, 4)] * 3))).shape == (0, 2, 3, 5, 4)


def test_sdpa_dtypes():
    query, key, value = (x.detach().bfloat16() for x in draw(*[(2, 3, 40, 8)] * 3))
    truth = scaled_dot_product_attention(*(x.double() for x in (query, key, value)))
    ours = relpos.sdpa(query, key, value)
    close(ours.double(), truth, 2.0**-8)  # what is stored has 8 bits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relpos.sdpa(*(x.float() for x in (query, key, value))).dtype == torch.bfloat16


def flash_formula(q, k, v, scale=None, causal=False, window=(-1, -1), slopes=None, cap=None):
    """FlashAttention 2 as its documentation has it, dense; positions aligned at the end."""
    queries, keys = q.shape[1], k.shape[1]
    distance = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    hidden = distance > 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window[0] >= 0:
        hidden = hidden | (distance < -window[0])
    if window[1] >= 0:
        hidden = hidden | (distance > window[1])
    mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, -torch.inf)
    if slopes is not None:
        mask = mask - slopes.expand(q.shape[0], q.shape[2])[..., None, None] * distance.abs()
    found = naive(*(x.transpose(1, 2) for x in (q, k, v)), scale=scale, softcap=cap, mask=mask)
    return found.out.transpose(1, 2), found.lse, found.weights


@pytest.mark.parametrize("sloped", ["", "[H]", "[B, H]"])
@pytest.mark.parametrize(
    ("causal", "window"), [(False, (-1, -1)), (True, (-1, -1)), (True, (2, 0)), (False, (3, 1))]
)
@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (6, 6)])
def test_flash_attn_func(queries, keys, causal, window, sloped):
    q, k, v = leaves = draw((2, queries, 4, 8), (2, keys, 2, 8), (2, keys, 2, 8))
    slopes = {"": None, "[H]": torch.rand(4).double(), "[B, H]": torch.rand(2, 4).double()}[sloped]
    if slopes is not None:
        leaves = [*leaves, slopes.requires_grad_()]
    want, want_lse, want_weights = flash_formula(q, k, v, 0.3, causal, window, slopes)
    call = {"softmax_scale": 0.3, "causal": causal, "window_size": window, "alibi_slopes": slopes}
    got = relpos.flash_attn_func(q, k, v, **call)
    assert got.is_contiguous()
    same(got, want, leaves)
    again, lse, weights = relpos.flash_attn_func(q, k, v, **call, return_attn_probs=True)
    assert torch.equal(again, got)
    close(lse, want_lse)
    close(weights, want_weights)
    assert not weights.requires_grad
    finite = ~want_lse.isinf()
    same(lse[finite], want_lse[finite], [q, k])


def test_flash_attn_func_takes_its_places():
    q, k, v = draw(*[(2, 5, 4, 8)] * 3)
    got, *_ = relpos.flash_attn_func(q, k, v, 0.0, 0.5, True, (2, 0), 0.0, None, True, True)
    close(got, flash_formula(q, k, v, 0.5, True, (2, 0))[0])
    torch.manual_seed(3)
    dropped = relpos.flash_attn_func(q, k, v, 0.5)
    torch.manual_seed(3)
    blhd = (x.transpose(1, 2) for x in (q, k, v))
    close(dropped, relpos.attention(*blhd, dropout_p=0.5).transpose(1, 2))
    capped = relpos.flash_attn_func(q, k, v, softcap=1.5)
    close(capped, flash_formula(q, k, v, cap=1.5)[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_merge_joins_disjoint_keys(dtype):
    query, key, value = leaves = draw((2, 3, 6, 4), (2, 3, 11, 4), (2, 3, 11, 4), dtype=dtype)
    position = relpos.T5Bias(3, buckets=8, max_distance=20).to(dtype)
    mask = torch.ones(6, 11, dtype=torch.bool)
    mask[1] = False  # no key in any part
    mask[2, 3:] = False
    call = {"position": position, "q_offset": 0, "return_lse": True}
    want = relpos.attention(*leaves, attn_mask=mask, **call)
    parts = []
    for a, b in ((0, 3), (3, 3), (3, 10), (10, 11)):
        own = key[:, :, a:b], value[:, :, a:b]
        parts.append(relpos.attention(query, *own, attn_mask=mask[:, a:b], k_offset=a, **call))
    got = relpos.merge(*zip(*parts, strict=True))
    close(got, want, BOUNDS[dtype])
    seen = mask.any(-1)
    same(got[0], want[0], [*leaves, *position.parameters()])
    same(got[1][..., seen], want[1][..., seen], [*leaves[:2], *position.parameters()])
    assert (got[0][:, :, 1] == 0).all()
    assert torch.isneginf(got[1][:, :, 1]).all()
    for gradient in torch.autograd.grad(got[1].nan_to_num(neginf=0.0).sum(), leaves[:2]):
        assert gradient.isfinite().all()


def test_merge_is_differentiable_in_lse():
    outs, lses = draw(*[(2, 5, 4)] * 3), draw(*[(2, 5)] * 3)
    with torch.no_grad():
        lses[1][0, 2:] = -torch.inf
        lses[0][0, 4] = lses[2][0, 4] = -torch.inf
        outs[1][0, 3] = torch.nan  # behind a weight of 0
    out, lse = relpos.merge(outs, lses)
    lse = lse[~torch.isneginf(torch.stack(lses)).all(0)]
    assert out.isfinite().all()
    assert lse.isfinite().all()
    finite = [x.detach()[1].requires_grad_() for x in (*outs, *lses)]
    assert torch.autograd.gradcheck(lambda *x: relpos.merge(x[:3], x[3:]), finite)
    assert torch.autograd.gradgradcheck(lambda *x: relpos.merge(x[:3], x[3:]), finite)
    for gradient in torch.autograd.grad(out.sum() + lse.sum(), [*outs, *lses]):
        assert gradient.isfinite().all()


def test_merge_adds_narrow_outs_in_float32():
    outs = [x.detach().bfloat16() for x in draw(*[(3, 40, 8)] * 4)]
    lses = [x.detach().float() for x in draw(*[(3, 40)] * 4)]
    out, lse = relpos.merge(outs, lses)
    wide, _ = relpos.merge([x.float() for x in outs], lses)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(out, wide.bfloat16())


X, OUT, LSE = torch.randn(2, 4, 4, 8), torch.randn(2, 5, 4), torch.randn(2, 5)
FLAT, STARTS, SLOPES = torch.randn(7, 4, 8), torch.tensor([0, 3, 7]), torch.rand(4)
sdpa, flash, merge = relpos.sdpa, relpos.flash_attn_func, relpos.merge
packed = partial(relpos.flash_attn_varlen_func, FLAT, FLAT, FLAT, STARTS, STARTS)
OF_BIAS = "attn_mask: expected a causal bias of 3 queries and 4"
OF_SLOPES = r"alibi_slopes: expected \[4\]"
REFUSED = {
    ValueError: [
        ("attn_mask: expected None where", lambda: sdpa(X, X, X, X[0, 0] > 0, is_causal=True)),
        ("attn_mask: expected at most", lambda: sdpa(X, X, X, torch.zeros(2, 1, 1, 4, 4))),
        ("query: expected rank 2 or more", lambda: sdpa(X[0, 0, 0], X, X)),
        ("enable_gqa", lambda: sdpa(X, X[:, :2], X[:, :2])),
        (OF_BIAS, lambda: sdpa(X[:, :, :3], X, X, causal_lower_right(2, 3))),
        (OF_BIAS, lambda: sdpa(X[:, :, :3], X, X, causal_upper_left(3, 3))),
        (OF_BIAS, lambda: sdpa(X[:, :, :3], X, X, causal_lower_right(4, 4))),
        (r"k: expected rank 4, \[B, L, H, D\]", lambda: flash(X, X[0], X)),
        ("softcap: expected 0.0", lambda: flash(X, X, X, 0.0, None, False, (-1, -1), 30.0, SLOPES)),
        (OF_SLOPES, lambda: flash(X, X, X, alibi_slopes=torch.rand(3))),
        (OF_SLOPES, lambda: flash(X, X, X, alibi_slopes=torch.rand(3, 4))),
        (OF_SLOPES, lambda: flash(X, X, X, alibi_slopes=torch.rand(2, 2, 2))),
        ("return_attn_probs: expected False", lambda: flash(X, X, X, 0.5, return_attn_probs=True)),
        ("block_table", lambda: packed(block_table=STARTS)),
        (OF_SLOPES, lambda: packed(alibi_slopes=SLOPES.expand(3, 4))),
        ("lses: expected one for each of outs", lambda: merge([], [])),
        ("got 1 outs and 2 lses", lambda: merge([OUT], [LSE, LSE])),
        (r"outs\[1\]: expected", lambda: merge([OUT, OUT[:, :4]], [LSE, LSE])),
        (r"lses\[0\]: expected \[2, 5\]", lambda: merge([OUT], [LSE[0]])),
    ],
    TypeError: [
        (r"key: expected a torch\.Tensor, got NoneType", lambda: sdpa(X, None, X)),
        (r"v: expected a torch\.Tensor, got NoneType", lambda: flash(X, X, None)),
        (r"slopes: expected a torch\.Tensor, got list", lambda: flash(X, X, X, alibi_slopes=[0.5])),
        (r"outs\[1\]: expected torch.float32", lambda: merge([OUT, OUT.double()], [LSE, LSE])),
        (r"outs\[0\]: expected a floating tensor", lambda: merge([OUT.long()], [LSE])),
    ],
}


@pytest.mark.parametrize(
    ("kind", "text", "call"),
    [(kind, *row) for kind, rows in REFUSED.items() for row in rows],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refuses(kind, text, call):
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("keys", [[3, 0, 5], [4, 2, 5]])
def test_flash_attn_varlen_func(keys):
    lengths = [3, 0, 5]
    starts_q, starts_k = (
        torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32) for n in (lengths, keys)
    )
    leaves = draw((sum(lengths), 4, 8), (sum(keys), 2, 8), (sum(keys), 2, 8))
    slopes = torch.rand(4).double().requires_grad_()
    out, lse, weights = relpos.flash_attn_varlen_func(
        *leaves,
        starts_q,
        starts_k,
        max(lengths),
        max(keys),
        causal=True,
        window_size=(3, -1),
        alibi_slopes=slopes,
        return_attn_probs=True,
    )
    rows = [x.split(n) for x, n in zip(leaves, (lengths, keys, keys), strict=True)]
    dense = [
        flash_formula(*(x[s][None] for x in rows), None, True, (3, -1), slopes)
        for s in range(len(lengths))
    ]
    same(out, torch.cat([d[0][0] for d in dense]), [*leaves, slopes])
    close(lse, torch.cat([d[1][0] for d in dense], -1))
    assert weights is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name():
    for layout in (torch.strided, torch.jagged):
        rows = [torch.randn(n, 2, 4) for n in (3, 5)]
        x = torch.nested.nested_tensor(rows, layout=layout).transpose(1, 2)
        for call in (relpos.sdpa, relpos.attention):
            with pytest.raises(TypeError, match="query: expected a dense tensor, got a nested one"):
                call(x, x, x)
