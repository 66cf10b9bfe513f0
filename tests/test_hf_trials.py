"""relpos.hf changes nothing of a model while it tries it, and changes only what it found right."""

import copy

import pytest
import relpos
import torch
import transformers
from hf_models import FAMILIES, inputs, outputs, same, same_generation
from relpos.hf import _mask
from transformers import masking_utils
from transformers.models.bloom import modeling_bloom
from transformers.models.llama import modeling_llama
from transformers.models.mpnet import modeling_mpnet
from transformers.models.mpt import modeling_mpt
from transformers.models.t5 import modeling_t5

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


def states(model):
    return {layer.state for layer in relpos.hf.report(model).layers}


def state(model):
    """Everything that modules hold, beside what relpos.hf puts into them; tensors are copied."""
    found = {}
    for name, part in model.named_modules():
        for key, value in vars(part).items():
            if "relpos" in key or key in ("build_alibi_tensor", "build_mpt_alibi_tensor"):
                continue
            if key == "compute_position_bias":
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
def test_fuse_leaves_the_state_as_it_is(name):
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
    for length in (20, 9, 40, 15, 17, 90, 12):
        given = inputs(family, length, mask="ones")
        (ours, gradients), (theirs, expected) = (outputs(family, m, given) for m in (fused, model))
        same(ours, theirs)
        for parameter, gradient in gradients.items():
            most = expected[parameter].abs().max().item()
            torch.testing.assert_close(gradient, expected[parameter], rtol=0, atol=1e-4 * most)
    for length in (9, 30, 9):
        prompt = inputs(family, length)["input_ids"]
        same_generation(fused, model, 16, input_ids=prompt)


def test_fuse_does_not_depend_on_the_caller_s_modes():
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
    (ours, _), (theirs, _) = (outputs(family, m, inputs(family)) for m in (fused, model))
    same(ours, theirs)


def compare(name, length, **options):
    """A model and its fused copy, with caches and without; the copy's state."""
    family = FAMILIES[name]
    model = family.make(**options)
    fused = relpos.hf.fuse(copy.deepcopy(model))
    for mask in ("none", "ones" if "window" in name else "padded"):
        given = inputs(family, length, mask=mask)
        (ours, _), (theirs, _) = (outputs(family, each, given) for each in (fused, model))
        same(ours, theirs)
    if family.kind == "decoder":
        given = inputs(family, length, mask="ones")
        same(fused(**given, use_cache=True).logits, model(**given, use_cache=True).logits)
    (found,) = states(fused)
    return found


def weighed(rotate, when):
    def rotate_and_weigh(query, key, *args, **kwargs):
        query, key = rotate(query, key, *args, **kwargs)
        if when(query.shape[-2]):
            query = query * torch.linspace(0.5, 1.5, query.shape[-1])
        return query, key

    return rotate_and_weigh


@pytest.mark.parametrize("most", [0, 1, 16, 40, 256, 1024])
def test_a_rotation_that_differs_beyond_some_length(most, monkeypatch):
    rotate = weighed(modeling_llama.apply_rotary_pos_emb, lambda length: length > most)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)
    assert compare("Llama", min(most + 10, 60)) == "attention"


@pytest.mark.parametrize("when", [lambda n: n == 1, lambda n: n % 2 == 0, lambda n: n % 2 == 1])
def test_a_rotation_that_differs_at_some_lengths(when, monkeypatch):
    rotate = weighed(modeling_llama.apply_rotary_pos_emb, when)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)
    assert compare("Llama", 20) == "attention"


@pytest.mark.parametrize("name", ["sliding_window", "max_position_embeddings"])
def test_a_rotation_that_differs_at_a_length_of_the_config(name, monkeypatch):
    own = transformers.models.mistral.modeling_mistral
    rotate = weighed(own.apply_rotary_pos_emb, lambda length: length > 70)
    monkeypatch.setattr(own, "apply_rotary_pos_emb", rotate)
    assert compare("Mistral, window", 80, **{name: 70}) == "attention"


def beyond(monkeypatch, owner, name, change):
    """Replaces a function: its result is change(result, *args)."""
    own = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a, **k: change(own(*a, **k), *a, **k))


def test_biases_that_differ_beyond_some_length(monkeypatch):
    beyond(
        monkeypatch,
        modeling_t5.T5Attention,
        "compute_bias",
        lambda bias, module, queries, *_, **__: bias * (2.0 if queries > 16 else 1.0),
    )
    assert compare("T5", 40) == "untouched"


def test_buckets_that_differ_beyond_some_distance(monkeypatch):
    buckets = modeling_t5.T5Attention._relative_position_bucket
    monkeypatch.setattr(
        modeling_t5.T5Attention,
        "_relative_position_bucket",
        staticmethod(lambda at, **k: torch.where(at < -20, 0, buckets(at, **k))),
    )
    model = FAMILIES["T5"].make()
    fused = relpos.hf.fuse(copy.deepcopy(model))
    family, given = FAMILIES["T5"], inputs(FAMILIES["T5"], 70)
    same(*(outputs(family, each, given)[0] for each in (fused, model)))
    assert "buckets" in str(relpos.hf.report(fused))
    encoder = modeling_mpnet.MPNetEncoder
    own = encoder.relative_position_bucket
    monkeypatch.setattr(
        encoder,
        "relative_position_bucket",
        staticmethod(lambda at, *a, **k: torch.where(at < -150, 0, own(at, *a, **k))),
    )
    assert compare("MPNet", 200) == "untouched"


@pytest.mark.parametrize(
    ("name", "owner", "builder"),
    [
        ("BLOOM", modeling_bloom.BloomModel, "build_alibi_tensor"),
        ("MPT", modeling_mpt.MptModel, "build_mpt_alibi_tensor"),
    ],
)
def test_an_alibi_that_is_not_linear(name, owner, builder, monkeypatch):
    beyond(monkeypatch, owner, builder, lambda bias, *_, **__: bias - bias.abs().clamp(max=2) / 2)
    assert compare(name, 40) == "untouched"


@pytest.mark.parametrize("name", ["BLOOM", "MPT", "MPNet", "GPT-J", "Falcon, rotary"])
def test_a_class_of_the_same_name_that_does_more_beyond_some_length(name, monkeypatch):
    model = FAMILIES[name].make()
    kind = type(next(iter(relpos.hf._fuse.attention_modules(model)))[1])
    own = kind.forward

    def forward(self, *args, **kwargs):
        out, *others = own(self, *args, **kwargs)
        if out.shape[1] > 16:
            out = out + 0.3 * out.roll(1, dims=1)
        return (out, *others)

    monkeypatch.setattr(kind, "forward", forward)
    fused = relpos.hf.fuse(copy.deepcopy(model))
    assert states(fused) == {"untouched"}
    family, given = FAMILIES[name], inputs(FAMILIES[name], 40)
    same(*(outputs(family, each, given)[0] for each in (fused, model)))


def test_a_class_that_computes_with_its_mask_stays_as_it_is(monkeypatch):
    own = modeling_llama.LlamaAttention.forward

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        if attention_mask is not None:
            attention_mask = attention_mask - 0.1 * torch.arange(attention_mask.shape[-1])
        return own(self, hidden_states, position_embeddings, attention_mask, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forward)
    assert compare("Llama", 21) == "untouched"
    report = str(relpos.hf.report(relpos.hf.fuse(FAMILIES["Llama"].make())))
    assert "raised TypeError: relpos.hf: this model computes with its attention mask" in report


@pytest.mark.parametrize(
    "when", [lambda q, k: k == 1, lambda q, k: k == 6, lambda q, k: k > 16, lambda q, k: q < k]
)
def test_a_class_that_reads_a_dense_mask_at_some_lengths_stays_as_it_is(when, monkeypatch):
    """It does not raise: only its own eager attention, over these keys or with a cache, differs."""
    own = modeling_llama.LlamaAttention.forward

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        mask = attention_mask
        if isinstance(mask, torch.Tensor) and when(*mask.shape[-2:]):
            mask = mask - 0.1 * torch.arange(mask.shape[-1])
            hidden_states = 1.5 * hidden_states
        return own(self, hidden_states, position_embeddings, mask, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forward)
    assert compare("Llama", 21) == "untouched"


def test_a_layer_that_computes_with_its_mask_stays_as_it_is(monkeypatch):
    own = modeling_llama.LlamaDecoderLayer.forward

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        return own(self, hidden_states, 0.5 * attention_mask, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaDecoderLayer, "forward", forward)
    family = FAMILIES["Llama"]
    model = family.make()
    before = {name: (type(part), set(vars(part))) for name, part in model.named_modules()}
    fused = relpos.hf.fuse(copy.deepcopy(model))
    for layer in relpos.hf.report(fused).layers:
        assert layer.state == "untouched"
        assert "LlamaForCausalLM on relpos: a trial with random weights raised" in layer.why
    for name, part in fused.named_modules():
        kind, attributes = before[name]
        assert type(part) is kind
        assert set(vars(part)) - attributes <= {"_relpos_status"}
    given = inputs(family)
    assert torch.equal(outputs(family, fused, given)[0], outputs(family, model, given)[0])


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
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def composite(kind, text, **options):
    """A model of images and text, whose outer class makes the masks."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        text_config={**FAMILIES["Gemma"].options, **text},
        vision_config={"model_type": "siglip_vision_model", **_VISION},
        image_token_id=50,
        **options,
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model


COMPOSITES = {
    "PaliGemma": lambda: composite("PaliGemma", {"model_type": "gemma"}, projection_dim=32),
    "PaliGemma 2": lambda: composite(
        "PaliGemma",
        {"model_type": "gemma2", "sliding_window": 6, "attn_logit_softcapping": 1.5},
        projection_dim=32,
    ),
    "Gemma 3": lambda: composite(
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
    model = COMPOSITES[name]()
    fused = relpos.hf.fuse(copy.deepcopy(model))
    found = {layer.kind: layer.state for layer in relpos.hf.report(fused).layers}
    assert found["SiglipAttention"] == "untouched"
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


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("queries", "keys", "first"), [(12, 12, 0), (3, 12, 0), (1, 5, 7)])
def test_blocks_that_see_each_other(window, queries, keys, first):
    blocks = torch.tensor(
        [[-1, 0, 0, 0, -1, 1, 1, 2, 2, 2, -1, -1], [0, 0, 0, 0, 0, 0, -1, -1, 1, 1, 1, 1]]
    )
    causal = masking_utils.causal_mask_function
    if window is not None:
        causal = masking_utils.sliding_window_causal_mask_function(window)
    given = {
        "batch_size": 2,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": first + keys - queries,
        "kv_offset": first,
        "mask_function": masking_utils.or_masks(causal, masking_utils.blockwise_overlay(blocks)),
    }
    theirs = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)[:, 0]
    lo, hi = (bound[..., None] for bound in _mask.mask_function(**given).key_range)
    at = torch.arange(keys)
    assert torch.equal((at >= lo) & (at < hi), theirs)
    apart = torch.tensor([[0, -1, 0, 0]])
    function = masking_utils.or_masks(causal, masking_utils.blockwise_overlay(apart))
    with pytest.raises(NotImplementedError, match="do not follow one another"):
        _mask.mask_function(1, 4, 4, mask_function=function)
