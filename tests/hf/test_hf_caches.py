"""relpos.hf with caches: those that drop keys, those of a fixed size, masks left out."""

import copy

import pytest
import relpos
import torch
import transformers
from relpos.hf import _traced
from transformers import masking_utils

from tests.hf.hf_models import FAMILIES, OTHERS, Family, inputs, same

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]


def on_eager_and_relpos(name):
    """A model on eager attention, and its copy on relpos."""
    relpos.hf.register()
    model = (FAMILIES | OTHERS)[name].make()
    model.set_attn_implementation("eager")
    ours = copy.deepcopy(model)
    if name in OTHERS:
        ours.set_attn_implementation("relpos")
    return model, relpos.hf.fuse(ours)


def fed(model, step, cut, mask, cache, mask_length=0):
    """Logits of ids [2, 24] given in pieces: `cut` tokens, then `step` tokens at a time."""
    ids = inputs(FAMILIES["Llama"], 24)["input_ids"]
    found, start = [], 0
    while start < ids.shape[1]:
        stop = cut if start == 0 else start + step
        part = mask
        if mask is not None:
            part = torch.nn.functional.pad(mask[:, :stop], (0, max(mask_length - stop, 0)))
        given = {"attention_mask": part, "past_key_values": cache, "use_cache": True}
        found.append(model(ids[:, start:stop], **given).logits)
        start = stop
    return torch.cat(found, dim=1)


DROPPING = ["Mistral, window", "Qwen2, window", "Gemma 3", "Phi-3", "Llama 4"]


def agree_with_caches(name, step, cut, kind, cache_of, mask_length=0):
    mask, seen = None, 1
    if kind != "none":
        mask = torch.ones(2, 24, dtype=torch.int64)
        mask[0, : 5 if kind == "padded" else 0] = 0
        seen = mask.cumsum(1)[..., None] > 0
    theirs, ours = (
        fed(model, step, cut, mask, cache_of(model.config), mask_length) * seen
        for model in on_eager_and_relpos(name)
    )
    same(ours, theirs)


@pytest.mark.parametrize("kind", ["none", "ones", "padded"])
@pytest.mark.parametrize(("cut", "step"), [(8, 1), (9, 5), (3, 1)])
@pytest.mark.parametrize("name", DROPPING)
@torch.no_grad()
def test_a_cache_that_drops_keys(name, cut, step, kind):
    agree_with_caches(name, step, cut, kind, lambda c: transformers.DynamicCache(config=c))


@pytest.mark.parametrize("kind", ["none", "padded"])
@pytest.mark.parametrize("name", [*DROPPING[:3], "BLOOM", "MPT", "Llama"])
@torch.no_grad()
def test_a_static_cache(name, kind):
    length = 32 if name == "BLOOM" else 0  # BLOOM reads its ALiBi off a mask as long as the cache
    agree_with_caches(name, 1, 8, kind, lambda c: transformers.StaticCache(c, 32), length)


@pytest.mark.parametrize("name", ["Mistral, window", "Gemma 3"])
@torch.no_grad()
def test_windows_compile_with_a_static_cache(name):
    model, fused = on_eager_and_relpos(name)
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="eager", fullgraph=True)
    token = inputs(FAMILIES["Llama"])["input_ids"][:, :4]
    caches = [transformers.StaticCache(model.config, 32) for _ in range(2)]
    ours, theirs = fused, model
    for _ in range(6):  # the window of 6 keys fills and moves on
        a = ours(token, past_key_values=caches[0]).logits[:, -1:]
        b = theirs(token, past_key_values=caches[1]).logits[:, -1:]
        same(a, b)
        token, ours = b.argmax(-1), compiled


@torch.no_grad()
def test_a_window_of_one_key():
    """A cache of transformers then holds all keys, and eager attention reads them all: the whole
    sequence at once is what both should give."""
    model, fused = on_eager_and_relpos("Mistral, window")
    for each in (model, fused):
        each.config.sliding_window = 1
    whole = model(inputs(FAMILIES["Llama"], 24)["input_ids"], use_cache=False).logits
    for step in (1, 3):
        same(fed(fused, step, 6, None, transformers.DynamicCache(config=fused.config)), whole)


@pytest.mark.parametrize("kind", ["none", "padded"])
def test_a_bert_that_is_no_decoder_generates(kind):
    model = Family("BertLMHeadModel", FAMILIES["Phi"].options, "decoder", "BertConfig").make()
    given = inputs(FAMILIES["Llama"])
    given["attention_mask"] = None if kind == "none" else given["attention_mask"]
    relpos.hf.register()
    texts = []
    for way in ("eager", "relpos"):
        model.set_attn_implementation(way)
        texts.append(model.generate(**given, max_new_tokens=6, do_sample=False, eos_token_id=None))
    assert torch.equal(*texts)


@pytest.mark.parametrize("keys", [4, 6])
def test_keys_that_a_mask_does_not_count_are_refused(keys):
    relpos.hf.register()
    mask = relpos.hf._mask.mask_function(1, 5, 5)
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, keys, 8)
    with pytest.raises(ValueError, match=rf"5 queries and 5 keys, .* called with 5 and {keys}"):
        relpos.hf._interface.attend(q, k, k, mask)


BOUNDS = {
    "causal": (masking_utils.causal_mask_function, (None, 0)),
    "all": (masking_utils.bidirectional_mask_function, (None, None)),
    "window": (masking_utils.sliding_window_causal_mask_function(3), (2, 0)),
    "two-sided": (masking_utils.sliding_window_bidirectional_mask_function(2), (2, 2)),
    "shifted": (lambda b, h, q, k: k - 1 < q - 2, (None, -2)),
    "every other key": (lambda b, h, q, k: k % 2 == 0, None),
    "either": (masking_utils.or_masks(masking_utils.causal_mask_function), None),
    "two keys": (lambda b, h, q, k: k > k - 2, None),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_bounds_found_by_calling_a_mask_function(kind):
    function, expected = BOUNDS[kind]
    found = _traced.bounds(function)
    assert (found and (found.left, found.right)) == expected


@torch.no_grad()
def test_compiles_without_a_mask_and_without_a_cache():
    """transformers then looks for packed sequences, whose mask breaks the graph."""
    model, fused = on_eager_and_relpos("Mistral, window")
    ids = inputs(FAMILIES["Llama"])["input_ids"]
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="eager")
    same(*(each(ids, use_cache=False).logits for each in (compiled, model)))


@pytest.mark.parametrize("name", ["BLOOM", "MPT"])
@torch.no_grad()
def test_distances_do_not_grow_with_a_static_cache(name):
    _, fused = on_eager_and_relpos(name)
    caches = (
        transformers.DynamicCache(config=fused.config),
        transformers.StaticCache(fused.config, 2**15),
    )
    theirs, ours = (fed(fused, 1, 21, None, cache) for cache in caches)
    same(ours, theirs)
