"""RoPE.from_config against the rotations that models of transformers build from the same
configuration."""

import importlib

import pytest
import relpos
import torch

transformers = pytest.importorskip("transformers")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
CASES = [
    ("llama", "Llama", {}, None),
    ("llama", "Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, None),
    ("llama", "Llama", {"rope_parameters": LLAMA3}, None),
    ("phi", "Phi", {}, None),
    ("cohere", "Cohere", {}, None),
    ("glm", "Glm", {}, None),
    ("gemma3", "Gemma3Text", {"head_dim": 16}, "full_attention"),
    ("gemma3", "Gemma3Text", {"head_dim": 16}, "sliding_attention"),
]


@pytest.mark.parametrize(("folder", "name", "options", "layer_type"), CASES)
def test_rotates_as_the_model_does(folder, name, options, layer_type):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = getattr(transformers, f"{name}Config")(
        **sizes, max_position_embeddings=8192, **options
    )
    if options.get("rope_parameters") is LLAMA3 and not hasattr(relpos, "Llama3RoPE"):
        with pytest.raises(ValueError, match="expected one that relpos has, default; got 'llama3'"):
            relpos.RoPE.from_config(config)
        return
    code = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    rotary = getattr(code, f"{name.removesuffix('Text')}RotaryEmbedding")(config)
    position = relpos.RoPE.from_config(config, layer_type=layer_type)
    positions = torch.tensor([0, 1, 5, 900, 4000])
    x = torch.randn(1, 4, len(positions), position.head_dim)
    more = () if layer_type is None else (layer_type,)
    cos, sin = rotary(x, positions[None], *more)
    want = turned(code, x, cos, sin)
    got = position.rotate(x, positions=positions)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-3)  # angles in float32, up to 4000
    near = slice(0, 3)
    torch.testing.assert_close(got[:, :, near], want[:, :, near], rtol=0, atol=2e-6)


def turned(code, x, cos, sin):
    """The model's own rotation; Phi's attention rotates the first dims of each head."""
    dims = cos.shape[-1]
    if code.__name__.endswith("glm"):
        return code.apply_rotary_pos_emb(x, x, cos, sin)[0]
    first = code.apply_rotary_pos_emb(x[..., :dims], x[..., :dims], cos, sin)[0]
    return torch.cat([first, x[..., dims:]], -1)


def test_configurations_before_transformers_5():
    class Config:
        model_type, hidden_size, num_attention_heads = "llama", 64, 4
        rope_theta, rope_scaling = 5e5, None

    assert relpos.RoPE.from_config(Config())._text == (
        relpos.RoPE(16, layout="half", base=5e5, angle="float32")._text
    )
    Config.rope_scaling = {"type": "longrope", "factor": 2.0}
    with pytest.raises(
        ValueError, match=r"expected one that relpos has, default.*; got 'longrope'"
    ):
        relpos.RoPE.from_config(Config())


def test_refuses_what_it_cannot_know():
    with pytest.raises(ValueError, match="expected one with rope_parameters, got t5"):
        relpos.RoPE.from_config(transformers.T5Config())
    with pytest.raises(ValueError, match=r"layer_type: expected one of .*full_attention.*got None"):
        relpos.RoPE.from_config(transformers.Gemma3TextConfig())
    with pytest.raises(ValueError, match="qk_rope_head_dim"):
        relpos.RoPE.from_config(transformers.DeepseekV3Config())
