"""Copies of an attention class with one deviation each: fused rightly, or left alone."""

import copy
import inspect
import textwrap
import warnings

import pytest
import relpos
import torch
from transformers.models.llama import modeling_llama

from tests.hf.hf_models import FAMILIES, inputs, outputs, same, same_generation, same_outputs

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

_ROTATES = "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)"
_SCALING = "scaling=self.scaling,"


def neighbours(x, cos, sin):
    """Pairs of neighbouring dimensions, turned by the tables of halves."""
    half = x.shape[-1] // 2
    cos, sin = (t[:, None, :, :half] for t in (cos, sin))
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)


def normed(x):
    return torch.nn.functional.normalize(x, dim=-1) * torch.linspace(1.0, 3.0, x.shape[-1])


def shifted(cos, sin, angle):
    """The tables of angles that are larger by `angle`."""
    angle = torch.tensor(angle)
    return cos * angle.cos() - sin * angle.sin(), sin * angle.cos() + cos * angle.sin()


def capped(module, query, key, value, mask, scaling, softcap, **kwargs):
    """Eager attention with a softcap."""
    key, value = (modeling_llama.repeat_kv(x, module.num_key_value_groups) for x in (key, value))
    scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scaling / softcap)
    scores = scores if mask is None else scores + mask
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def sloped(mask):
    """ALiBi, added to the mask by the layer itself."""
    return mask + 0.1 * torch.arange(mask.shape[-1])


_AFTER = "{}\n        {}"
# Of each deviation: the text that is replaced, by what, and whether the kernel may rotate so.
DEVIATIONS = {
    "nothing": ("", "", {"fused"}),
    "pairs": (
        _ROTATES,
        "query_states, key_states = apply_rotary_neighbours(query_states, key_states, cos, sin)",
        {"fused"},
    ),
    "norm": (
        _ROTATES,
        _AFTER.format(_ROTATES, "query_states, key_states = normed(query_states), key_states"),
        {"attention"},
    ),
    "scale": (_SCALING, "scaling=0.7 * self.scaling,", {"fused"}),
    "magnitude": (_ROTATES, "cos, sin = 1.3 * cos, 1.3 * sin\n        " + _ROTATES, {"fused"}),
    "offset": (
        _ROTATES,
        "query_states, _ = apply_rotary_pos_emb(query_states, key_states, *shifted(cos, sin, 0.7))"
        "\n"
        "        _, key_states = apply_rotary_pos_emb(key_states, key_states, cos, sin)",
        {"attention"},
    ),
    "direction": (_ROTATES, _ROTATES.replace("sin)", "-sin)"), {"fused"}),
    "rotated twice": (_ROTATES, _AFTER.format(_ROTATES, _ROTATES), {"attention"}),
    "half the layers": (
        _ROTATES,
        "if self.layer_idx % 2:\n            " + _ROTATES,
        {"fused", "attention"},
    ),
    "temperature": (
        _ROTATES,
        _AFTER.format(
            _ROTATES,
            "query_states = query_states * (1 + cos[:, None, :, :1].abs())",
        ),
        {"fused"},
    ),
    "softcap": (_SCALING, "scaling=self.scaling, softcap=0.8,", {"fused"}),
    "a softcap that eager attention drops": (
        _SCALING,
        "scaling=self.scaling, softcap=0.8,",
        {"untouched"},
    ),
    "beyond a length": (
        _ROTATES,
        _AFTER.format(
            _ROTATES,
            "query_states = normed(query_states) if query_states.shape[2] > 16 else query_states",
        ),
        {"attention"},
    ),
    "ALiBi in the mask": (
        "            attention_mask,\n",
        "            None if attention_mask is None else sloped(attention_mask),\n",
        {"fused"},
    ),
    "value rotated": (
        _ROTATES,
        "value_states, _ = apply_rotary_pos_emb(value_states, value_states, cos, sin)\n        "
        + _ROTATES,
        {"attention"},
    ),
    "theta after fusing": ("", "", {"fused"}),
    "module after fusing": ("", "", {"fused"}),
}


def deviant(what, name):
    """The class of Llama's attention with a deviation, under a name."""
    text = textwrap.dedent(inspect.getsource(modeling_llama.LlamaAttention.forward))
    text = textwrap.indent(text, "    ")
    old, new, _ = DEVIATIONS[what]
    assert old in text
    text = text.replace(old, new) if old else text
    space = dict(vars(modeling_llama))
    space |= {"normed": normed, "shifted": shifted, "sloped": sloped}
    space["apply_rotary_neighbours"] = lambda q, k, cos, sin: (
        neighbours(q, cos, sin),
        neighbours(k, cos, sin),
    )
    if what == "softcap":
        space["eager_attention_forward"] = capped
    exec(f"class {name}(LlamaAttention):\n{text}", space)
    space[name].__module__ = "transformers.models.llama.modeling_llama" if "Llama" in name else name
    return space[name]


def changed_after(what, model):
    rotary = model.model.rotary_emb
    if what.startswith("module"):
        model.model.rotary_emb = copy.deepcopy(rotary)
    if "after" in what:
        model.model.rotary_emb.inv_freq.mul_(0.5)


@pytest.mark.parametrize("name", ["LlamaAttention", "OtherAttention"])
@pytest.mark.parametrize("what", DEVIATIONS)
def test_a_deviation_is_right_or_left_alone(what, name):
    family = FAMILIES["Llama"]
    model = family.make()
    for layer in model.model.layers:
        layer.self_attn.__class__ = deviant(what, name)
    fused = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        relpos.hf.fuse(fused)
    layers = relpos.hf.report(fused).layers
    assert {layer.state for layer in layers} == DEVIATIONS[what][2]
    assert all(layer.why for layer in layers)
    for each in (model, fused):
        changed_after(what, each)
    for mask in ("none", "ones", "padded"):
        same_outputs(family, fused, model, inputs(family, 21, mask=mask))
    for length in (8, 16, 17, 70):
        given = inputs(family, length, mask="ones")
        same(outputs(family, fused, given)[0], outputs(family, model, given)[0], f"{length}")
    same_generation(fused, model, 6, input_ids=inputs(family, 13)["input_ids"])
    relpos.hf.restore(fused)
    assert [type(part) for part in fused.modules()] == [type(part) for part in model.modules()]
    given = inputs(family)
    assert torch.equal(outputs(family, fused, given)[0], outputs(family, model, given)[0])


class ForeignAttention(modeling_llama.LlamaAttention):
    """Computes attention by itself."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(hidden_states).view(shape).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = modeling_llama.apply_rotary_pos_emb(query, key, *position_embeddings)
        cache = kwargs.get("past_key_values")
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        key, value = (modeling_llama.repeat_kv(x, self.num_key_value_groups) for x in (key, value))
        scores = query @ key.transpose(2, 3) * self.scaling
        if attention_mask is not None:
            scores = scores + attention_mask
        out = scores.softmax(-1) @ value
        return self.o_proj(out.transpose(1, 2).flatten(2)), None


@pytest.mark.parametrize(
    ("kind", "runs", "alone"),
    [
        ("by itself", "eager", "fused"),
        ("by itself", "sdpa", "untouched"),
        ("dropping its softcap", "eager", "fused"),
    ],
)
def test_a_foreign_layer_leaves_itself_alone(kind, runs, alone):
    family = FAMILIES["Llama"]
    model = family.make()
    itself, what = kind == "by itself", "a softcap that eager attention drops"
    other = ForeignAttention if itself else deviant(what, "OtherAttention")
    model.model.layers[0].self_attn.__class__ = other
    model.set_attn_implementation(runs)
    fused = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="1 (Foreign|Other)Attention "):
        relpos.hf.fuse(fused)
    layers = relpos.hf.report(fused).layers
    # On sdpa it adds a mask of True and False to its scores, which relpos' masks are not.
    assert [layer.state for layer in layers] == ["untouched", alone]
    for mask in ("ones", "padded"):
        same_outputs(family, fused, model, inputs(family, 21, mask=mask))
    same_generation(fused, model, 6, input_ids=inputs(family, 13)["input_ids"])
    with pytest.raises(ValueError, match="would keep layers untouched: 1 "):
        relpos.hf.fuse(copy.deepcopy(model), strict=True)
    relpos.hf.restore(fused)
    given = inputs(family)
    assert torch.equal(outputs(family, fused, given)[0], outputs(family, model, given)[0])
