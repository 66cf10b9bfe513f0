"""Rotations as other code computes them: modules of transformers, torchscale's formula."""

from types import SimpleNamespace
from unittest import mock

import torch

from tests.peers.published import (
    DIM,
    HEADS,
    Drawing,
    Peer,
    attended,
    config,
    formula,
    hidden_keys,
    model,
    of,
    qkv,
)


def half(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def pairwise(x, cos, sin):
    return x * cos + torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2) * sin


def rotated(scheme, options, made, turn, causal=False, turn_k=None, **call):
    """The peer of a function that turns queries and keys alike, unless keys have their own."""
    q, k, v = made
    scores = turn(q) @ (turn_k or turn)(k).mT * q.shape[-1] ** -0.5
    out = attended(scores, v, causal, call.get("key_padding_mask"))
    call |= {"is_causal": True} if causal else {}
    return Peer(scheme, options, made, out, call=call)


_LONG = {
    "short_factor": [1.0, 1.1, 1.5, 2.0],
    "long_factor": [1.0, 1.6, 5.0, 19.0],
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
}
_YARN = {"factor": 16.0, "original_max_position_embeddings": 4096}
_BEFORE_64 = {"original_max_position_embeddings": 64}
_DEEPSEEK = _YARN | {"mscale": 0.707, "mscale_all_dim": 1.0, "factor": 40.0}
_DYNAMIC = {"shared": ["max_position_embeddings"], "factor": 4.0}
_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(scheme, head_dim, first, queries=40, shared=(), padded=False, **scaling):
    """Llama's own module under a rope_type, with its angles in float32; the last queries of 40
    tokens. `shared` entries belong to the configuration, too."""
    hf = model("llama")
    sizes = {"hidden_size": HEADS * head_dim, "num_attention_heads": HEADS}
    kind = "default" if scheme == "rope" else scheme.removeprefix("rope_")
    base = 500000.0 if scheme == "rope_llama3" else 10000.0
    parameters = {"rope_type": kind, "rope_theta": base, **scaling}
    config = hf.LlamaConfig(
        **sizes, **{name: scaling[name] for name in shared}, rope_parameters=parameters
    )
    made = qkv(queries, 40, head_dim)
    cos, sin = hf.LlamaRotaryEmbedding(config)(made[2], torch.arange(first, first + 40)[None])
    options = {"head_dim": head_dim, "layout": "half", "angle": "float32", **scaling}
    call = {"q_offset": first + 40 - queries, "k_offset": first} | hidden_keys(40, padded)[0]

    def turn(x):
        return half(x, cos[0, -x.shape[2] :], sin[0, -x.shape[2] :])

    return rotated(scheme, options, made, turn, causal=True, **call)


def mrope(module, section, interleaved):
    """The text rotation of Qwen2-VL or Qwen3-VL."""
    head_dim, length = 2 * sum(section), 40
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}
    config = SimpleNamespace(rope_parameters=rope, head_dim=head_dim, max_position_embeddings=4096)
    made = qkv(length, head_dim=head_dim)
    draw = torch.Generator().manual_seed(Drawing.seed)
    ids = torch.randint(0, 60, (3, 2, length), generator=draw)
    cos, sin = (x[:, None] for x in module(config)(made[2], ids))
    own = {"section": section, "interleaved": interleaved, "base": 1e6, "angle": "float32"}
    options = {"head_dim": head_dim, "layout": "half", **own}
    peer = rotated("mrope", options, made, lambda x: half(x, cos, sin))
    at = ids.transpose(0, 1).contiguous()
    peer.inputs = {"q_coordinates": at, "k_coordinates": at.clone()}
    return peer


def qwen2_mrope():
    return mrope(model("qwen2_vl").Qwen2VLRotaryEmbedding, [3, 4, 5], False)


def qwen3_mrope():
    return mrope(model("qwen3_vl").Qwen3VLTextRotaryEmbedding, [6, 5, 5], True)


def axial(module, config, turn, first="y", **own):
    """A vision module's cosines and sines of the patches of a 5 x 7 image."""
    height, width, head_dim = 5, 7, config.head_dim
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    axes = (y, x) if first == "y" else (x, y)
    ids = torch.stack([axis.flatten() for axis in axes], -1)
    config.rope_parameters = {"rope_type": "axial", "rope_theta": 10000.0}
    made = qkv(height * width, head_dim=head_dim)
    cos, sin = module(config)(made[2], ids)
    cos, sin = (x.reshape(-1, head_dim) for x in (cos, sin))
    options = {"head_dim": head_dim, "angle": "float32", "grid": [height, width], "first": first}
    return rotated("rope_axial", options | own, made, lambda x: turn(x, cos, sin))


def qwen2_vision():
    config = SimpleNamespace(head_dim=16)
    return axial(model("qwen2_vl").Qwen2VLVisionRotaryEmbedding, config, half, layout="half")


def pixtral():
    config = SimpleNamespace(head_dim=24)
    own = {"layout": "half", "ladder": "shared"}
    return axial(model("pixtral").PixtralVisionRotaryEmbedding, config, half, **own)


def sam2():
    config = SimpleNamespace(
        head_dim=16,
        memory_attention_hidden_size=16 * HEADS,
        memory_attention_downsample_rate=1,
        memory_attention_num_attention_heads=HEADS,
    )
    own = {"layout": "interleaved", "first": "x"}
    return axial(model("sam2_video").Sam2VideoVisionRotaryEmbedding, config, pairwise, **own)


def llama4_vision():
    """The token [CLS] comes last and does not turn."""
    side = 6
    own = config(image_size=16 * side, rope_parameters={"rope_theta": 10000.0})
    made = qkv(side * side + 1)
    module = model("llama4").Llama4VisionRotaryEmbedding(own)
    turns = module(made[2]).view(side * side + 1, DIM // 2)
    cos, sin = (x.repeat_interleave(2, -1) for x in (turns.real, turns.imag))
    patch = torch.arange(side * side)
    ids = torch.cat([patch // side * (2 * side - 1) + patch % side, torch.tensor([-1])])
    options = {"head_dim": DIM, "layout": "interleaved", "angle": "float32", "grid": side}
    options |= {"first": "x", "origin": 1, "prefix": 1}
    call = {"q_positions": ids, "k_positions": ids}
    return rotated("rope_axial", options, made, lambda x: pairwise(x, cos, sin), **call)


def dinov3(height, width, prefix):
    hf = model("dinov3_vit")
    random = dict.fromkeys(("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"))
    own = config(rope_theta=100.0, image_size=(16 * height, 16 * width), **random)
    module = hf.DINOv3ViTRopePositionEmbedding(own).eval()
    centers = "get_patches_center_coordinates"  # kept from call to call, in whichever dtype
    with mock.patch.object(hf, centers, getattr(hf, centers).__wrapped__):
        cos, sin = module(torch.zeros(1, 3, 16 * height, 16 * width))
    made = qkv(height * width + prefix)
    options = {"head_dim": DIM, "layout": "half", "grid": [height, width], "prefix": prefix}

    def turn(x):
        return hf.apply_rotary_pos_emb(x, x, cos, sin)[0]

    return rotated("rope_dinov3", options, made, turn)


def xpos(length, first):
    """torchscale's XPOS: scales around the middle of the sequence, which the products forget."""
    head_dim = 8
    made = qkv(length, head_dim=head_dim)
    at = torch.arange(first, first + length).double()
    turns = torch.outer(at, 10000.0 ** -(torch.arange(0, head_dim, 2).double() / head_dim))
    cos, sin = (x.repeat_interleave(2, -1) for x in (turns.cos(), turns.sin()))
    zeta = (torch.arange(0, head_dim, 2).double() + 0.4 * head_dim) / (1.4 * head_dim)
    power = (torch.arange(length).double() - length // 2)[:, None] / 512
    scale = (zeta**power).repeat_interleave(2, -1)
    options = {"head_dim": head_dim, "layout": "interleaved"}

    def turn(x):
        return pairwise(x, cos, sin) * scale

    def turn_k(x):
        return pairwise(x, cos, sin) / scale

    call = {"q_offset": first, "k_offset": first}
    return rotated("xpos", options, made, turn, True, turn_k, **call)


def llamas(scheme, *arguments, **options):
    return of(scheme, "LlamaRotaryEmbedding", llama, scheme, *arguments, **options)


PEERS = {
    "RoPE": llamas("rope", 64, 20),
    "RoPE, linear": llamas("rope_linear", 16, 20, factor=8.0),
    "RoPE, dynamic, short": llamas(
        "rope_dynamic", 16, 20, max_position_embeddings=2048, **_DYNAMIC
    ),
    "RoPE, dynamic, long": llamas("rope_dynamic", 16, 40, max_position_embeddings=20, **_DYNAMIC),
    "YaRN": llamas("rope_yarn", 128, 20, **_YARN),
    "YaRN as in gpt-oss": llamas("rope_yarn", 64, 20, **_YARN | {"factor": 32.0}),
    "YaRN as in DeepSeek": llamas("rope_yarn", 64, 20, **_DEEPSEEK),
    "LongRoPE, short": llamas("rope_longrope", 8, 20, **_LONG),
    "LongRoPE, long": llamas(
        "rope_longrope", 8, 40, **_LONG | {"original_max_position_embeddings": 30}
    ),
    "LongRoPE at the original length": llamas(
        "rope_longrope", 8, 40, **_LONG | {"original_max_position_embeddings": 80}
    ),
    "Proportional RoPE": llamas(
        "rope_proportional", 16, 20, partial_rotary_factor=0.25, factor=2.0
    ),
    "Llama 3.1": llamas("rope_llama3", 128, 0, **_LLAMA3),
    "Llama 3.1, far": llamas("rope_llama3", 128, 30_000, **_LLAMA3),
    "Llama 3.2": llamas("rope_llama3", 64, 5_000, **_LLAMA3 | {"factor": 32.0}),
    "Llama 3, short": llamas("rope_llama3", 16, 20, **_LLAMA3 | _BEFORE_64),
    "Llama 3.1, with a cache": llamas("rope_llama3", 64, 0, queries=33, **_LLAMA3),
    "Llama 3.1, padded": llamas("rope_llama3", 64, 0, padded=True, **_LLAMA3),
    "M-RoPE of Qwen2-VL": of("mrope", "Qwen2VLRotaryEmbedding", qwen2_mrope),
    "M-RoPE of Qwen3-VL": of("mrope", "Qwen3VLTextRotaryEmbedding", qwen3_mrope),
    "Axial RoPE of Qwen2-VL": of("rope_axial", "Qwen2VLVisionRotaryEmbedding", qwen2_vision),
    "Axial RoPE of Pixtral": of("rope_axial", "PixtralVisionRotaryEmbedding", pixtral),
    "Axial RoPE of SAM 2": of("rope_axial", "Sam2VideoVisionRotaryEmbedding", sam2),
    "Axial RoPE of Llama 4": of("rope_axial", "Llama4VisionRotaryEmbedding", llama4_vision),
    "RoPE of DINOv3": of("rope_dinov3", "DINOv3ViTRopePositionEmbedding", dinov3, 5, 7, 0),
    "RoPE of DINOv3 after [CLS] and registers": of(
        "rope_dinov3", "DINOv3ViTRopePositionEmbedding", dinov3, 4, 6, 5
    ),
    "xPos": formula("xpos", xpos, 40, 0),
    "xPos, far": formula("xpos", xpos, 70, 5_000),
}
