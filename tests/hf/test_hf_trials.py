"""relpos.hf changes nothing of a model while it tries it, and changes only what it found right."""

import copy

import pytest
import relpos
import torch
import transformers
from transformers.models.bloom import modeling_bloom
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mpnet import modeling_mpnet
from transformers.models.mpt import modeling_mpt
from transformers.models.t5 import modeling_t5

from tests.hf.hf_models import (
    FAMILIES,
    Family,
    inputs,
    new_pair,
    outputs,
    same,
    same_generation,
    same_outputs,
    states,
)
from tests.support.near import close_to_largest

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

_ROPE = {"rope_theta": 1e4}
BY_LENGTH = {  # rotations whose tables depend on the lengths that the model has seen
    "dynamic": {**_ROPE, "rope_type": "dynamic", "factor": 8.0},
    "longrope": {
        **_ROPE,
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
    },
}


def by_length(name, kind):
    options = {"max_position_embeddings": 16} if kind == "dynamic" else {}
    return FAMILIES[name].make(rope_parameters=dict(BY_LENGTH[kind]), **options)


def state(model):
    """Everything that modules hold, beside what relpos.hf puts into them; tensors are copied."""
    replaced = ("build_alibi_tensor", "build_mpt_alibi_tensor", "compute_position_bias")
    found = {}
    for name, part in model.named_modules():
        for key, value in vars(part).items():
            if "relpos" in key or key in replaced:
                continue
            if isinstance(value, transformers.PretrainedConfig):
                value = {k: v for k, v in value.to_dict().items() if "attn_impl" not in k}
            if key in ("_parameters", "_buffers"):
                value = {k: v if v is None else v.detach().clone() for k, v in value.items()}
            elif isinstance(value, torch.Tensor):
                value = value.detach().clone()
            elif isinstance(value, dict):
                value = dict(value)
            found[name, key] = value
    return found


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return a is b or a == b


@pytest.mark.parametrize("name", [*FAMILIES, *BY_LENGTH])
def test_linearize_leaves_the_state_as_it_is(name):
    model = by_length("Llama", name) if name in BY_LENGTH else FAMILIES[name].make()
    model.train()
    next(part for part in model.modules() if isinstance(part, torch.nn.Linear)).eval()
    called = []
    for part in model.modules():
        part.register_forward_hook(lambda module, *_: called.append(type(module)))
    before = state(model)
    drawn = torch.get_rng_state()
    relpos.hf.fuse(model)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.is_grad_enabled()
    assert called == []
    after = state(model)
    assert after.keys() == before.keys()
    assert [key for key in before if not equal(before[key], after[key])] == []


@pytest.mark.parametrize("kind", BY_LENGTH)
def test_logits_stay_on_eager_attention(kind):
    model = by_length("Llama", kind)
    ids = torch.arange(3, 33)[None]
    before = model(ids, use_cache=False).logits
    relpos.hf.fuse(model).set_attn_implementation("eager")
    assert torch.equal(model(ids, use_cache=False).logits, before)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Llama", "dynamic"),
        ("Llama", "longrope"),
        ("Falcon, rotary", "dynamic"),
        ("Phi-3", "longrope"),
    ],
)
def test_a_rotation_by_length_beyond_its_original_one(name, kind):
    """Short calls, long ones and short ones again: the tables depend on those before."""
    family = FAMILIES[name]
    model = by_length(name, kind)
    fused = relpos.hf.fuse(copy.deepcopy(model))
    for layer in relpos.hf.report(fused).layers:
        assert layer.state == "fused"
        assert "Falcon" not in name or f"got '{kind}': the model rotates" in layer.why
    for length in (20, 9, 40, 15, 17, 90, 12):
        given = inputs(family, length, mask="ones")
        (ours, gradients), (theirs, expected) = (outputs(family, m, given) for m in (fused, model))
        same(ours, theirs)
        for parameter, gradient in gradients.items():
            close_to_largest(gradient, expected[parameter], 1e-4, parameter)
    for length in (9, 30, 9):
        same_generation(fused, model, 16, input_ids=inputs(family, length)["input_ids"])


def test_linearize_does_not_depend_on_the_caller_s_modes():
    family = FAMILIES["BLOOM"]
    model = family.make()
    fused = copy.deepcopy(model)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu"):
            relpos.hf.fuse(fused)
    finally:
        torch.set_default_dtype(torch.float32)
    assert states(fused) == {"fused"}
    same_outputs(family, fused, model)


def compare(name, length, **options):
    """A model and its linearized copy agree, with caches and without; the copy."""
    family = FAMILIES[name]
    model, fused = new_pair(family, **options)
    for mask in ("none", "ones" if "window" in name else "padded"):
        same_outputs(family, fused, model, inputs(family, length, mask=mask))
    if family.kind == "decoder":
        given = inputs(family, length, mask="ones")
        same(fused(**given, use_cache=True).logits, model(**given, use_cache=True).logits)
    return fused


def weighed(when):
    """Queries of some lengths are weighed."""

    def change(result, *_, **__):
        query, key = result
        weights = torch.linspace(0.5, 1.5, query.shape[-1])
        return query * weights if when(query.shape[-2]) else query, key

    return change


def doubled_beyond_16(bias, module, queries, *_, **__):
    return bias * (2.0 if queries > 16 else 1.0)


def bent(bias, *_, **__):
    return bias - bias.abs().clamp(max=2) / 2


def first_bucket_below(distance):
    return lambda buckets, at, *_, **__: torch.where(at < distance, 0, buckets)


def rolled_beyond_16(result, *_, **__):
    out, *others = result
    return (out + 0.3 * out.roll(1, dims=1) if out.shape[1] > 16 else out, *others)


_ROTARY = (modeling_llama, "apply_rotary_pos_emb")
_WINDOWED = (modeling_mistral, "apply_rotary_pos_emb")
_BEYOND_70 = weighed(lambda n: n > 70)
DIFFERENT = {  # a model and its options, a length, a function whose result changes, the states
    **{
        f"a rotation beyond {most}": (
            *("Llama", {}, min(most + 10, 60), *_ROTARY),
            *(weighed(lambda n, most=most: n > most), "attention"),
        )
        for most in (0, 1, 16, 40, 256, 1024)
    },
    "a rotation of one": ("Llama", {}, 20, *_ROTARY, weighed(lambda n: n == 1), "attention"),
    "a rotation of even": ("Llama", {}, 20, *_ROTARY, weighed(lambda n: n % 2 == 0), "attention"),
    "a rotation of odd": ("Llama", {}, 20, *_ROTARY, weighed(lambda n: n % 2 == 1), "attention"),
    **{
        f"a rotation beyond {option}": (
            *("Mistral, window", {option: 70}, 80, *_WINDOWED, _BEYOND_70, "attention"),
        )
        for option in ("sliding_window", "max_position_embeddings")
    },
    "biases beyond a length": (
        *("T5", {}, 40, modeling_t5.T5Attention, "compute_bias", doubled_beyond_16, "untouched"),
    ),
    "buckets of T5 beyond a distance": (
        *("T5", {}, 70, modeling_t5.T5Attention, "_relative_position_bucket"),
        *(first_bucket_below(-20), "attention and fused"),
    ),
    "buckets of MPNet beyond a distance": (
        *("MPNet", {}, 200, modeling_mpnet.MPNetEncoder, "relative_position_bucket"),
        *(first_bucket_below(-150), "untouched"),
    ),
    "an ALiBi of BLOOM that is not linear": (
        *("BLOOM", {}, 40, modeling_bloom.BloomModel, "build_alibi_tensor", bent, "untouched"),
    ),
    "an ALiBi of MPT that is not linear": (
        *("MPT", {}, 40, modeling_mpt.MptModel, "build_mpt_alibi_tensor", bent, "untouched"),
    ),
    **{
        f"{name}'s class beyond a length": (
            *(name, {}, 40, None, "forward", rolled_beyond_16, "untouched"),
        )
        for name in ("BLOOM", "MPT", "MPNet", "GPT-J", "Falcon, rotary")
    },
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_code_of_the_same_name_that_does_more(what, monkeypatch):
    name, options, length, owner, function, change, state = DIFFERENT[what]
    if owner is None:
        modules = relpos.hf._discover.attention_modules(FAMILIES[name].make())
        owner = type(next(iter(modules))[1])
    own = getattr(owner, function)

    def changed(*args, **kwargs):
        return change(own(*args, **kwargs), *args, **kwargs)

    static = isinstance(vars(owner)[function], staticmethod)
    monkeypatch.setattr(owner, function, staticmethod(changed) if static else changed)
    fused = compare(name, length, **options)
    assert states(fused) == set(state.split(" and "))
    assert "buckets" not in what or "buckets" in str(relpos.hf.report(fused))


MASK_READERS = {  # of which keys the class reads a dense mask
    "any": None,
    "one key": lambda q, k: k == 1,
    "six keys": lambda q, k: k == 6,
    "more than 16 keys": lambda q, k: k > 16,
    "more keys than queries": lambda q, k: q < k,
}


@pytest.mark.parametrize("kind", MASK_READERS)
def test_a_class_that_computes_with_its_mask(kind, monkeypatch):
    """It gets the matrix. Where it asks first whether the mask is a tensor, at some lengths alone,
    its own eager attention, over these keys or with a cache, differs: it stays as it is."""
    own, when = modeling_llama.LlamaAttention.forward, MASK_READERS[kind]

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        mask = attention_mask
        if when is None and mask is not None:
            mask = mask - 0.1 * torch.arange(mask.shape[-1])
        elif isinstance(mask, torch.Tensor) and when(*mask.shape[-2:]):
            mask = mask - 0.1 * torch.arange(mask.shape[-1])
            hidden_states = 1.5 * hidden_states
        return own(self, hidden_states, position_embeddings, mask, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forward)
    assert states(compare("Llama", 21)) == {"attention" if when is None else "untouched"}


def test_a_layer_that_computes_with_its_mask_gets_the_matrix(monkeypatch):
    own = modeling_llama.LlamaDecoderLayer.forward

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        return own(self, hidden_states, 0.5 * attention_mask, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaDecoderLayer, "forward", forward)
    family = FAMILIES["Llama"]
    model, fused = new_pair(family)
    assert states(fused) == {"fused"}
    same_outputs(family, fused, model)


def test_a_model_that_raises_on_relpos_stays_as_it_is(monkeypatch):
    own = modeling_llama.LlamaDecoderLayer.forward

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        if not isinstance(attention_mask, torch.Tensor):
            raise TypeError("expected a tensor")
        return own(self, hidden_states, attention_mask, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaDecoderLayer, "forward", forward)
    family = FAMILIES["Llama"]
    model = family.make()
    before = {name: (type(part), set(vars(part))) for name, part in model.named_modules()}
    fused = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="keeps layers untouched: 2 LlamaAttention .*expected a"):
        relpos.hf.fuse(fused)
    for layer in relpos.hf.report(fused).layers:
        assert layer.state == "untouched"
        assert "LlamaModel on relpos: a trial with random weights raised TypeError" in layer.why
    for name, part in fused.named_modules():
        kind, attributes = before[name]
        assert type(part) is kind
        assert set(vars(part)) - attributes <= {"_relpos_status"}
    given = inputs(family)
    assert torch.equal(outputs(family, fused, given)[0], outputs(family, model, given)[0])
    with pytest.raises(ValueError, match="would keep layers untouched"):
        relpos.hf.fuse(model, strict=True)
    assert all("_relpos" not in str(set(vars(part))) for part in model.modules())


def test_an_object_with_a_forward_of_its_own_stays_as_it_is():
    family = FAMILIES["Llama"]
    model = family.make()
    for layer in model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **_: (0.5 * hidden_states, None)
    given = inputs(family)
    before, _ = outputs(family, model, given)
    relpos.hf.fuse(model)
    assert states(model) == {"untouched"}
    assert torch.equal(outputs(family, model, given)[0], before)


_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def composite(kind, text, **options):
    """A model of images and text, whose outer class makes the masks."""
    given = {
        "text_config": {**FAMILIES["Gemma"].options, **text},
        "vision_config": _VISION,
        "image_token_id": 50,
        **options,
    }
    return Family(f"{kind}ForConditionalGeneration", given, "decoder")


COMPOSITES = {
    "PaliGemma": composite("PaliGemma", {"model_type": "gemma"}, projection_dim=32),
    "PaliGemma 2": composite(
        "PaliGemma",
        {"model_type": "gemma2", "sliding_window": 6, "attn_logit_softcapping": 1.5},
        projection_dim=32,
    ),
    "Gemma 3": composite(
        "Gemma3",
        {
            "model_type": "gemma3_text",
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        mm_tokens_per_image=4,
    ),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_models_of_images_and_text(name):
    model, fused = new_pair(COMPOSITES[name])
    found = {layer.kind: layer.state for layer in relpos.hf.report(fused).layers}
    assert found["SiglipAttention"] == "attention"
    assert "fused" in found.values()
    ids = torch.randint(3, 49, (2, 20), generator=torch.Generator().manual_seed(1))
    seen = torch.ones_like(ids)
    seen[0, :5] = seen[1, 6] = 0
    seen[1, 17:] = 0
    kinds = torch.ones_like(ids) if "Pali" in name else torch.zeros_like(ids)
    inside = 0 if "Pali" in name else 1  # a prefix, or the tokens of an image
    kinds[:, 2 : 11 if inside else 0] = inside
    kinds[:, : 0 if inside else 9] = inside
    kinds[seen == 0] = 0
    for more in ({}, {"attention_mask": seen}, {"token_type_ids": kinds, "attention_mask": seen}):
        for cached in (False, True):
            ours, theirs = (
                each(input_ids=ids, **more, use_cache=cached).logits * seen[..., None]
                for each in (fused, model)
            )
            same(ours, theirs)
    labels = ids.masked_fill(seen * seen.roll(1, dims=1) == 0, -100)  # padding predicts nothing
    given = {"input_ids": ids, "labels": labels, "token_type_ids": kinds, "attention_mask": seen}
    losses = [each(**given).loss for each in (fused, model)]
    same(*losses)
    losses[0].backward()
    seen[1], kinds[1] = 1, kinds[0]  # generation goes on from the last token
    for cached in (False, True):
        how = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "use_cache": cached}
        texts = [
            each.generate(input_ids=ids, attention_mask=seen, token_type_ids=kinds, **how)
            for each in (fused, model)
        ]
        assert torch.equal(*texts)
