"""relpos.hf with caches: those that drop keys, those of a fixed size, masks left out."""

import copy

import pytest
import relpos
import torch
import transformers
from hf_models import FAMILIES, inputs, same
from relpos.hf import _traced
from transformers import masking_utils

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

_CHUNKED = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size_mlp": 40,
    "num_local_experts": 1,
    "attention_chunk_size": 6,
    "layer_types": ["chunked_attention", "full_attention"],
}


def chunked():
    """Llama 4 with random weights that matter: it has no adapter, attention alone is relpos's."""
    torch.manual_seed(0)
    config = transformers.Llama4TextConfig(**FAMILIES["Llama"].options | _CHUNKED)
    model = transformers.Llama4ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model


def pair(name):
    """A model on eager attention, and its copy on relpos."""
    relpos.hf.register()
    model = chunked() if name == "Llama 4" else FAMILIES[name].make()
    model.set_attn_implementation("eager")
    ours = copy.deepcopy(model)
    if name == "Llama 4":
        ours.set_attn_implementation("relpos")
        return model, ours
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
MASKS = ["none", "ones", "padded"]


def mask_of(kind):
    if kind == "none":
        return None
    mask = torch.ones(2, 24, dtype=torch.int64)
    if kind == "padded":
        mask[0, :5] = 0
    return mask


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("cut", "step"), [(8, 1), (9, 5), (3, 1)])
@pytest.mark.parametrize("name", DROPPING)
@torch.no_grad()
def test_a_cache_that_drops_keys(name, cut, step, kind):
    mask = mask_of(kind)
    theirs, ours = (
        fed(model, step, cut, mask, transformers.DynamicCache(config=model.config))
        for model in pair(name)
    )
    seen = 1 if mask is None else mask.cumsum(1)[..., None] > 0
    ours, theirs = ours * seen, theirs * seen
    same(ours, theirs)


@pytest.mark.parametrize("kind", ["none", "padded"])
@pytest.mark.parametrize("name", [*DROPPING[:3], "BLOOM", "MPT", "Llama"])
@torch.no_grad()
def test_a_static_cache(name, kind):
    mask = mask_of(kind)
    length = 32 if name == "BLOOM" else 0  # BLOOM reads its ALiBi off a mask as long as the cache
    theirs, ours = (
        fed(model, 1, 8, mask, transformers.StaticCache(model.config, 32), length)
        for model in pair(name)
    )
    seen = 1 if mask is None else mask.cumsum(1)[..., None] > 0
    ours, theirs = ours * seen, theirs * seen
    same(ours, theirs)


@pytest.mark.parametrize("name", ["Mistral, window", "Gemma 3"])
@torch.no_grad()
def test_windows_compile_with_a_static_cache(name):
    model, fused = pair(name)
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
    model, fused = pair("Mistral, window")
    for each in (model, fused):
        each.config.sliding_window = 1
    whole = model(inputs(FAMILIES["Llama"], 24)["input_ids"], use_cache=False).logits
    for step in (1, 3):
        cache = transformers.DynamicCache(config=fused.config)
        ours = fed(fused, step, 6, None, cache)
        same(ours, whole)


@pytest.mark.parametrize("kind", ["none", "padded"])
def test_a_bert_that_is_no_decoder_generates(kind):
    torch.manual_seed(0)
    options = {**FAMILIES["Phi"].options, "initializer_range": 0.2}
    model = transformers.BertLMHeadModel(transformers.BertConfig(**options)).eval()
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
    model, fused = pair("Mistral, window")
    ids = inputs(FAMILIES["Llama"])["input_ids"]
    torch._dynamo.reset()
    ours = torch.compile(fused, backend="eager")(ids, use_cache=False).logits
    theirs = model(ids, use_cache=False).logits
    same(ours, theirs)


@pytest.mark.parametrize("name", ["BLOOM", "MPT"])
@torch.no_grad()
def test_distances_do_not_grow_with_a_static_cache(name):
    _, fused = pair(name)
    caches = (
        transformers.DynamicCache(config=fused.config),
        transformers.StaticCache(fused.config, 2**15),
    )
    theirs, ours = (fed(fused, 1, 21, None, cache) for cache in caches)
    same(ours, theirs)
