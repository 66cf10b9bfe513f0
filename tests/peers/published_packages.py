"""Attention as packages other than transformers compute it: modules with random weights. A package
that is not installed is imported by nothing but the peers that need it."""

import importlib
import importlib.util
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType

import torch

from tests.peers.published import (
    DIM,
    HEADS,
    WIDTH,
    Drawing,
    Peer,
    attended,
    heads_of,
    hidden_keys,
    normal,
    of,
    of_bias,
    padding,
    passing,
    projected,
    qkv,
    seeded,
)
from tests.peers.published_rotations import pairwise, rotated

TURNED = {"head_dim": 32, "layout": "interleaved", "angle": "float32"}


def part(name, without=()):
    """A module of a package. The packages that hold it are not run, and those in `without` are
    empty: they import what the module can do without (torchvision, fairscale, polars)."""
    names = name.split(".")
    for parent in (".".join(names[:n]) for n in range(1, len(names))):
        if parent not in sys.modules:
            spec = importlib.util.find_spec(parent)
            sys.modules[parent] = importlib.util.module_from_spec(spec)
    for other in without:
        sys.modules.setdefault(other, Empty(other))
    return importlib.import_module(name)


class Empty(ModuleType):
    def __getattr__(self, name):
        return None


def x_transformers(name):
    return getattr(importlib.import_module("x_transformers.x_transformers"), name)


def relative_buckets(queries, keys, causal, padded=False):
    module = seeded(x_transformers("RelativePositionBias")(1.0, causal=causal, heads=HEADS))
    named = {"relative_attention_bias.weight": module.relative_attention_bias.weight}
    options = {"heads": HEADS, "bidirectional": not causal}
    call = {"is_causal": causal, "q_offset": keys - queries}
    return of_bias("t5", options, queries, keys, module(queries, keys), named, padded, **call)


def dynamic_bias(queries, keys, log_distance, padded=False):
    module = x_transformers("DynamicPositionBias")
    module = module.__new__(module)
    torch.nn.Module.__init__(module)
    # Without its norm the constructor of 2.31.10 puts None into a Sequential, which torch refuses.
    module.log_distance = log_distance
    linear, activation = torch.nn.Linear, torch.nn.SiLU
    module.mlp = torch.nn.ModuleList(
        [
            torch.nn.Sequential(linear(1, 32), activation()),
            torch.nn.Sequential(linear(32, 32), activation()),
            linear(32, HEADS),
        ]
    )
    seeded(module)
    named = {f"mlp.{n}": x for n, x in module.mlp.named_parameters()}
    options = {"heads": HEADS, "width": 32, "depth": 2, "log_distance": log_distance}
    call = {"q_offset": keys - queries}
    bias = module(queries, keys)
    return of_bias("dynamic_bias", options, queries, keys, bias, named, padded, **call)


def alibi(queries, keys, padded=False):
    bias = x_transformers("AlibiPositionalBias")(HEADS)(queries, keys)
    options, call = {"heads": HEADS}, {"q_offset": keys - queries}
    return of_bias("alibi", options, queries, keys, bias.to(Drawing.dtype), {}, padded, **call)


def forgetting(length, padded=False):
    """Its gates are those of all keys, so that a padded call has gates of padding, too."""
    module = seeded(x_transformers("DataDependentAlibi")(WIDTH, HEADS))
    hidden = normal(2, length, WIDTH, seed=5)
    bias = module(hidden)
    peer = of_bias("forgetting", {}, length, length, bias, {}, padded, is_causal=True)
    peer.inputs = {"log_f": module.to_forget_gates(hidden)}
    peer.leaves = [*peer.leaves, hidden]
    return peer


def inkling(queries, keys):
    module = seeded(x_transformers("RelativeProjPositionalBias")(WIDTH, HEADS, 4, 24))
    hidden = normal(2, queries, WIDTH, seed=5)
    named, options = {"proj": module.distance_bank}, {"rank": 4, "extent": 24}
    call = {"is_causal": True, "q_offset": keys - queries}
    bias = module(hidden, keys)
    peer = of_bias("inkling", options, queries, keys, bias, named, **call)
    peer.inputs = {"c": module.to_distance_weights(hidden)}
    peer.leaves = [*peer.leaves, hidden]
    return peer


def x_turned(scheme, options, **own):
    module = x_transformers("RotaryEmbedding")(TURNED["head_dim"], **own)
    turn = x_transformers("apply_rotary_pos_emb")
    freqs, scale = module.to(Drawing.dtype)(torch.arange(50))
    down = scale**-1 if torch.is_tensor(scale) else 1.0
    turns = [lambda x, by=by: turn(x, freqs, by) for by in (scale, down)]
    made = qkv(50, head_dim=TURNED["head_dim"])
    return rotated(scheme, TURNED | options, made, turns[0], True, turns[1])


def r_turned(scheme, queries, keys, options, **own):
    from rotary_embedding_torch import RotaryEmbedding

    q, k, v = qkv(queries, keys, TURNED["head_dim"])
    module = RotaryEmbedding(TURNED["head_dim"], **own).to(Drawing.dtype)
    turned_q, turned_k = module.rotate_queries_with_cached_keys(q, k)
    out = attended(turned_q @ turned_k.mT * TURNED["head_dim"] ** -0.5, v, causal=True)
    call = {"is_causal": True, "q_offset": keys - queries}
    return Peer(scheme, TURNED | options, [q, k, v], out, call=call)


def esm(length):
    from esm.rotary_embedding import RotaryEmbedding

    q, k, v = qkv(length, head_dim=TURNED["head_dim"])
    module = RotaryEmbedding(TURNED["head_dim"]).to(Drawing.dtype)
    turned_q, turned_k = (
        x.unflatten(0, (2, HEADS)) for x in module(q.flatten(0, 1), k.flatten(0, 1))
    )
    out = attended(turned_q @ turned_k.mT * TURNED["head_dim"] ** -0.5, v)
    return Peer("rope", TURNED | {"layout": "half"}, [q, k, v], out)


def torchscale_xpos(length):
    xpos = part("torchscale.component.xpos_relative_position").XPOS(DIM).to(Drawing.dtype)

    def turn(x, down=False):
        return xpos(x.flatten(0, 1), downscale=down).unflatten(0, (2, HEADS))

    return rotated(
        "xpos", TURNED | {"head_dim": DIM}, qkv(length), turn, True, partial(turn, down=True)
    )


def torchscale_t5(queries, keys):
    module = part("torchscale.component.relative_position_bias").RelativePositionBias(n_heads=HEADS)
    seeded(module)
    bias = module(1, queries, keys, keys - queries)
    named = {"relative_attention_bias.weight": module.relative_attention_bias.weight}
    call = {"q_offset": keys - queries}
    return of_bias("t5", {"heads": HEADS}, queries, keys, bias, named, **call)


def enformer(length):
    module = part("enformer_pytorch.modeling_enformer", without=["enformer_pytorch.data"])
    module = module.Attention(
        WIDTH, num_rel_pos_features=24, heads=HEADS, dim_key=DIM, dim_value=DIM
    )
    seeded(module)
    passing(module.to_out)
    hidden = normal(2, length, WIDTH)
    out = heads_of(module(hidden))
    made = projected(hidden, module.to_q, module.to_k, module.to_v)
    named = {
        "to_rel_k.weight": module.to_rel_k.weight,
        "rel_content_bias": module.rel_content_bias[0, :, 0],
        "rel_pos_bias": module.rel_pos_bias[0, :, 0],
    }
    leaves = [hidden, module.to_rel_k.weight, module.rel_content_bias, module.rel_pos_bias]
    options = {"heads": HEADS, "head_dim": DIM, "features": 24}
    return Peer("enformer", options, made, out, named, leaves=leaves)


def lucidrains_shaw(length, reach, padded=False):
    from conformer.conformer import Attention

    module = seeded(Attention(WIDTH, HEADS, DIM, max_pos_emb=reach))
    passing(module.to_out)
    hidden = normal(2, length, WIDTH)
    own = {"context": hidden, "context_mask": ~padding(length)} if padded else {}
    out = heads_of(module(hidden, mask=torch.ones(2, length).bool() if padded else None, **own))
    k, v = module.to_kv(hidden).chunk(2, -1)
    made = [heads_of(x) for x in (module.to_q(hidden), k, v)]
    table = module.rel_pos_emb.weight
    options = {"max_distance": reach, "head_dim": DIM, "values": False, "distance": "query-key"}
    call, _ = hidden_keys(length, padded)
    return Peer("shaw", options, made, out, {"key_table": table}, {}, call, [hidden])


def speechbrain(length, padded=False):
    """Causal, since its sinusoids of the future are those of the past. Its scale is that of the
    whole width, and its vectors are read from [D, H] as [H, D]."""
    others = ["speechbrain.dataio", "speechbrain.dataio.dataio"]
    origin = part("speechbrain.nnet.attention", without=others)
    module = seeded(origin.RelPosMHAXL(WIDTH, HEADS))
    passing(module.out_proj)
    hidden = normal(2, length, WIDTH)
    waves = origin.RelPosEncXL(WIDTH)(hidden).to(hidden.dtype)
    later = torch.ones(length, length).triu(1).bool()
    hide, _ = hidden_keys(length, padded)
    of_keys = hide.get("key_padding_mask")
    out = heads_of(module(hidden, hidden, hidden, waves, of_keys, later)[0])
    joined = torch.nn.functional.linear(hidden, module.in_proj_weight)
    made = [x.transpose(1, 2) for x in joined.unflatten(-1, (HEADS, 3 * DIM)).chunk(3, -1)]
    vectors = {n: getattr(module, n) for n in ("pos_bias_u", "pos_bias_v")}
    named = {"linear_pos.weight": module.linear_pos.weight}
    leaves = [hidden, *named.values(), *vectors.values()]
    named |= {n: x.view(HEADS, DIM) for n, x in vectors.items()}
    call = hide | {"is_causal": True, "scale": WIDTH**-0.5}
    options = {"heads": HEADS, "head_dim": DIM}
    return Peer("conformer", options, made, out, named, {}, call, leaves=leaves)


def timm_swin(scheme, window, prefix):
    module = part("timm.layers.pos_embed_rel").RelPosBias(window, HEADS, prefix_tokens=prefix)
    table = {"relative_position_bias_table": seeded(module).relative_position_bias_table}
    tokens = window[0] * window[1] + prefix
    options = {"heads": HEADS, "window": list(window)}
    return of_bias(scheme, options, tokens, tokens, module.get_bias(), table)


def timm_swin_v2(window):
    module = part("timm.layers.pos_embed_rel").RelPosMlp(window, HEADS, 64, mode="swin")
    seeded(module)
    names = {"0.weight": "fc1.weight", "0.bias": "fc1.bias", "2.weight": "fc2.weight"}
    named = {
        f"continuous_position_bias_mlp.{n}": module.mlp.get_parameter(of) for n, of in names.items()
    }
    tokens = window[0] * window[1]
    options = {"heads": HEADS, "window": list(window), "hidden": 64}
    return of_bias("swin_v2", options, tokens, tokens, module.get_bias(), named)


def timm_botnet(side):
    module = part("timm.layers.bottleneck_attn")
    module = seeded(
        module.BottleneckAttn(
            WIDTH, feat_size=(side, side), num_heads=HEADS, dim_head=DIM, scale_pos_embed=True
        )
    )
    image = normal(2, WIDTH, side, side)
    out = module(image).flatten(2).unflatten(1, (HEADS, DIM)).mT
    made = [x.flatten(2).unflatten(1, (HEADS, DIM)).mT for x in module.qkv(image).chunk(3, 1)]
    named = {n: module.pos_embed.get_parameter(n) for n in ("height_rel", "width_rel")}
    options = {"head_dim": DIM, "grid": side}
    return Peer("botnet", options, made, out, named, of=[image])


def timm_axial(height, width):
    """Rotations of patches whose bands are those of a language model."""
    rotary = part("timm.layers.pos_embed_sincos")
    module = rotary.RotaryEmbeddingCat(
        DIM, in_pixels=False, feat_shape=[height, width], ref_feat_shape=[height, width]
    )
    table = module.get_embed().to(Drawing.dtype)
    options = {"head_dim": DIM, "layout": "interleaved", "grid": [height, width]}
    options["angle"] = "float32"
    made = qkv(height * width)
    return rotated("rope_axial", options, made, lambda x: rotary.apply_rot_embed_cat(x, table))


def timm_mixed(height, width, indexing):
    """Directions of a block of a vision transformer."""
    rotary = part("timm.layers.pos_embed_sincos")
    module = rotary.RotaryEmbeddingMixed(HEADS * DIM, 1, HEADS, grid_indexing=indexing)
    table = seeded(module).get_embed([height, width])[0].to(Drawing.dtype)
    options = {"heads": HEADS, "head_dim": DIM, "grid": [height, width], "indexing": indexing}
    made = qkv(height * width)
    peer = rotated("rope_mixed", options, made, lambda x: rotary.apply_rot_embed_cat(x, table))
    peer.parameters = {"freqs": module.freqs[:, 0]}
    peer.leaves = [*made, module.freqs]
    return peer


def timm_dinov3(height, width):
    rotary = part("timm.layers.pos_embed_sincos")
    module = rotary.RotaryEmbeddingDinoV3(DIM, feat_shape=[height, width], rotate_half=True).eval()
    table = module.get_embed([height, width]).to(Drawing.dtype)
    options = {"head_dim": DIM, "layout": "half", "grid": [height, width], "angle": "float32"}

    def turn(x):
        return rotary.apply_rot_embed_cat(x, table, half=True)

    return rotated("rope_dinov3", options, qkv(height * width), turn)


def video(module, dims, options, frames, height, width, layout="interleaved"):
    """A module of diffusers that gives cosines and sines of the patches of a film."""
    cos, sin = module
    cos, sin = (x.reshape(-1, dims).to(Drawing.dtype) for x in (cos, sin))
    sizes = {"head_dim": dims, "layout": layout, "angle": "float32", "grid": [height, width]}
    made = qkv(frames * height * width, head_dim=dims)
    return rotated("rope_video", sizes | options, made, lambda x: pairwise(x, cos, sin))


def cogvideox(frames, height, width):
    from diffusers.models.embeddings import get_3d_rotary_pos_embed

    found = get_3d_rotary_pos_embed(
        32, None, (height, width), frames, grid_type="slice", max_size=(height, width)
    )
    return video(found, 32, {"section": [4, 6, 6]}, frames, height, width)


def hunyuan(frames, height, width):
    from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed

    found = HunyuanVideoRotaryPosEmbed(1, 1, [8, 12, 12])(torch.zeros(1, 1, frames, height, width))
    return video(found, 32, {"section": [4, 6, 6], "base": 256.0}, frames, height, width)


def turned(scheme, make, *arguments, **options):
    return of(scheme, "RotaryEmbedding", make, scheme, *arguments, **options)


dynamic_biases = partial(of, "dynamic_bias", "DynamicPositionBias", dynamic_bias)
shaws = partial(of, "shaw", "Attention", lucidrains_shaw, 40)

# Names that start with a comma follow that of the package.
PACKAGES = {
    "x-transformers": {
        ", buckets": of("t5", "RelativePositionBias", relative_buckets, 60, 60, False),
        ", causal buckets": of("t5", "RelativePositionBias", relative_buckets, 33, 90, True),
        ", dynamic bias": dynamic_biases(40, 40, False),
        ", dynamic bias of logarithms": dynamic_biases(33, 65, True),
        ", dynamic bias, padded": dynamic_biases(40, 40, True, padded=True),
        ", ALiBi": of("alibi", "AlibiPositionalBias", alibi, 60, 60),
        ", ALiBi with a cache": of("alibi", "AlibiPositionalBias", alibi, 33, 65),
        ", forgetting": of("forgetting", "DataDependentAlibi", forgetting, 50),
        ", forgetting, padded": of("forgetting", "DataDependentAlibi", forgetting, 50, padded=True),
        ", Inkling": of("inkling", "RelativeProjPositionalBias", inkling, 40, 40),
        ", Inkling with a cache": of("inkling", "RelativeProjPositionalBias", inkling, 33, 65),
        ", RoPE": turned("rope", x_turned, {}),
        ", NTK": turned("rope_ntk", x_turned, {"factor": 4.0}, base_rescale_factor=4.0),
        ", xPos": turned("xpos", x_turned, {}, use_xpos=True),
    },
    "rotary-embedding-torch": {
        ", RoPE with a cache": turned("rope", r_turned, 33, 65, {}),
        ", NTK": turned("rope_ntk", r_turned, 50, 50, {"factor": 8.0}, theta_rescale_factor=8.0),
        ", linear": turned(
            "rope_linear", r_turned, 50, 50, {"factor": 4.0}, interpolate_factor=4.0
        ),
    },
    "fair-esm": {"ESM-1b": of("rope", "RotaryEmbedding", esm, 50)},
    "torchscale": {
        ", xPos": of("xpos", "XPOS", torchscale_xpos, 50),
        ", buckets": of("t5", "RelativePositionBias", torchscale_t5, 60, 60),
        ", buckets with a cache": of("t5", "RelativePositionBias", torchscale_t5, 33, 200),
    },
    "enformer-pytorch": {"Enformer": of("enformer", "Attention", enformer, 48)},
    "conformer": {
        "lucidrains' conformer": shaws(60),
        "lucidrains' conformer, clamped": shaws(9),
        "lucidrains' conformer, padded": shaws(9, padded=True),
    },
    "speechbrain": {
        "speechbrain": of("conformer", "RelPosMHAXL", speechbrain, 40),
        "speechbrain, padded": of("conformer", "RelPosMHAXL", speechbrain, 40, padded=True),
    },
    "timm": {
        ", Swin": of("swin", "RelPosBias", timm_swin, "swin", (5, 8), 0),
        ", BEiT": of("beit", "RelPosBias", timm_swin, "beit", (4, 9), 1),
        ", Swin V2": of("swin_v2", "RelPosMlp", timm_swin_v2, (6, 7)),
        ", BoTNet": of("botnet", "BottleneckAttn", timm_botnet, 6),
        ", axial RoPE": of("rope_axial", "RotaryEmbeddingCat", timm_axial, 5, 8),
        ", mixed RoPE": of("rope_mixed", "RotaryEmbeddingMixed", timm_mixed, 5, 8, "xy"),
        ", mixed RoPE, ij": of("rope_mixed", "RotaryEmbeddingMixed", timm_mixed, 5, 8, "ij"),
        ", DINOv3": of("rope_dinov3", "RotaryEmbeddingDinoV3", timm_dinov3, 6, 7),
    },
    "diffusers": {
        "CogVideoX": of("rope_video", "get_3d_rotary_pos_embed", cogvideox, 3, 4, 5),
        "HunyuanVideo": of("rope_video", "HunyuanVideoRotaryPosEmbed", hunyuan, 3, 4, 5),
    },
}
PEERS = {
    f"{package}{name}" if name.startswith(",") else name: replace(origin, package=package)
    for package, origins in PACKAGES.items()
    for name, origin in origins.items()
}
