"""relpos.hf rotates as the model does, or lets it: other layouts, edited modules, meta models."""

import contextlib
import copy
import sys

import pytest
import relpos
import torch
from relpos.hf._passes import Call
from relpos.hf.forms import turn
from relpos.hf.forms.resized import resized

from tests import FULL
from tests.hf.hf_models import (
    FAMILIES,
    FLOAT32_MODEL,
    Family,
    inputs,
    new_pair,
    outputs,
    pair,
    same,
    same_generation,
    same_outputs,
    states,
)
from tests.hf.test_hf_models import FLOAT64_MODEL, errors, in_float64
from tests.support.peer_modes import Float64

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

ROTARY = [name for name, family in FAMILIES.items() if "Mistral" in name or "Qwen3" in name]
ROTARY += ["Llama", "Gemma 3", "Phi", "Phi-3", "GPT-NeoX", "GPT-J", "Falcon, rotary"]


# What a class brings along is its own choice: neighbouring pairs (GLM, Ernie, Helium, Cohere),
# the other direction and a norm after it (NanoChat), halves (Olmo), only some layers (SmolLM3).
ROTATIONS = {  # options, states of the layers, and why some are not fused
    "Glm": ({"pad_token_id": 0}, ["fused", "fused"], None),
    "Ernie4_5": ({}, ["fused", "fused"], None),
    "Helium": ({}, ["fused", "fused"], None),
    "NanoChat": ({}, ["fused", "fused"], None),
    "Olmo": ({}, ["fused", "fused"], None),
    "Cohere2": ({}, ["fused", "fused"], None),
    "SmolLM3": (
        {"no_rope_layers": [1, 0], "sliding_window": 6},
        ["fused", "attention"],
        "it does not rotate",
    ),
    "HunYuanDenseV1": ({}, ["attention", "attention"], "go on otherwise after the rotation"),
}


def test_tables_are_those_of_every_argument():
    """Layers may share cosines and sines and turn otherwise by another argument."""

    def rotate(x, cos, sin, direction=1.0):
        a, b = x.chunk(2, dim=-1)
        cos, sin = cos[:, None], direction * sin[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    x, angle = torch.randn(1, 3, 5, 4), torch.rand(1, 5, 2)
    cos, sin = angle.cos(), angle.sin()
    how = turn.Turn("rotate", False, 1, False, 4, "half", 0, 2, ((0, 1), (2, 3)), 0)
    for direction in (1.0, -1.0, 1.0):
        ((one, two),) = turn.tables(rotate, (x,), (cos, sin), {"direction": direction}, how)
        assert torch.equal(one, cos)
        assert torch.equal(two, direction * sin)


@pytest.mark.parametrize("kind", ROTATIONS)
def test_a_class_is_fused_where_the_kernel_can_rotate(kind):
    options, expected, reason = ROTATIONS[kind]
    family = Family(f"{kind}ForCausalLM", FAMILIES["Llama"].options | options, "decoder")
    model, fused = new_pair(family)
    same_outputs(family, fused, model)
    layers = relpos.hf.report(fused).layers
    assert [layer.state for layer in layers] == expected
    for layer in layers:
        assert layer.state == "fused" or reason in layer.why


_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
_LLAMA4 = {
    "intermediate_size_mlp": 40,
    "num_local_experts": 1,
    "attention_chunk_size": 6,
    "layer_types": ["chunked_attention", "full_attention"],
    "no_rope_layers": [1, 0],
}
_TEMPERATURE = {"attn_temperature_tuning": True, "floor_scale": 4, "attn_scale": 0.3}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 5,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
# Layers without a rotation beside others, and queries whose scale grows with their position. 21
# tokens are beyond every window, chunk and step of the temperature here.
SOME_LAYERS = {
    "SmolLM3": ("", {"no_rope_layers": [1, 0]}),
    "Cohere2": ("", _LAYERS),
    "Exaone4": ("", _LAYERS),
    "Llama4": ("Llama4TextConfig", {**_LLAMA4, "attn_temperature_tuning": False}),
    "Llama4, temperature": ("Llama4TextConfig", _LLAMA4 | _TEMPERATURE),
    "Ministral3, temperature": ("", {"rope_parameters": _YARN, "max_position_embeddings": 20}),
}


@pytest.mark.parametrize("mask", ["padded", "none"])
@pytest.mark.parametrize("name", SOME_LAYERS)
def test_layers_without_rotation_and_with_temperature(name, mask):
    config, options = SOME_LAYERS[name]
    kind = name.split(",")[0]
    options = FAMILIES["Llama"].options | options
    family = Family(f"{kind}ForCausalLM", options, "decoder", config)
    model, fused = new_pair(family)
    found = [layer.state for layer in relpos.hf.report(fused).layers]
    assert found == ["fused", "fused" if kind == "Ministral3" else "attention"]

    given = inputs(family, mask=mask)
    exact, exact_gradients = in_float64(family, model, given)
    assert max(errors(outputs(family, fused, given), exact, exact_gradients)) < FLOAT32_MODEL
    with Float64():
        wide = outputs(family, copy.deepcopy(fused).double(), given)
    assert max(errors(wide, exact, exact_gradients)) < FLOAT64_MODEL
    if mask == "none":
        same_generation(fused, model, 12, **given)
    if "temperature" in name:  # which changes the result
        for layer in fused.model.layers:
            layer.self_attn.attn_scale = 0.0
            getattr(layer.self_attn.config, "rope_parameters", {})["llama_4_scaling_beta"] = 0.0
        with Float64():
            without, _ = outputs(family, copy.deepcopy(fused).double(), given)
        assert (without - exact).abs().max() > 1e-3 * exact.abs().max()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Llama", torch.float32),
        ("Gemma 3", torch.float32),
        ("GPT-NeoX", torch.float32),
        ("Llama", torch.bfloat16),  # tables rounded to 16 bits are still those of the rotation
        ("Llama", torch.float16),
    ],
)
def test_without_a_cache_the_model_does_not_rotate(name, dtype, monkeypatch):
    """Its function is called once a pass, with two heads, which show the cosines and sines."""
    family = FAMILIES[name]
    fused = relpos.hf.fuse(family.make()).to(dtype)
    code = sys.modules[type(fused).__module__]
    own, heads = code.apply_rotary_pos_emb, []

    def watched(query, key, *args, **kwargs):
        heads.append((query.shape[1], key.shape[1]))
        return own(query, key, *args, **kwargs)

    monkeypatch.setattr(code, "apply_rotary_pos_emb", watched)
    out, _ = outputs(family, fused, inputs(family))
    assert out.isfinite().all()
    assert heads == [(2, 2)] * (2 if name == "Gemma 3" else 1)  # a rotation for each type of layer


def edited(model, how):
    """Changes the rotation of a model as a user may, after it was fused."""
    base = model.base_model
    with torch.no_grad():
        if hasattr(base, "rotary_emb"):
            if how == "replaced":
                base.rotary_emb = copy.deepcopy(base.rotary_emb)
            for name, table in base.rotary_emb.named_buffers():
                if name.endswith("inv_freq"):
                    (table.data if how == "data" else table).mul_(0.5)
        else:
            for layer in base.h:
                table = layer.attn.embed_positions
                table = table.clone() if how == "replaced" else table
                (table.data if how == "data" else table).copy_(table.roll(1, 0))
                layer.attn.embed_positions = table


@pytest.mark.parametrize("how", ["in place", "data", "replaced"])
@pytest.mark.parametrize("name", ROTARY)
def test_a_rotation_edited_after_linearize(name, how):
    family = FAMILIES[name]
    model, fused = pair(name)
    before, _ = outputs(family, fused, inputs(family))
    for each in (model, fused):
        edited(each, how)
    same_outputs(family, fused, model)
    assert (outputs(family, fused, inputs(family))[0] - before).abs().max() > 1e-2


def test_a_factor_on_the_tables_reaches_the_scores():
    """attention_scaling, and tables that a hook gives."""
    model, fused = pair("Llama")
    rotations = [each.model.rotary_emb for each in (model, fused)]
    for rotary in rotations:
        rotary.attention_scaling = 1.3
    same_outputs(FAMILIES["Llama"], fused, model)
    for rotary in rotations:
        rotary.attention_scaling = 1.0
        rotary.register_forward_hook(lambda m, a, out: (out[0], -out[1]))
    same_outputs(FAMILIES["Llama"], fused, model)


@pytest.mark.parametrize(
    ("name", "inside"),
    [(name, each) for n, name in enumerate(FAMILIES) for each in (0, 1) if FULL or each == n % 2],
)
def test_a_model_of_meta_tensors(name, inside):
    family = FAMILIES[name]
    model = family.make()
    with torch.device("meta"):
        fused = family.configured().eval()
    with torch.device("meta") if inside else contextlib.nullcontext():
        relpos.hf.fuse(fused)
    assert states(fused) == {"fused"}
    assert all(parameter.is_meta for parameter in fused.parameters())
    fused.to_empty(device="cpu")
    fused.load_state_dict(model.state_dict())
    for (_, mine), (_, theirs) in zip(fused.named_buffers(), model.named_buffers(), strict=True):
        mine.copy_(theirs)
    for part in fused.modules():  # what is no parameter and no buffer was made on meta, too
        for key, value in vars(part).items():
            assert not (isinstance(value, torch.Tensor) and value.is_meta), key
    same(*(outputs(family, each, inputs(family))[0] for each in (fused, model)))


@pytest.mark.parametrize("width", [4, 6])
def test_a_call_with_other_lengths(width):
    """Tokens and both axes of a mask go round; the width stays, also where it is the length."""
    states, masks = torch.randn(1, 4, width), {"four": torch.randn(1, 1, 4, 4)}
    if width != 4:
        masks["three"] = torch.randn(1, 4, 4)
    for made, length in zip(resized(Call((states,), masks), (9, 3)), (9, 3), strict=True):
        at = torch.arange(length) % 4
        assert made.args[0].shape == (1, length, width)
        for name, mask in masks.items():
            assert torch.equal(made.kwargs[name], mask[..., at[:, None], at])
