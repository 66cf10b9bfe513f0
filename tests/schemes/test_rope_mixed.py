"""RoPE-Mixed: frequencies that each head learns."""

import pytest
import relpos
import torch

from tests.support.oracle import gradients, naive
from tests.support.sample import tensors
from tests.support.steps import same_at_any_thread_count, step

GRID, PREFIX, HEADS, DIM = (4, 6), 1, 4, 8
TOKENS = PREFIX + GRID[0] * GRID[1]
WIDE = torch.float64


def drawn(dtype=WIDE, key_heads=HEADS, batch=2, length=TOKENS):
    """query, key, value, dout of one image with a token before its patches."""
    sizes = {"queries": length, "keys": length, "head_dim": DIM, "value_dim": DIM}
    return tensors(batch, HEADS, **sizes, key_heads=key_heads, dtype=dtype)


def mixed(dtype=WIDE, **options):
    torch.manual_seed(3)
    options = {"grid": list(GRID), "prefix": PREFIX} | options
    return relpos.RoPEMixed(HEADS, DIM, **options).to(dtype)


def written_out(q, k, v, freqs):
    """The output by the paper's code: complex numbers, real beside imaginary; x is the column."""
    patch = torch.arange(GRID[0] * GRID[1])
    y, x = patch // GRID[1], patch % GRID[1]
    angle = x[None, :, None] * freqs[0][:, None] + y[None, :, None] * freqs[1][:, None]
    unit = torch.polar(torch.ones_like(angle), angle)  # [Hk, patches, pairs]

    def turn(t):
        own = unit.repeat_interleave(t.shape[1] // unit.shape[0], 0)
        pairs = torch.view_as_complex(t[:, :, PREFIX:].unflatten(-1, (-1, 2)).contiguous())
        return torch.cat([t[:, :, :PREFIX], torch.view_as_real(pairs * own).flatten(-2)], 2)

    return naive(turn(q), turn(k), v).out


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_equals_the_papers_code(dtype, kv_heads):
    key_heads = kv_heads or HEADS
    *inputs, dout = drawn(dtype, key_heads)
    position = mixed(dtype, kv_heads=kv_heads)
    assert position.freqs.shape == (2, key_heads, DIM // 2)
    out, _, *found = step(*inputs, dout, position, enable_gqa=True)
    wide = [x.detach().to(WIDE).requires_grad_() for x in (*inputs, position.freqs)]
    expected = written_out(*wide)
    wanted = [expected, *gradients([expected], [dout.to(WIDE)], wide)]
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == WIDE else {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close([x.to(WIDE) for x in (out, *found)], wanted, **close)


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
    inputs = drawn(dtype)
    position = mixed(dtype, prefix=0, grid=[9, 9])
    near = torch.arange(TOKENS) // GRID[1] * 17 + torch.arange(TOKENS) % GRID[1]

    def gradient(at):
        return step(*inputs, position, q_positions=at, k_positions=at)[-1]

    found, expected = gradient(near + 17 * 1_000_000), gradient(near)
    rounding = 1e-5 if dtype == torch.float32 else 1e-8
    assert (found - expected).abs().max() < rounding * expected.abs().max()


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("length", [TOKENS, 300])
def test_same_bits_at_any_thread_count(key_heads, length):
    inputs = drawn(torch.float32, key_heads, length=length)
    for kv_heads in (key_heads, 1):
        position = mixed(torch.float32, kv_heads=kv_heads)
        same_at_any_thread_count(lambda at=position: step(*inputs, at, enable_gqa=True))


@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_a_hidden_key_reaches_no_frequency(dtype):
    def gradient(fill):
        q, k, v, dout = drawn(dtype)
        k[:, :, 7], v[:, :, 7] = fill, fill
        hidden = torch.zeros(2, TOKENS, dtype=torch.bool)
        hidden[:, 7] = True
        return step(q, k, v, dout, mixed(dtype), key_padding_mask=hidden)[-1]

    assert torch.equal(gradient(torch.nan), gradient(0.0))
    assert gradient(torch.nan).abs().max() > 1e-3


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
    cos, sin = (x.repeat_interleave(2, 0) for x in position.tables(5, 3))
    rows = q[..., :5, :]
    turned = position.rotate(rows, 3), rows * cos + partner[..., :5, :] * sin
    torch.testing.assert_close(*turned, rtol=1e-12, atol=1e-12)
    seed = torch.randn(rows.shape, dtype=WIDE)
    found, want = (torch.autograd.grad(x, position.freqs, seed)[0] for x in turned)
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
