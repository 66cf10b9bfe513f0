"""RoPE.from_config against the rotations that models of transformers build from the same
configuration."""

import importlib

import pytest
import relpos
import torch
from relpos._position.part import text_of

from tests.support.near import close
from tests.support.peer_modes import Float32Angles, Float64

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peers

LLAMA3 = {
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
SIXTEEN = {"factor": 16.0, "original_max_position_embeddings": 512}
PAIRS = [1.0 + 0.5 * p for p in range(8)]


SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}


def scaled(kind, **own):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4} | own}


SCALED = [
    scaled("linear", factor=8.0),
    scaled("dynamic", factor=4.0),
    scaled("yarn", **SIXTEEN),
    scaled("yarn", **SIXTEEN | {"factor": None, "truncate": False}),
    scaled("yarn", **SIXTEEN, mscale=0.7, mscale_all_dim=1.0),
    scaled("longrope", short_factor=PAIRS, long_factor=PAIRS[::-1], **SIXTEEN),
    scaled("proportional", partial_rotary_factor=0.5),
    scaled("default", rope_theta=5e5),
    scaled("llama3", **LLAMA3),
]
CASES = [("llama", "Llama", options, None) for options in ({}, *SCALED)]
CASES += [(name.lower(), name, {}, None) for name in ("Phi", "Cohere", "Glm")]
CASES += [
    ("gemma3", "Gemma3Text", {"head_dim": 16}, f"{layer}_attention")
    for layer in ("full", "sliding")
]


@pytest.mark.parametrize(("folder", "name", "options", "layer_type"), CASES)
def test_rotates_as_the_model_does(folder, name, options, layer_type):
    config = getattr(transformers, f"{name}Config")(
        **SIZES, max_position_embeddings=8192, **options
    )
    code = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    position = relpos.RoPE.from_config(config, layer_type=layer_type)
    positions = torch.tensor([0, 1, 5, 900, 4000])
    x = torch.randn(1, 4, len(positions), position.head_dim, dtype=torch.float64)
    more = () if layer_type is None else (layer_type,)
    with Float32Angles():
        rotary = getattr(code, f"{name.removesuffix('Text')}RotaryEmbedding")(config)
        cos, sin = rotary(x, positions[None], *more)
    with Float64():  # Cohere turns float32 numbers
        want = turned(code, x, cos, sin)
    got = position.rotate(x, positions=positions)
    # A list of LongRoPE multiplies the power there and divides the frequency here: each is off by
    # at most two roundings of float32, and so is the angle.
    rounding = 2.0**-23 if isinstance(position, relpos.LongRoPE) else 0.0
    for n, at in enumerate(positions.tolist()):
        close(got[:, :, n], want[:, :, n], 1e-10 + rounding * at)


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

    assert text_of(relpos.RoPE.from_config(Config())) == (
        text_of(relpos.RoPE(16, layout="half", base=5e5, angle="float32"))
    )
    Config.rope_scaling = {"type": "newest", "factor": 2.0}
    with pytest.raises(ValueError, match=r"expected one that relpos has, default.*; got 'newest'"):
        relpos.RoPE.from_config(Config())
    Config.rope_scaling = {"type": "linear", "factor": 2.0}
    assert relpos.RoPE.from_config(Config()).factor == 2.0
    assert text_of(relpos.hf.rope(Config())) == text_of(relpos.RoPE.from_config(Config()))


@pytest.mark.parametrize(
    ("name", "section", "interleaved"),
    [("Qwen2VL", [2, 3, 3], False), ("Qwen3VL", [4, 2, 2], True)],
)
def test_three_axes(name, section, interleaved):
    """Peers of test_scheme_parity.py turn as these models do."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}
    config = getattr(transformers, f"{name}TextConfig")(
        **SIZES, head_dim=16, rope_parameters=rope | {"mrope_interleaved": interleaved}
    )
    own = {"section": section, "interleaved": interleaved, "base": 1e6, "angle": "float32"}
    wanted = relpos.MRoPE(16, layout="half", **own)
    assert text_of(relpos.RoPE.from_config(config)) == text_of(wanted)


def test_refuses_other_axes():
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=rope)
    with pytest.raises(ValueError, match="mrope_section is known, got llama"):
        relpos.RoPE.from_config(config)


def test_refuses_what_it_cannot_know():
    with pytest.raises(ValueError, match="expected one with rope_parameters, got t5"):
        relpos.RoPE.from_config(transformers.T5Config())
    with pytest.raises(ValueError, match=r"layer_type: expected one of .*full_attention.*got None"):
        relpos.RoPE.from_config(transformers.Gemma3TextConfig())
    with pytest.raises(ValueError, match="qk_rope_head_dim"):
        relpos.RoPE.from_config(transformers.DeepseekV3Config())
