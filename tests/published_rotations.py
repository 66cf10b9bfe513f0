"""Rotations as other code computes them: modules of transformers, torchscale's formula."""

from types import SimpleNamespace
from unittest import mock

import torch
from published import HEADS, Drawing, Origin, Peer, attended, formula, normal


def qkv(length, head_dim):
    return [normal(2, HEADS, length, head_dim, seed=n) for n in range(3)]


def half(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def pairwise(x, cos, sin):
    return x * cos + torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2) * sin


def rotated(scheme, options, given, turn, causal=False, **call):
    """The peer of a function that turns queries and keys alike."""
    q, k, v = given
    out = attended(turn(q) @ turn(k).mT * q.shape[-1] ** -0.5, v, causal)
    return Peer(scheme, options, given, out, given, call=call)


def llama(scheme, head_dim, first, shared=(), length=40, **scaling):
    """Llama's own module under a rope_type; `shared` entries belong to the configuration, too."""
    from transformers.models.llama import modeling_llama as hf
    from transformers.models.llama.configuration_llama import LlamaConfig

    sizes = {"hidden_size": HEADS * head_dim, "num_attention_heads": HEADS}
    kind = "default" if scheme == "rope" else scheme.removeprefix("rope_")
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **scaling}
    config = LlamaConfig(
        **sizes, **{name: scaling[name] for name in shared}, rope_parameters=parameters
    )
    given = qkv(length, head_dim)
    at = torch.arange(first, first + length)[None]
    cos, sin = hf.LlamaRotaryEmbedding(config)(given[2], at)
    options = {"head_dim": head_dim, "layout": "half", "angle": "float32", **scaling}
    call = {"is_causal": True, "q_offset": first, "k_offset": first}
    return rotated(scheme, options, given, lambda x: half(x, cos[0], sin[0]), causal=True, **call)


def mrope(module, section, interleaved):
    """The text rotation of Qwen2-VL or Qwen3-VL."""
    head_dim, length = 2 * sum(section), 40
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}
    config = SimpleNamespace(rope_parameters=rope, head_dim=head_dim, max_position_embeddings=4096)
    given = qkv(length, head_dim)
    draw = torch.Generator().manual_seed(Drawing.seed)
    ids = torch.randint(0, 60, (3, 2, length), generator=draw)
    cos, sin = (x[:, None] for x in module(config)(given[2], ids))
    own = {"section": section, "interleaved": interleaved, "base": 1e6, "angle": "float32"}
    options = {"head_dim": head_dim, "layout": "half", **own}
    peer = rotated("mrope", options, given, lambda x: half(x, cos, sin))
    at = ids.transpose(0, 1).contiguous()
    peer.inputs = {"q_coordinates": at, "k_coordinates": at.clone()}
    return peer


def qwen2_mrope():
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

    return mrope(Qwen2VLRotaryEmbedding, [3, 4, 5], False)


def qwen3_mrope():
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    return mrope(Qwen3VLTextRotaryEmbedding, [6, 5, 5], True)


def axial(module, config, turn, first="y", **own):
    """A vision module's cosines and sines of the patches of a 5 x 7 image."""
    height, width, head_dim = 5, 7, config.head_dim
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    axes = (y, x) if first == "y" else (x, y)
    ids = torch.stack([axis.flatten() for axis in axes], -1)
    config.rope_parameters = {"rope_type": "axial", "rope_theta": 10000.0}
    given = qkv(height * width, head_dim)
    cos, sin = module(config)(given[2], ids)
    cos, sin = (x.reshape(-1, head_dim) for x in (cos, sin))
    options = {"head_dim": head_dim, "angle": "float32", "grid": [height, width], "first": first}
    return rotated("rope_axial", options | own, given, lambda x: turn(x, cos, sin))


def qwen2_vision():
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionRotaryEmbedding

    return axial(Qwen2VLVisionRotaryEmbedding, SimpleNamespace(head_dim=16), half, layout="half")


def pixtral():
    from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding

    config = SimpleNamespace(head_dim=24)
    own = {"layout": "half", "ladder": "shared"}
    return axial(PixtralVisionRotaryEmbedding, config, half, **own)


def sam2():
    from transformers.models.sam2_video.modeling_sam2_video import Sam2VideoVisionRotaryEmbedding

    config = SimpleNamespace(
        head_dim=16,
        memory_attention_hidden_size=16 * HEADS,
        memory_attention_downsample_rate=1,
        memory_attention_num_attention_heads=HEADS,
    )
    own = {"layout": "interleaved", "first": "x"}
    return axial(Sam2VideoVisionRotaryEmbedding, config, pairwise, **own)


def llama4_vision():
    """The token [CLS] comes last and does not turn."""
    from transformers.models.llama4.modeling_llama4 import Llama4VisionRotaryEmbedding

    side, head_dim = 6, 16
    config = SimpleNamespace(
        image_size=side * 14,
        patch_size=14,
        hidden_size=HEADS * head_dim,
        num_attention_heads=HEADS,
        rope_parameters={"rope_theta": 10000.0},
    )
    given = qkv(side * side + 1, head_dim)
    turns = Llama4VisionRotaryEmbedding(config)(given[2]).view(side * side + 1, head_dim // 2)
    cos, sin = (x.repeat_interleave(2, -1) for x in (turns.real, turns.imag))
    patch = torch.arange(side * side)
    ids = torch.cat([patch // side * (2 * side - 1) + patch % side, torch.tensor([-1])])
    options = {"head_dim": head_dim, "layout": "interleaved", "angle": "float32", "grid": side}
    options |= {"first": "x", "origin": 1, "prefix": 1}
    call = {"q_positions": ids, "k_positions": ids}
    return rotated("rope_axial", options, given, lambda x: pairwise(x, cos, sin), **call)


def dinov3(height, width, prefix):
    from transformers.models.dinov3_vit import modeling_dinov3_vit as hf

    head_dim = 16
    config = SimpleNamespace(
        rope_theta=100.0,
        hidden_size=HEADS * head_dim,
        num_attention_heads=HEADS,
        image_size=(16 * height, 16 * width),
        patch_size=16,
        pos_embed_shift=None,
        pos_embed_jitter=None,
        pos_embed_rescale=None,
    )
    module = hf.DINOv3ViTRopePositionEmbedding(config).eval()
    centers = "get_patches_center_coordinates"  # kept from call to call, in whichever dtype
    with mock.patch.object(hf, centers, getattr(hf, centers).__wrapped__):
        cos, sin = module(torch.zeros(1, 3, 16 * height, 16 * width))
    given = qkv(height * width + prefix, head_dim)
    q, k, v = given
    turned_q, turned_k = hf.apply_rotary_pos_emb(q, k, cos, sin)
    out = attended(turned_q @ turned_k.mT * head_dim**-0.5, v)
    options = {"head_dim": head_dim, "layout": "half", "grid": [height, width], "prefix": prefix}
    return Peer("rope_dinov3", options, given, out, given)


def xpos(length, first):
    """torchscale's XPOS: scales around the middle of the sequence, which the products forget."""
    head_dim = 8
    given = q, k, v = qkv(length, head_dim)
    at = torch.arange(first, first + length).double()
    turns = torch.outer(at, 10000.0 ** -(torch.arange(0, head_dim, 2).double() / head_dim))
    cos, sin = (x.repeat_interleave(2, -1) for x in (turns.cos(), turns.sin()))
    zeta = (torch.arange(0, head_dim, 2).double() + 0.4 * head_dim) / (1.4 * head_dim)
    power = (torch.arange(length).double() - length // 2)[:, None] / 512
    scale = (zeta**power).repeat_interleave(2, -1)
    turned_q, turned_k = pairwise(q, cos, sin) * scale, pairwise(k, cos, sin) / scale
    out = attended(turned_q @ turned_k.mT * head_dim**-0.5, v, causal=True)
    call = {"is_causal": True, "q_offset": first, "k_offset": first}
    options = {"head_dim": head_dim, "layout": "interleaved"}
    return Peer("xpos", options, given, out, given, call=call)


_LONG = {
    "short_factor": [1.0, 1.1, 1.5, 2.0],
    "long_factor": [1.0, 1.6, 5.0, 19.0],
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
}
_YARN = {"factor": 16.0, "original_max_position_embeddings": 4096}


def llamas(scheme, *args, **scaling):
    return Origin(scheme, "LlamaRotaryEmbedding", lambda: llama(scheme, *args, **scaling))


PEERS = {
    "RoPE": llamas("rope", 64, 20),
    "RoPE, linear": llamas("rope_linear", 16, 20, factor=8.0),
    "RoPE, dynamic, short": llamas(
        "rope_dynamic",
        16,
        20,
        ["max_position_embeddings"],
        factor=4.0,
        max_position_embeddings=2048,
    ),
    "RoPE, dynamic, long": llamas(
        "rope_dynamic", 16, 40, ["max_position_embeddings"], factor=4.0, max_position_embeddings=20
    ),
    "YaRN": llamas("rope_yarn", 128, 20, **_YARN),
    "YaRN as in gpt-oss": llamas(
        "rope_yarn", 64, 20, factor=32.0, original_max_position_embeddings=4096
    ),
    "YaRN as in DeepSeek": llamas(
        "rope_yarn", 64, 20, **_YARN | {"mscale": 0.707, "mscale_all_dim": 1.0, "factor": 40.0}
    ),
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
    "xPos": formula("xpos", lambda: xpos(40, 0)),
    "xPos, far": formula("xpos", lambda: xpos(70, 5_000)),
    "M-RoPE of Qwen2-VL": Origin("mrope", "Qwen2VLRotaryEmbedding", qwen2_mrope),
    "M-RoPE of Qwen3-VL": Origin("mrope", "Qwen3VLTextRotaryEmbedding", qwen3_mrope),
    "Axial RoPE of Qwen2-VL": Origin("rope_axial", "Qwen2VLVisionRotaryEmbedding", qwen2_vision),
    "Axial RoPE of Pixtral": Origin("rope_axial", "PixtralVisionRotaryEmbedding", pixtral),
    "Axial RoPE of SAM 2": Origin("rope_axial", "Sam2VideoVisionRotaryEmbedding", sam2),
    "Axial RoPE of Llama 4": Origin("rope_axial", "Llama4VisionRotaryEmbedding", llama4_vision),
    "RoPE of DINOv3": Origin(
        "rope_dinov3", "DINOv3ViTRopePositionEmbedding", lambda: dinov3(5, 7, 0)
    ),
    "RoPE of DINOv3 after [CLS] and registers": Origin(
        "rope_dinov3", "DINOv3ViTRopePositionEmbedding", lambda: dinov3(4, 6, 5)
    ),
}
