"""What is around a call, over the kernels of the GPU: torch.compile, autocast, checkpoints, vmap,
caches, calls of other libraries, a model of transformers. test_process.py has ranks."""

import pytest
import relpos
import torch
from relpos.gpu.mode import INTERPRETS
from torch.utils.checkpoint import checkpoint

from tests import FULL

HEADS, HEAD_DIM, LENGTH = 2, 8, 20


@pytest.fixture
def launched():
    """That forward and backward passes were launched while a test ran."""
    before = relpos.gpu.launches()
    yield
    for name in ("forward", "backward_keys", "backward_queries"):
        assert relpos.gpu.launches()[name] > before.get(name, 0)


class Block(torch.nn.Module):
    """Causal attention with a trained T5 table."""

    def __init__(self):
        super().__init__()
        self.position = relpos.T5Bias(HEADS, bidirectional=False)
        torch.nn.init.normal_(self.position.relative_attention_bias.weight)

    def forward(self, q, k, v):
        return relpos.attention(q, k, v, position=self.position, is_causal=True)


def drawn(*batch):
    return [torch.randn(*batch, HEADS, LENGTH, HEAD_DIM, requires_grad=True) for _ in range(3)]


def step(block, attend, given):
    """out and the gradients of the inputs and of the table."""
    out = attend(*given)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [*given, *block.parameters()])]


def assert_the_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_in_one_graph(launched, dynamic):
    block = Block()
    attend = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (LENGTH, 9):
        given = [x.detach()[:, :, :length].requires_grad_() for x in drawn(2)]
        assert_the_same(step(block, attend, given), step(block, block, given))


def test_torch_export(launched):
    block, given = Block(), drawn(1)
    program = torch.export.export(block, tuple(x.detach() for x in given))
    assert torch.equal(program.module()(*given), block(*given))
    step(block, block, given)


def test_checkpoints_compute_again(launched):
    block, given = Block(), drawn(2)

    def attend(*given):
        return checkpoint(block, *given, use_reentrant=False)

    assert_the_same(step(block, attend, given), step(block, block, given))


def test_autocast(launched):
    block, given = Block(), drawn(2)
    with torch.autocast("cpu", torch.bfloat16):
        out = block(*given)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, block(*(x.bfloat16() for x in given)))
    out.sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in given)


def test_vmap_and_its_gradients(launched):
    block, given = Block(), [x.detach() for x in drawn(3, 2)]

    def loss(q, k, v):
        return block(q, k, v).square().sum()

    every = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*given)
    for n in range(3):
        own = torch.func.grad(loss, argnums=(0, 1, 2))(*(x[n] for x in given))
        assert_the_same([x[n] for x in every], own)


def test_decoding_by_a_cache_and_merged_chunks():
    block = Block()
    q, k, v = (x.detach() for x in drawn(1))
    whole, cache = block(q, k, v), relpos.KVCache()
    for n in range(LENGTH):
        token = [x[:, :, n : n + 1] for x in (q, k, v)]
        found = cache.attend(*token, position=block.position)
        torch.testing.assert_close(found, whole[:, :, n : n + 1], rtol=0, atol=1e-6)
    chunks = [
        relpos.attention(
            *(q, k[:, :, keys], v[:, :, keys]),
            position=block.position,
            is_causal=True,
            q_offset=0,
            k_offset=keys.start,
            return_lse=True,
        )
        for keys in (slice(0, 7), slice(7, LENGTH))
    ]
    merged, _ = relpos.merge(*zip(*chunks, strict=True))
    torch.testing.assert_close(merged, whole, rtol=0, atol=1e-6)


def test_calls_of_other_libraries():
    q, k, v = (x.detach() for x in drawn(2))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(relpos.sdpa(q, k, v, is_causal=True), expected, rtol=0, atol=1e-5)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    found = relpos.flash_attn_func(*turned, causal=True)
    torch.testing.assert_close(found.transpose(1, 2), expected, rtol=0, atol=1e-5)


@pytest.mark.peers
@pytest.mark.skipif(INTERPRETS and not FULL, reason="half a minute: with RELPOS_FULL=1")
def test_a_model_of_transformers_is_fused_by_the_same_line(launched):
    from transformers import T5Config, T5ForConditionalGeneration  # which takes seconds

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=50, decoder_start_token_id=0, dropout_rate=0.0, **sizes)
    model = T5ForConditionalGeneration(config)
    tokens = {"input_ids": torch.randint(1, 50, (2, 9)), "labels": torch.randint(1, 50, (2, 7))}

    def results():
        model.zero_grad()
        found = model(**tokens)
        found.loss.backward()
        return [found.logits.detach(), *(p.grad.clone() for p in model.parameters())]

    plain, before = results(), relpos.gpu.launches().get("forward", 0)
    relpos.hf.fuse(model)
    assert [layer.state for layer in relpos.hf.report(model).layers] == 6 * ["fused"]
    fused = results()
    assert relpos.gpu.launches()["forward"] >= before + 6
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_what_the_machine_computes_with():
    assert "the interpreter of Triton 3." in relpos.show_config()["GPU"]
