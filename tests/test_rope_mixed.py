"""RoPE-Mixed: frequencies that each head learns."""

import itertools

import pytest
import relpos
import torch
from oracle import gradients

GRID, PREFIX, HEADS, DIM = (4, 6), 1, 4, 8
TOKENS = PREFIX + GRID[0] * GRID[1]
WIDE = torch.float64


def drawn(dtype=WIDE, key_heads=HEADS, batch=2, seed=0):
    """query, key, value, dout of one image with a token before its patches."""
    draw = torch.Generator().manual_seed(seed)
    heads = (HEADS, key_heads, key_heads, HEADS)
    shapes = [(batch, count, TOKENS, DIM) for count in heads]
    return [torch.randn(shape, generator=draw, dtype=WIDE).to(dtype) for shape in shapes]


def mixed(dtype=WIDE, **options):
    torch.manual_seed(3)
    options = {"grid": list(GRID), "prefix": PREFIX} | options
    return relpos.RoPEMixed(HEADS, DIM, **options).to(dtype)


def written_out(q, k, v, freqs):
    """As the paper's code does it: complex numbers of pairs that lie side by side, x the column."""
    patch = torch.arange(GRID[0] * GRID[1])
    y, x = patch // GRID[1], patch % GRID[1]
    angle = x[None, :, None] * freqs[0][:, None] + y[None, :, None] * freqs[1][:, None]
    unit = torch.polar(torch.ones_like(angle), angle)  # [Hk, patches, pairs]

    def turn(t):
        own = unit.repeat_interleave(t.shape[1] // unit.shape[0], 0)
        pairs = torch.view_as_complex(t[:, :, PREFIX:].unflatten(-1, (-1, 2)).contiguous())
        return torch.cat([t[:, :, :PREFIX], torch.view_as_real(pairs * own).flatten(-2)], 2)

    group = q.shape[1] // k.shape[1]
    k, v = turn(k).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return ((turn(q) @ k.mT) * DIM**-0.5).softmax(-1) @ v


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_equals_the_papers_code(dtype, kv_heads):
    key_heads = kv_heads or HEADS
    *inputs, dout = (x.to(dtype) for x in drawn(key_heads=key_heads))
    position = mixed(dtype, kv_heads=kv_heads)
    assert position.freqs.shape == (2, key_heads, DIM // 2)
    leaves = [x.requires_grad_() for x in inputs]
    out = relpos.attention(*leaves, position=position, enable_gqa=True)
    found = [out, *gradients([out], [dout], [*leaves, position.freqs])]
    wide = [x.detach().to(WIDE).requires_grad_() for x in (*leaves, position.freqs)]
    expected = written_out(*wide)
    wanted = [expected, *gradients([expected], [dout.to(WIDE)], wide)]
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == WIDE else {"rtol": 2e-5, "atol": 2e-5}
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.to(WIDE), want, **close)


def test_one_image_shifted_has_the_same_scores():
    q, k = drawn()[:2]
    position = mixed(prefix=0, grid=[9, 9])
    y, x = torch.arange(TOKENS) // GRID[1], torch.arange(TOKENS) % GRID[1]

    def scores(down, right):
        at = (y + down) * 17 + x + right
        return relpos.scores(q, k, position=position, q_positions=at, k_positions=at)

    torch.testing.assert_close(scores(3, 2), scores(0, 0), rtol=1e-12, atol=1e-12)
    moved = (y + 1) * 17 + x
    other = relpos.scores(q, k, position=position, q_positions=moved, k_positions=y * 17 + x)
    assert (other - scores(0, 0)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_far_images_have_the_same_gradients(dtype):
    q, k, v, dout = (x.to(dtype) for x in drawn())
    position = mixed(dtype, prefix=0, grid=[9, 9])
    near = torch.arange(TOKENS) // GRID[1] * 17 + torch.arange(TOKENS) % GRID[1]

    def gradient(at):
        call = {"q_positions": at, "k_positions": at}
        out = relpos.attention(q, k, v, position=position, **call)
        return gradients([out], [dout], [position.freqs])[0]

    found, expected = gradient(near + 17 * 1_000_000), gradient(near)
    rounding = 1e-5 if dtype == torch.float32 else 1e-8
    assert (found - expected).abs().max() < rounding * expected.abs().max()


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("length", [TOKENS, 300])
def test_same_bits_at_any_thread_count(key_heads, length):
    draw = torch.Generator().manual_seed(1)
    shapes = [(2, heads, length, DIM) for heads in (HEADS, key_heads, key_heads, HEADS)]
    *inputs, dout = (torch.randn(shape, generator=draw) for shape in shapes)
    before, found = torch.get_num_threads(), {}
    try:
        for count, kv_heads in itertools.product((1, 2, 4), (key_heads, 1)):
            torch.set_num_threads(count)
            position = mixed(torch.float32, kv_heads=kv_heads)
            leaves = [x.clone().requires_grad_() for x in inputs]
            out = relpos.attention(*leaves, position=position, enable_gqa=True)
            results = [out, *gradients([out], [dout], [*leaves, position.freqs])]
            for got, want in zip(results, found.setdefault(kv_heads, results), strict=True):
                assert torch.equal(got, want)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_a_hidden_key_reaches_no_frequency(dtype):
    def gradient(fill):
        q, k, v, dout = (x.to(dtype) for x in drawn())
        k[:, :, 7], v[:, :, 7] = fill, fill
        hidden = torch.zeros(2, TOKENS, dtype=torch.bool)
        hidden[:, 7] = True
        position = mixed(dtype)
        out = relpos.attention(q, k, v, position=position, key_padding_mask=hidden)
        return gradients([out], [dout], [position.freqs])[0]

    assert torch.equal(gradient(torch.nan), gradient(0.0))
    assert gradient(torch.nan).abs().max() > 1e-3


def test_gradcheck():
    q, k, v, _ = drawn(batch=1)
    q, k, v = (x[:, :, :6].requires_grad_() for x in (q, k, v))
    position = mixed()

    def attend(freqs, *tensors):
        return torch.func.functional_call(Attending(position), {"position.freqs": freqs}, tensors)

    freqs = position.freqs.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(attend, (freqs, q, k, v))


class Attending(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, q, k, v):
        return relpos.attention(q, k, v, position=self.position)


def test_starts_at_right_angles():
    freqs = mixed().freqs.detach()
    first, second = freqs[:, :, : DIM // 4], freqs[:, :, DIM // 4 :]
    length = 10.0 ** (-4 * torch.arange(DIM // 4, dtype=WIDE) / DIM)
    for half in (first, second):
        torch.testing.assert_close(half.norm(dim=0), length.expand(HEADS, -1), rtol=1e-6, atol=0)
    torch.testing.assert_close((first * second).sum(0), torch.zeros(HEADS, 2, dtype=WIDE))
    assert len(torch.atan2(first[1, :, 0], first[0, :, 0]).unique()) == HEADS


def test_tables_and_rotate_are_those_of_each_head():
    q, k = drawn(key_heads=2)[:2]
    position = mixed(kv_heads=2)
    cos, sin = position.tables(TOKENS)
    assert cos.shape == sin.shape == (2, TOKENS, DIM)
    assert (cos[:, :PREFIX] == 1).all()
    turned = [position.rotate(x) for x in (q, k)]
    own = [x.repeat_interleave(2, 0) for x in (cos, sin)]
    partner = torch.stack([-q[..., 1::2], q[..., 0::2]], -1).flatten(-2)
    torch.testing.assert_close(turned[0], q * own[0] + partner * own[1], rtol=1e-12, atol=1e-12)
    scores = relpos.scores(q, k, position=position, enable_gqa=True)
    by_hand = turned[0] @ turned[1].repeat_interleave(2, 1).mT * DIM**-0.5
    torch.testing.assert_close(scores, by_hand, rtol=1e-12, atol=1e-12)
    seed = torch.randn(scores.shape, dtype=WIDE)
    found, want = (torch.autograd.grad(x, position.freqs, seed)[0] for x in (scores, by_hand))
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-10)


def test_errors_say_why():
    position = mixed(torch.float32)
    with pytest.raises(ValueError, match=r"\[\.\.\., H, L, D\], H a multiple of the 4 heads"):
        position.rotate(torch.zeros(4, DIM))
    q, k, v, _ = drawn(torch.float32, key_heads=2)
    with pytest.raises(ValueError, match="kv_heads=4, the call has 2; make the position with kv_h"):
        relpos.attention(q, k, v, position=position, enable_gqa=True)
    with pytest.raises(ValueError, match="multiple of 4, got 6"):
        relpos.RoPEMixed(4, 6, grid=[4])
