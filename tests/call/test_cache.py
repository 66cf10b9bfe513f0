"""relpos.KVCache: decoding by any steps equals the dense formula of the whole."""

import copy
import pickle
from functools import partial

import pytest
import relpos
import torch

from tests.support.call import Given
from tests.support.oracle import formula, gradients, reads_length
from tests.support.promise import Bounded, missed, promised
from tests.support.sample import HEAD_DIM, HEADS, NAMES, configurations, position, tensors, trained

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = {
    "tokens": [1] * 20,
    "chunks": [5, 1, 1, 9, 0, 4],
    "prefill": [17, 1, 1, 1],
}


def whole(inputs, parts, dtype, **masks):
    return formula(inputs, parts, dtype, is_causal=True, **masks).out


def dense(inputs, parts, dtype, steps, **masks):
    """The formula of the whole, or of all tokens up to each step where a part reads the length."""
    return in_steps(partial(whole, dtype=dtype), inputs, parts, steps, **masks)


def promised_whole(inputs, parts, **masks):
    """Output and bound by docs/accuracy.md, one before the other."""
    found = promised(Given(inputs, parts, is_causal=True, **masks))[0]["out"]
    return torch.stack([found.exact, found.bound])


def in_steps(compute, inputs, parts, steps, key_padding_mask=None, **masks):
    if not any(reads_length(part.name, part.options) for part in parts):
        return compute(inputs, parts, key_padding_mask=key_padding_mask, **masks)
    outs, end = [], 0
    for count in steps:
        end += count
        prefix = [x[:, :, :end] for x in inputs]
        if key_padding_mask is not None:
            masks["key_padding_mask"] = key_padding_mask[:, :end]
        outs.append(compute(prefix, parts, **masks)[..., end - count :, :])
    return torch.cat(outs, -2)


def decode(cache, inputs, module, steps, padding=None, **options):
    """The outputs of all steps, joined."""
    outs, end = [], 0
    for rows in zip(*(x.split(steps, 2) for x in inputs), strict=True):
        end += rows[0].shape[2]
        if padding is not None:
            options["key_padding_mask"] = padding[:, :end]
        outs.append(cache.attend(*rows, position=module, enable_gqa=True, **options))
    return torch.cat(outs, 2)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("name", "number"), configurations())
def test_every_scheme_in_float64(name, number, steps):
    module, part = trained(name, number, dtype=torch.float64)
    inputs = tensors(2, queries=20, keys=20, key_heads=2, dtype=torch.float64)[:3]
    with torch.no_grad():
        got = decode(relpos.KVCache(), inputs, module, STEPS[steps])
    want = dense(inputs, [part], torch.float64, STEPS[steps])
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [[100, *[1] * 40], [70, 64, 6]], ids=len)
def test_in_float32_with_padding(name, steps):
    module, parts = position(name)
    inputs = tensors(2, queries=140, keys=140, key_heads=2)[:3]
    padding = torch.zeros(2, 140, dtype=torch.bool)
    padding[0, :9] = True  # on the left, as generation pads
    with torch.inference_mode():
        got = decode(relpos.KVCache(), inputs, module, steps, padding)
    promise = Bounded(*in_steps(promised_whole, inputs, parts, steps, key_padding_mask=padding))
    assert missed("out", got, promise) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_window_needs_no_more_keys_than_it_sees(name):
    module, parts = position(name, dtype=torch.float64)
    inputs = tensors(2, queries=20, keys=20, key_heads=2, dtype=torch.float64)[:3]
    for steps in STEPS.values():
        want = dense(inputs, parts, torch.float64, steps, window=(6, -1))
        cache = relpos.KVCache(max_length=6)
        with torch.no_grad():
            got = decode(cache, inputs, module, steps, window=(6, 0))
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
        assert (cache.end, len(cache)) == (20, 6 + steps[-1])
        assert torch.equal(cache.key, inputs[1][:, :, cache.start :])
        assert torch.equal(cache.value, inputs[2][:, :, cache.start :])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_earlier_chunks(name):
    module, parts = position(name, dtype=torch.float64)
    *inputs, dout = tensors(2, queries=20, keys=20, key_heads=2, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in inputs]
    got = decode(relpos.KVCache(), leaves, module, STEPS["chunks"])
    want = dense(leaves, parts, torch.float64, STEPS["chunks"])
    torch.testing.assert_close(
        gradients([got], [dout], leaves), gradients([want], [dout], leaves), rtol=1e-9, atol=1e-11
    )


def test_detach_stops_gradients_at_the_memory():
    module, parts = position("t5", dtype=torch.float64)
    inputs = tensors(1, queries=8, keys=8, dtype=torch.float64)[:3]
    cache = relpos.KVCache(max_length=4)
    first, second = ([x[:, :, rows] for x in inputs] for rows in (slice(0, 4), slice(4, 8)))
    first, second = ([x.clone().requires_grad_() for x in half] for half in (first, second))
    cache.attend(*first, position=module)
    cache.detach_()
    out = cache.attend(*second, position=module)
    torch.testing.assert_close(out, whole(inputs, parts, torch.float64)[:, :, 4:])
    out.sum().backward()
    assert all(x.grad is None for x in first)
    assert all(x.grad is not None for x in second)


def test_truncate_reorder_and_clear():
    module, parts = position("sum", dtype=torch.float64)
    inputs = tensors(2, queries=20, keys=20, key_heads=2, dtype=torch.float64)[:3]
    other = tensors(2, queries=20, keys=20, key_heads=2, dtype=torch.float64, seed=1)[:3]
    mixed = [torch.cat([x[:, :, :12], y[:, :, 12:]], 2) for x, y in zip(inputs, other, strict=True)]
    for context in (torch.no_grad, torch.enable_grad):
        cache = relpos.KVCache()
        with context():
            decode(cache, [x[:, :, :17] for x in inputs], module, [10, 7])
            kept = cache.key
            cache.truncate(12)
            rest = decode(cache, [x[:, :, 12:] for x in mixed], module, [1, 7])
            torch.testing.assert_close(rest, whole(mixed, parts, torch.float64)[:, :, 12:])
            assert torch.equal(inputs[1][:, :, :10], kept[:, :, :10])

            cache.truncate(12)
            cache.reorder(torch.tensor([1, 1, 0]))
            rows = [x[[1, 1, 0]] for x in mixed]
            rest = decode(cache, [x[:, :, 12:] for x in rows], module, [8])
            torch.testing.assert_close(rest, whole(rows, parts, torch.float64)[:, :, 12:])

            cache.clear()
            assert (len(cache), cache.start, cache.end, cache.key) == (0, 0, 0, None)
            again = decode(cache, inputs, module, [20])
            torch.testing.assert_close(again, whole(inputs, parts, torch.float64))


def test_inputs_are_never_written():
    """Tensors kept by an append with gradients are not buffers to write into."""
    inputs = tensors(1, queries=4, keys=4)[:3]
    before = [x.clone() for x in inputs]
    cache = relpos.KVCache()
    cache.attend(*inputs)
    with torch.no_grad():
        cache.truncate(2)
        cache.attend(*(x[:, :, 2:] + 1 for x in inputs))
    with torch.inference_mode():
        cache.attend(*(x[:, :, :1] for x in inputs))
    with torch.no_grad():  # a buffer of inference mode is not written outside of it
        cache.attend(*(x[:, :, :1] for x in inputs))
    assert len(cache) == 6
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def test_a_failed_call_changes_nothing():
    inputs = tensors(1, queries=4, keys=4)[:3]
    cache = relpos.KVCache(max_length=3)
    cache.attend(*inputs)
    held = cache.key.clone()
    for context in (torch.no_grad, torch.enable_grad):
        with context(), pytest.raises(ValueError, match="key_padding_mask"):
            cache.attend(*inputs, key_padding_mask=torch.zeros(1, 5, dtype=torch.bool))
        assert (cache.start, cache.end) == (0, 4)
        assert torch.equal(cache.key, held)


def test_buffers_double():
    cache = relpos.KVCache()
    row = torch.zeros(1, 1, 1, 4)
    addresses = set()
    with torch.no_grad():
        for _ in range(1000):
            key, _ = cache.append(row, row)
            addresses.add(key.data_ptr())
    assert len(addresses) <= 5
    assert cache._buffers[0].shape[2] <= 2048
    memory = relpos.KVCache(max_length=10)
    with torch.no_grad():
        for _ in range(1000):
            memory.append(row, row)
    assert memory._buffers[0].shape[2] <= 64


def test_copies_and_text():
    inputs = tensors(1, queries=4, keys=4)[:3]
    cache = relpos.KVCache(max_length=3)
    assert repr(cache) == "KVCache(max_length=3): empty"
    with torch.no_grad():
        cache.attend(*inputs)
        cache.attend(*inputs)
        assert repr(cache) == "KVCache(max_length=3): positions 1 to 8"
        for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
            assert (twin.start, twin.end) == (1, 8)
            assert torch.equal(twin.attend(*inputs), copy.deepcopy(cache).attend(*inputs))
            assert (cache.start, cache.end) == (1, 8)


def test_refuses():
    q, k, v = tensors(2, queries=3, keys=3, key_heads=2)[:3]
    for length in (-1, 1.5, True):
        with pytest.raises(ValueError, match="max_length: expected None or an int"):
            relpos.KVCache(max_length=length)
    cache = relpos.KVCache()
    cache.append(k, v)
    for key, value, kind, text in (
        (k[0], v, ValueError, r"key: expected rank 4, \[B, Hk, n, D\]"),
        (k.numpy(), v, TypeError, "key: expected a torch.Tensor, got ndarray"),
        (k.double(), v.double(), TypeError, "key: expected torch.float32, as held"),
        (k[:1], v[:1], ValueError, r"key: expected \[2, 2, n, 8\], as held"),
        (k, v[:, :, :2], ValueError, r"value: expected \[2, 2, 3\] before its last axis"),
    ):
        with pytest.raises(kind, match=text):
            cache.append(key, value)
    with pytest.raises(TypeError, match="q_offset: the cache says"):
        cache.attend(q, k, v, q_offset=0)
    with pytest.raises(ValueError, match="end: expected a position from 0 to 3"):
        cache.truncate(4)
    assert len(cache) == 3


def test_in_multihead_attention():
    torch.manual_seed(0)
    module = relpos.nn.MultiheadAttention(
        HEADS * HEAD_DIM, HEADS, num_kv_heads=2, position=relpos.T5Bias(HEADS), batch_first=True
    ).eval()
    x = torch.randn(2, 12, HEADS * HEAD_DIM)
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[1, :3] = True
    call = {"is_causal": True, "need_weights": True, "average_attn_weights": False}
    want, weights = module(x, x, x, key_padding_mask=padding, **call)
    for steps in ([1] * 12, [6, 1, 5]):
        cache, end = relpos.KVCache(), 0
        with torch.no_grad():
            for rows in x.split(steps, 1):
                start, end = end, end + rows.shape[1]
                out, seen = module(
                    rows, rows, rows, key_padding_mask=padding[:, :end], cache=cache, **call
                )
                torch.testing.assert_close(out, want[:, start:end], rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(
                    seen, weights[:, :, start:end, :end], rtol=1e-5, atol=1e-6
                )
    with pytest.raises(TypeError, match="q_offset: the cache says"):
        module(rows, rows, rows, cache=cache, q_offset=0)
    with pytest.raises(TypeError, match="k_offset: the cache says"):
        module(rows, rows, rows, cache=cache, k_offset=torch.zeros(2, dtype=torch.int64))


def test_compiled_decoding():
    torch._dynamo.reset()
    module = position("t5")[0]
    inputs = tensors(1, queries=3, keys=3)[:3]

    @torch.compile(backend="aot_eager")
    def step(cache, q, k, v):
        return cache.attend(q, k, v, position=module)

    with torch.no_grad():
        want = decode(relpos.KVCache(), inputs, module, [1] * 3)
        cache = relpos.KVCache()
        got = [step(cache, *rows) for rows in zip(*(x.split(1, 2) for x in inputs), strict=True)]
    torch.testing.assert_close(torch.cat(got, 2), want)
