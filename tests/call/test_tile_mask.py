"""attn_mask=relpos.TileMask: the results of the same bool mask, with every option."""

import os
import pickle
import subprocess
import sys

import pytest
import relpos
import torch
from relpos import TileMask

from tests import ROOT
from tests.support.oracle import gradients
from tests.support.steps import same_at_any_thread_count, same_bits, step

# Decoding, few rows of many heads, one block, blocks that end within tiles, long blocks.
LENGTHS = [(1, 70), (5, 333), (40, 64), (130, 193), (301, 257)]


def tiles_of(queries, keys, batch=1, heads=1, seed=0):
    """A mask with tiles that are empty, full and in part, and a query that sees nothing."""
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.randint(3, (batch, heads, queries // 96 + 1, keys // 64 + 1), generator=draw)
    wide = kinds.repeat_interleave(96, 2).repeat_interleave(64, 3)[:, :, :queries, :keys]
    mask = (wide == 2) | ((wide == 1) & (torch.rand(wide.shape, generator=draw) < 0.3))
    if queries > 2:
        mask[..., 1, :] = False
    of = (queries, keys)
    made = relpos.from_mask_mod(lambda *at: mask[at], *of, batch=batch, heads=heads)
    assert torch.equal(made.dense(), mask)
    return made


def inputs(queries, keys, dtype=torch.float32, heads=4, kv_heads=4):
    draw = torch.Generator().manual_seed(queries)
    shapes = [(2, heads, queries, 16), (2, kv_heads, keys, 16), (2, kv_heads, keys, 16)]
    made = [torch.randn(s, generator=draw).to(dtype) for s in shapes]
    dout = torch.randn(shapes[0], generator=draw).to(dtype)
    dlse = torch.randn(shapes[0][:3], generator=draw)
    return made, dout, dlse.double() if dtype == torch.float64 else dlse


def run(mask, tensors, dout, dlse, **call):
    torch.manual_seed(5)
    position = call.pop("position", None)
    if isinstance(position, type):
        position = made(position)
    if position is not None and dout.dtype == torch.float64:
        position = position.double()
    call.setdefault("q_offset", 0)
    return step(*tensors, dout, position, dlse, attn_mask=mask, enable_gqa=True, **call)


def made(kind):
    return {relpos.T5Bias: lambda: kind(4), relpos.ALiBi: lambda: kind(4)}.get(
        kind, lambda: kind(heads=4, head_dim=16, max_distance=9)
    )()


def plain(tensors, mask, bias=0.0):
    """Attention in plain torch; a query that sees nothing gives 0 and -inf."""
    q, k, v = tensors
    repeat = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeat, 1) for x in (k, v))
    scores = (q @ k.mT) / q.shape[-1] ** 0.5 + bias
    scores = scores.masked_fill(~mask, -torch.inf)
    blind = ~mask.any(-1, keepdim=True).expand(*q.shape[:3], 1)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return weights @ v, scores.masked_fill(blind, 0.0).logsumexp(-1)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_in_float64_as_in_plain_torch(queries, keys, batch, heads):
    mask = tiles_of(queries, keys, batch, heads)
    tensors, dout, _ = inputs(queries, keys, torch.float64, kv_heads=2)
    leaves = [x.requires_grad_() for x in tensors]
    got = gradients([relpos.attention(*leaves, attn_mask=mask, enable_gqa=True)], [dout], leaves)
    want = gradients([plain(leaves, mask.dense())[0]], [dout], leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_bits_of_the_dense_mask(queries, keys, dtype):
    given = inputs(queries, keys, dtype)
    for batch, heads in ((1, 1), (2, 4)):
        mask = tiles_of(queries, keys, batch, heads)
        same_bits(run(mask, *given), run(mask.dense(), *given))


OPTIONS = {
    "causal": {"is_causal": True},
    "window": {"window": (50, 9)},
    "padding": {"key_padding_mask": True},
    "key range": {"key_range": True},
    "dropout": {"dropout_p": 0.3},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 0.0, 3.0])},
    "offsets": {"q_offset": torch.tensor([100, -7]), "position": relpos.T5Bias},
    "rows": {"position": relpos.Shaw, "is_causal": True},
    "falls": {"position": relpos.ALiBi, "is_causal": True},
    "falls on both sides": {"position": relpos.ALiBi},
    "bias": {"position": relpos.T5Bias},
}


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("name", OPTIONS)
def test_with_every_option(name, queries, keys):
    call = dict(OPTIONS[name])
    if "key_padding_mask" in call:
        call["key_padding_mask"] = torch.arange(keys) >= torch.tensor([[keys - 3], [keys // 2]])
    if "key_range" in call:
        lo = torch.arange(queries) % 40
        call["key_range"] = (lo, lo + 60)
    mask = tiles_of(queries, keys, 1, 4)
    given = inputs(queries, keys, kv_heads=2)
    same_bits(run(mask, *given, **call), run(mask.dense(), *given, **call))


def test_with_the_bias_of_an_image():
    """Swin's trained bias in neighbourhoods, against plain torch: out and every gradient."""
    grid = (9, 11)
    mask = TileMask.neighborhood(grid, 5)
    bias = relpos.SwinBias(4, window=list(grid)).double()
    torch.nn.init.normal_(next(bias.parameters()))
    tensors, dout, _ = inputs(99, 99, torch.float64)
    leaves = [x.requires_grad_() for x in (*tensors, *bias.parameters())]
    out = relpos.attention(*tensors, position=bias, attn_mask=mask)
    dense = bias.dense(99, 99)
    want = plain(tensors, mask.dense(), dense)[0]
    for a, b in zip(
        gradients([out], [dout], leaves), gradients([want], [dout], leaves), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for dtype in (torch.float32, torch.bfloat16):
        given = [x.detach().to(dtype) for x in tensors], dout.to(dtype), None
        bias = bias.float()
        same_bits(run(mask, *given, position=bias), run(mask.dense(), *given, position=bias))


CHILD = """
import relpos, torch
from tests.call import test_tile_mask as own

print(relpos.show_config()["target"])
for queries, keys in own.LENGTHS:
    for dtype in (torch.float32, torch.bfloat16):
        given = own.inputs(queries, keys, dtype, kv_heads=2)
        for kind in (relpos.T5Bias, relpos.Shaw):
            mask = own.tiles_of(queries, keys, 2, 4)
            own.same_bits(*(own.run(m, *given, position=kind) for m in (mask, mask.dense())))
"""


TARGETS = [*relpos.show_config()["targets available"].split(), "amx_emulated"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_bits_of_the_dense_mask_on_every_target(target):
    environment = os.environ | {"RELPOS_TARGET": target}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == target


def test_scores_and_weights():
    mask = tiles_of(130, 193, 2, 4)
    (q, k, v), _, _ = inputs(130, 193)
    got, want = (relpos.scores(q, k, attn_mask=m) for m in (mask, mask.dense()))
    same_bits([got], [want])
    got, want = (
        relpos.attention(q, k, v, attn_mask=m, return_lse=True, return_weights=True)
        for m in (mask, mask.dense())
    )
    same_bits(got, want)
    q = q.double().requires_grad_()
    k = k.double().requires_grad_()
    seen = mask.dense()
    grads = [
        gradients(
            [relpos.scores(q, k, attn_mask=m)[seen]], [torch.ones(int(seen.sum())).double()], [q, k]
        )
        for m in (mask, seen)
    ]
    same_bits(*grads)


def test_a_hidden_nan_has_no_influence():
    mask = tiles_of(130, 193)
    tensors, dout, dlse = inputs(130, 193)
    hidden = mask & TileMask.intervals(torch.zeros(130).long(), torch.full((130,), 100), 193)
    k, v = (x.clone() for x in tensors[1:])
    k[:, :, 100:], v[:, :, 100:] = torch.nan, torch.inf
    expected = run(hidden, tensors, dout, dlse)
    got = run(hidden, [tensors[0], k, v], dout, dlse)
    same_bits(got[:3], expected[:3])


def test_bits_do_not_depend_on_threads():
    mask = TileMask.neighborhood((20, 31), (5, 9), (2, 3)) | TileMask.prefix(9, 620)
    given = inputs(620, 620, kv_heads=2)
    same_at_any_thread_count(lambda: run(mask, *given, position=relpos.T5Bias))


@pytest.mark.parametrize("queries", [1, 7, 40])
def test_long_keys_in_chunks(queries):
    """Decoding, whose keys are divided among tasks."""
    keys = 9000
    lo = torch.arange(0, 9000, 1500)[:, None].expand(-1, queries) + torch.arange(queries)
    mask = TileMask.intervals(lo, lo + 200, keys)
    given = inputs(queries, keys, kv_heads=1)
    same_bits(run(mask, *given), run(mask.dense(), *given))
    out = run(mask, *given)[0]
    want, _ = plain([x.double() for x in given[0]], mask.dense())
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


def test_through_other_functions():
    (q, k, v), _, _ = inputs(50, 50)
    mask = tiles_of(50, 50, 2, 1)
    dense = mask.dense()
    want = relpos.attention(q, k, v, attn_mask=dense)
    assert torch.equal(relpos.sdpa(q, k, v, mask), want)
    assert torch.equal(relpos.KVCache().attend(q, k, v, attn_mask=mask, is_causal=False), want)
    layer = relpos.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 50, 64)
    assert torch.equal(layer(x, x, x, attn_mask=mask)[0], layer(x, x, x, attn_mask=~dense)[0])
    again = pickle.loads(pickle.dumps(mask))
    assert torch.equal(relpos.attention(q, k, v, attn_mask=again), want)
    from relpos.hf._interface import attention_function

    got, _ = attention_function(torch.nn.Module(), q, k, v, mask, scaling=0.25)
    assert torch.equal(got.transpose(1, 2), want)
    memory = relpos.attention(*(x.to("meta") for x in (q, k, v)), attn_mask=mask)
    assert memory.is_meta
    assert memory.shape == want.shape


@pytest.mark.parametrize("batch", [1, 3])
def test_vmap(batch):
    q, k, v = torch.randn(3, 2, 3, 4, 50, 16).unbind()
    mask = tiles_of(50, 50, batch, 4)

    def of(q, k, v):
        return relpos.attention(q, k, v, attn_mask=mask)

    got = torch.vmap(of)(q, k, v)
    assert torch.equal(got, torch.stack([of(*each) for each in zip(q, k, v, strict=True)]))
    per_row = torch.vmap(torch.func.grad(lambda *x: of(*x).sum()))(q, k, v)
    want = [torch.func.grad(lambda *x: of(*x).sum())(*e) for e in zip(q, k, v, strict=True)]
    assert torch.equal(per_row, torch.stack(want))


def test_compile():
    (q, k, v), dout, _ = inputs(50, 50)
    mask = tiles_of(50, 50, 1, 4)
    compiled = torch.compile(
        lambda q, k, v, mask: relpos.attention(q, k, v, attn_mask=mask), fullgraph=True
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    got = gradients([compiled(*leaves, mask)], [dout], leaves)
    want = gradients([relpos.attention(*leaves, attn_mask=mask)], [dout], leaves)
    same_bits(got, want)
    other = tiles_of(50, 50, 1, 4, seed=3)
    assert torch.equal(compiled(q, k, v, other), relpos.attention(q, k, v, attn_mask=other))


def test_a_sparse_mask_of_many_tokens_is_small_and_right():
    tokens = 16384
    q, k, v = torch.randn(3, 1, 1, tokens, 16).unbind()
    mask = TileMask.neighborhood((128, 128), 3)
    held = sum(x.nbytes for x in (mask.ranges, mask.entries, mask.words))
    assert held < tokens * tokens / 300
    out = relpos.attention(q, k, v, attn_mask=mask)
    for i in (0, 5000, tokens - 1):
        y, x = (min(max(at, 1), 126) for at in divmod(i, 128))
        seen = [(y + a) * 128 + x + b for a in (-1, 0, 1) for b in (-1, 0, 1)]
        row = slice(i, i + 1)
        want, _ = plain([q[:, :, row], k[:, :, seen], v[:, :, seen]], torch.ones(1, 9).bool())
        torch.testing.assert_close(out[:, :, row], want)


def broken(**parts):
    mask = tiles_of(130, 193)
    held = {"shape": mask.shape, "ranges": mask.ranges, "entries": mask.entries} | {
        "words": mask.words
    }
    return TileMask(**(held | parts))


ERRORS = {
    "lengths": (lambda: tiles_of(130, 194), ValueError, r"got one of \[1, 1, 130, 194\]"),
    "heads": (
        lambda: tiles_of(130, 193, 1, 3),
        ValueError,
        r"attn_mask: expected a TileMask that broadcasts to \[2, 4, 130, 193\], got one of \[1, 3",
    ),
    "no mask": (lambda: 3, TypeError, "attn_mask: expected a bool or floating-point tensor, or a"),
    "tiles beyond the keys": (
        lambda: broken(entries=torch.tensor([[9, -1]]), ranges=torch.tensor([[[[0, 1]] * 2]])),
        ValueError,
        "attn_mask: expected tiles of a TileMask that ascend from 0 to 3, got 9 after -1",
    ),
    "words that are not there": (
        lambda: broken(entries=torch.tensor([[2, 99]]), ranges=torch.tensor([[[[0, 1]] * 2]])),
        ValueError,
        "attn_mask: expected rows of words of a TileMask from -1 to",
    ),
    "entries that are not there": (
        lambda: broken(ranges=torch.tensor([[[[0, 1], [5, 999]]]])),
        ValueError,
        "attn_mask: expected ranges of a TileMask from 0 to",
    ),
    "blocks": (
        lambda: broken(ranges=torch.tensor([[[[0, 1]]]])),
        ValueError,
        "attn_mask: expected ranges of 2 blocks of a TileMask, got 1",
    ),
    "dtype": (
        lambda: broken(words=torch.zeros(5, 96)),
        TypeError,
        "attn_mask: expected int64 words of a TileMask, got float32",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.filterwarnings("ignore")
def test_errors(name):
    mask, kind, message = ERRORS[name]
    (q, k, v), _, _ = inputs(130, 193)
    with pytest.raises(kind, match=message):
        relpos.attention(q, k, v, attn_mask=mask())


@pytest.fixture
def single_rank():
    """A group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("single_rank")
def test_where_it_is_refused():
    (q, k, v), _, _ = inputs(50, 50)
    mask = tiles_of(50, 50)
    packed = [x[0].transpose(0, 1) for x in (q, k, v)]
    with pytest.raises(TypeError, match=r"attention_varlen.*unexpected.*attn_mask"):
        relpos.attention_varlen(*packed, torch.tensor([0, 50]), attn_mask=mask)
    with pytest.raises(ValueError, match="attn_mask: expected None, since no rank holds"):
        relpos.distributed.ring_attention(q, k, v, attn_mask=mask)
    layer = relpos.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 50, 64)
    with pytest.raises(ValueError, match="key_padding_mask: expected bool, or 0 and -inf, beside"):
        layer(x, x, x, attn_mask=mask, key_padding_mask=torch.randn(2, 50))
