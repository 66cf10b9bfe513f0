"""relpos.rope_permute on whole checkpoints: models of the other layout compute the same."""

import copy

import pytest
import relpos
import torch
import transformers
from transformers.models.cohere.modeling_cohere import rotate_half as rotate_pairs

from tests.support.near import close
from tests.support.peer_modes import Float64

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
FAMILIES = {  # configuration class, head size, rotary part, options
    "llama": ("LlamaConfig", 8, 1.0, {"attention_bias": True}),
    "qwen2": ("Qwen2Config", 8, 1.0, {}),
    "qwen3": ("Qwen3Config", 16, 1.0, {"head_dim": 16}),
    "olmo2": ("Olmo2Config", 8, 1.0, {}),
    "phi": ("PhiConfig", 8, 0.5, {"partial_rotary_factor": 0.5}),
}


def rotate_in_pairs(q, k, cos, sin, unsqueeze_dim=1):
    """The other layout: dims (2p, 2p + 1) turn by angle p."""
    half = cos.shape[-1] // 2
    cos, sin = (x[..., :half].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for x in (cos, sin))
    return q * cos + rotate_pairs(q) * sin, k * cos + rotate_pairs(k) * sin


@pytest.mark.peers
@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model(family, monkeypatch):
    torch.manual_seed(0)
    name, head_dim, part, options = FAMILIES[family]
    config = getattr(transformers, name)(**SMALL, **options, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    tokens = torch.randint(1, 40, (2, 9))

    def logits(model):
        with Float64():  # norms of queries and keys, and angles, would be float32
            return model(tokens).logits

    want = logits(model)
    rotary_dim = int(part * head_dim)
    state = model.state_dict()
    moved = relpos.rope_permute(state, head_dim, to="interleaved", rotary_dim=rotary_dim)
    assert list(moved) == list(state)
    twin = copy.deepcopy(model)
    twin.load_state_dict(moved)
    assert not torch.allclose(logits(twin), want, rtol=1e-2)
    module = __import__(type(model).__module__, fromlist=["_"])
    monkeypatch.setattr(module, "apply_rotary_pos_emb", rotate_in_pairs)
    close(logits(twin), want)
    back = relpos.rope_permute(moved, head_dim, to="half", rotary_dim=rotary_dim)
    assert all(torch.equal(back[name], state[name]) for name in state)


def projections(**more):
    state = {"q_proj.weight": torch.randn(8, 4), "k_proj.weight": torch.randn(4, 4)}
    return {f"layers.0.{name}": value for name, value in (state | more).items()}


def test_adapters_and_other_tensors():
    more = {
        "q_proj.lora_A.default.weight": torch.randn(2, 4),
        "q_proj.lora_B.default.weight": torch.randn(8, 2),
        "v_proj.weight": torch.randn(4, 4),
    }
    state = projections(**more)
    moved = relpos.rope_permute(state, 4, to="half")
    for name, tensor in state.items():
        if "v_proj" in name or "lora_A" in name:
            assert moved[name] is tensor
        else:
            assert torch.equal(moved[name], relpos.rope_permute(tensor, 4, to="half"))
    lora_a, lora_b, _ = more.values()
    whole = relpos.rope_permute(lora_b @ lora_a, 4, to="half")
    torch.testing.assert_close(moved["layers.0.q_proj.lora_B.default.weight"] @ lora_a, whole)


def test_a_prefix_leaves_other_towers_alone():
    state = {f"text.{n}": x for n, x in projections().items()}
    state |= {f"vision.{n}": x for n, x in projections(**{"qkv.weight": torch.ones(3)}).items()}
    with pytest.raises(ValueError, match=r"vision.layers.0.qkv.weight: holds queries together"):
        relpos.rope_permute(state, 4, to="half")
    moved = relpos.rope_permute(state, 4, to="half", prefix="text.")
    for name, tensor in state.items():
        assert (moved[name] is tensor) == name.startswith("vision.")


@pytest.mark.parametrize("rotary_dim", [None, 4, 0])
def test_rows(rotary_dim):
    """Dims 0, 2, 4, 6 of a head, then 1, 3, 5, 7, and back; those that do not turn stay."""
    x = torch.arange(8.0)
    order = [0, 2, 4, 6, 1, 3, 5, 7] if rotary_dim is None else [0, 2, 1, 3, 4, 5, 6, 7]
    moved = relpos.rope_permute(x, 8, to="half", rotary_dim=rotary_dim)
    assert moved.tolist() == (list(range(8)) if rotary_dim == 0 else order)
    assert torch.equal(relpos.rope_permute(moved, 8, to="interleaved", rotary_dim=rotary_dim), x)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "found neither among 0 names"),
        ({"attention.wq.weight": torch.ones(4, 4)}, "found only the query side among 1 names"),
        ({"k_proj.weight": torch.ones(4, 4)}, "found only the key side"),
        ({"h.0.attn.c_attn.weight": torch.ones(4, 4)}, "c_attn.weight: holds queries together"),
        ({"attention.query_key_value.bias": torch.ones(4)}, "holds queries together"),
        (projections(**{"q_proj.weight_scale": torch.ones(1)}), "q_proj.weight_scale: expected"),
        (projections(**{"q_norm.weight": torch.ones(6)}), r"q_norm.weight: expected rows .*\[6\]"),
        (torch.ones(6), "weight: expected rows in multiples of head_dim 4"),
    ],
)
def test_refuses(state, text):
    with pytest.raises(ValueError, match=text):
        relpos.rope_permute(state, 4, to="half")
    with pytest.raises(ValueError, match="to: expected 'half' or 'interleaved', got 'neox'"):
        relpos.rope_permute(state, 4, to="neox")
