"""Masks by tiles, weights and scores in the interpreter, against the same without them."""

import importlib
from functools import partial

import pytest
import relpos
import torch
from relpos.gpu.rows import chunks

from tests.gpu.cases import DEVICE

QUERIES, KEYS = 97, 130


def inputs(dtype=torch.float32):
    torch.manual_seed(5)
    shapes = (2, 4, QUERIES, 16), (2, 2, KEYS, 16), (2, 2, KEYS, 5)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


POSITIONS = {
    "t5": lambda: relpos.T5Bias(4),
    "shaw": lambda: relpos.Shaw(9, 16, values=False),
    "lines": lambda: relpos.ALiBi(4, learned=True) + relpos.KerpleLog(4),
}


def position(name):
    module = POSITIONS[name]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return module


def step(attend, given, module):
    out = attend(*given)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [*given, *module.parameters()])]


def some_of_both(b, h, i, j):
    """Full tiles, tiles in part, and tiles that nobody sees, other ones in each row and head."""
    return ((j - i + 20 * h) % 170 < 90 + 10 * b) & (j // 64 != 1 + b) | (i // 70 == h - 2)


def after_a_tile(b, h, i, j):
    return j >= 64


@pytest.mark.parametrize(
    ("rows", "name"),
    [((1, 1), "t5"), ((2, 4), "lines"), ((1, 4), "shaw"), ((2, 1), "t5"), ((2, 4), "window")],
)
def test_a_mask_by_tiles_is_its_dense_mask(rows, name, garbage, monkeypatch):
    if name == "shaw":
        monkeypatch.setattr(chunks, "MOST_BYTES", 1)  # of 64 queries
    seen = after_a_tile if name == "window" else some_of_both
    mask = relpos.from_mask_mod(seen, QUERIES, KEYS, batch=rows[0], heads=rows[1])
    given, module = inputs(), position("t5" if name == "window" else name)
    options = {"position": module, "enable_gqa": True}
    if name == "lines":  # far from the keys, where rows count from the nearest that their head sees
        options |= {"q_positions": torch.arange(QUERIES) + 200, "k_positions": torch.arange(KEYS)}
    else:
        options |= {"q_offset": 0}
    if name == "window":  # blocks of keys begin anywhere in tiles
        options |= {"window": (45, 31)}
    before = relpos.gpu.launches().get("write_cells_of_tiles", 0)
    found, dense = (
        step(lambda *x, m=m: relpos.attention(*x, attn_mask=m, **options), given, module)
        for m in (mask, mask.dense())
    )
    assert relpos.gpu.launches()["write_cells_of_tiles"] > before
    for one, other in zip(found, dense, strict=True):
        assert torch.equal(one, other)


def test_the_last_keys_are_seen_by_blocks_that_reach_beyond_them():
    """Of 130 keys the last two are a tile of their own; a block begins within the one before."""
    mask = relpos.from_mask_mod(lambda b, h, i, j: j >= 128, QUERIES, KEYS)
    options = {"enable_gqa": True, "q_offset": 0, "window": (45, 40)}
    given = inputs()
    found, dense = (relpos.attention(*given, attn_mask=m, **options) for m in (mask, mask.dense()))
    assert torch.equal(found, dense)
    assert found[:, :, 96].any()


@pytest.mark.skipif(DEVICE != "cpu", reason="the interpreter calls functions of Python")
def test_tiles_that_nobody_sees_are_not_computed(monkeypatch):
    """Of 64 keys and as many queries: 4 of 12 are in a block of the mask that sees them."""
    counts = dict.fromkeys(("forward", "backward_queries", "backward_keys"), 0)

    def counted(kernel, add, *given):
        counts[kernel] += 1
        return add(*given)

    for kernel in counts:
        module = importlib.import_module(f"relpos.gpu.passes.{kernel}")
        name = "add_queries" if kernel == "backward_keys" else "add_keys"
        monkeypatch.setattr(module, name, partial(counted, kernel, getattr(module, name)))
    q, k = (torch.randn(1, 1, n, 16, requires_grad=True) for n in (192, 256))
    mask = relpos.from_mask_mod(lambda b, h, i, j: j // 64 == i // 96 + 1, 192, 256)
    relpos.attention(q, k, k, attn_mask=mask, q_offset=0).sum().backward()
    assert counts == dict.fromkeys(counts, 4)


def test_masks_by_tiles_that_hide_all_or_nothing(garbage):
    q, k, v = inputs()
    options = {"enable_gqa": True, "q_offset": 0}
    for seen in (True, False):
        mask = relpos.from_mask_mod(lambda b, h, i, j, seen=seen: torch.tensor(seen), QUERIES, KEYS)
        found = relpos.attention(q, k, v, attn_mask=mask, **options)
        plain = relpos.attention(q, k, v, **options)
        if seen:  # by tiles in another order
            torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)
        else:
            assert not found.any()


def test_a_mask_by_tiles_of_another_size_is_refused_as_on_the_cpu():
    mask = relpos.TileMask.prefix(3, QUERIES)
    with pytest.raises(ValueError, match=r"^attn_mask: expected a TileMask that broadcasts to"):
        relpos.attention(*inputs(), attn_mask=mask, enable_gqa=True, q_offset=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", POSITIONS)
def test_weights_mix_the_values(name, dtype, garbage, monkeypatch):
    if name == "shaw":
        monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    q, k, v = (x.detach() for x in inputs(dtype))
    options = {"position": position(name), "enable_gqa": True, "window": (40, 7), "q_offset": 30}
    torch.manual_seed(3)
    out, weights = relpos.attention(q, k, v, dropout_p=0.25, return_weights=True, **options)
    mixed = weights.double() @ v.double().repeat_interleave(2, 1)
    roughness = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), mixed, rtol=roughness, atol=roughness)
    at = torch.arange(KEYS) - torch.arange(QUERIES)[:, None] - 30
    seen = (at >= -40) & (at <= 7)
    assert not weights[..., ~seen].any()
    dropped = (weights[..., seen] == 0).double().mean()
    assert 0.2 < dropped < 0.3
    whole = relpos.attention(q, k, v, return_weights=True, **options)[1].double().sum(-1)
    torch.testing.assert_close(whole, torch.ones_like(whole), rtol=0, atol=roughness)


@pytest.mark.parametrize("name", POSITIONS)
def test_scores_are_what_the_softmax_takes(name, garbage, monkeypatch):
    if name == "shaw":
        monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    q, k, v = (x.detach() for x in inputs())
    options = {"position": position(name), "enable_gqa": True, "is_causal": True, "q_offset": 30}
    scores = relpos.scores(q, k, softcap=4.0, **options)
    weights = relpos.attention(q, k, v, softcap=4.0, return_weights=True, **options)[1]
    torch.testing.assert_close(scores.softmax(-1), weights, rtol=1e-5, atol=1e-6)
    later = torch.arange(KEYS) > torch.arange(QUERIES)[:, None] + 30
    assert scores[..., later].isneginf().all()
    assert scores[..., ~later].isfinite().all()
    assert scores[..., ~later].abs().max() <= 4.0
    if name == "t5":
        plain = relpos.scores(q, k, enable_gqa=True, q_offset=30)
        expected = 0.25 * q.double() @ k.double().repeat_interleave(2, 1).mT
        torch.testing.assert_close(plain.double(), expected, rtol=1e-5, atol=1e-5)


def mask_of_pairs():
    torch.manual_seed(9)
    mask = torch.randn(4, QUERIES, KEYS)
    return mask.masked_fill(torch.rand_like(mask) < 0.2, -torch.inf).requires_grad_()


@pytest.mark.parametrize("name", POSITIONS)
def test_gradients_of_scores_are_those_of_the_softmax_over_them(name, garbage, monkeypatch):
    """Attention over relpos.scores by torch, against relpos.attention."""
    if name == "shaw":
        monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    q, k, v = inputs()
    module, mask = position(name), mask_of_pairs()
    options = {"position": module + relpos.AttentionSink(4), "enable_gqa": True, "q_offset": 30}
    options |= {"attn_mask": mask, "window": (40, 30)}
    options |= {} if name == "lines" else {"softcap": 4.0}
    sinks = options["position"].parts[-1]
    wanted = [q, k, mask, *options["position"].parameters()]

    scores = relpos.scores(q, k, **options)
    ends = sinks.sinks.detach()[:, None, None].expand(2, 4, QUERIES, 1)
    weights = torch.cat([scores, ends], -1).softmax(-1)[..., :-1]
    mixed = weights @ v.repeat_interleave(2, 1)
    found = torch.autograd.grad(mixed.square().sum(), wanted, allow_unused=True)
    out = relpos.attention(q, k, v, **options)
    expected = torch.autograd.grad(out.square().sum(), wanted)
    torch.testing.assert_close(mixed, out, rtol=1e-5, atol=1e-5)
    for tensor, one, other in zip(wanted, found, expected, strict=True):
        if tensor is sinks.sinks:
            assert not one.any()
        else:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_scores_leave_out_what_joins_values(garbage):
    q, k, _ = inputs()
    shaw = relpos.Shaw(9, 16, value_dim=5)
    scores = relpos.scores(q, k, position=shaw, enable_gqa=True, q_offset=30)
    keys, values = torch.autograd.grad(scores.square().sum(), list(shaw.parameters()))
    assert keys.any()
    assert not values.any()
