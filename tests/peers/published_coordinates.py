"""Terms by coordinates and segments as modules of transformers compute them, random weights."""

from functools import partial
from types import SimpleNamespace

import torch

from tests.peers.published import (
    DIM,
    HEADS,
    WIDTH,
    Drawing,
    Peer,
    attended,
    config,
    heads_of,
    hidden_keys,
    model,
    normal,
    of,
    of_bias,
    passing,
    projected,
    qkv,
    seeded,
)


def drawn(*shape, below, seed=0):
    draw = torch.Generator().manual_seed(1000 * Drawing.seed + seed)
    return torch.randint(0, below, shape, generator=draw)


def coordinates(at):
    """The inputs of a call whose queries and keys are the same tokens."""
    return {"q_coordinates": at, "k_coordinates": at.clone()}


def udop(length):
    """Boxes in thousandths. Their middles differ by no whole hundredth, so that float32 differences
    are cut off where they should be."""
    hf = model("udop")
    kinds = {
        "1d": (hf.RelativePositionBias1D, {"max_distance": 20}),
        "horizontal": (hf.RelativePositionBiasHorizontal, {}),
        "vertical": (hf.RelativePositionBiasVertical, {}),
    }
    module = seeded(
        hf.RelativePositionBiasAggregated(
            [kind(num_heads=HEADS, **own) for kind, own in kinds.values()]
        )
    )
    order = torch.randperm(20, generator=torch.Generator().manual_seed(Drawing.seed))
    both = 20 * drawn(2, 2, length, below=95) + order[:length]
    first = both // 2
    boxes = torch.cat([first, both - first], 1).mT / 1000
    bias = module(torch.ones(2, length), boxes)
    named = {
        f"biases.{n}.relative_attention_bias.weight": each.relative_attention_bias.weight
        for n, each in enumerate(module.biases)
    }
    peer = of_bias("udop", {"heads": HEADS, "max_distance": 20}, length, length, bias, named)
    peer.inputs = coordinates(both)
    return peer


class Selected:
    """A table [heads, bins] whose gather gives one-hot rows: Hugging Face gathers its tables
    without gradients, so the product with the table is taken here."""

    def __init__(self, bins):
        self.weight = torch.eye(bins, dtype=Drawing.dtype)


def layout(length, scale):
    Encoder = model("layoutlmv3").LayoutLMv3Encoder
    sizes = {"rel_pos_bins": 32, "max_rel_pos": 128, "rel_2d_pos_bins": 64, "max_rel_2d_pos": 256}
    tables = [normal(HEADS, bins, seed=n) for n, bins in enumerate((32, 64, 64))]
    boxes, nothing = drawn(2, length, 4, below=1000), torch.zeros(64, 64, dtype=Drawing.dtype)
    holder = SimpleNamespace(**sizes, rel_pos_bias=Selected(32))
    holder.relative_position_bucket = lambda *a, **k: Encoder.relative_position_bucket(
        holder, *a, **k
    )
    text = Encoder._cal_1d_pos_emb(holder, torch.arange(length)[None])
    holder.rel_pos_x_bias, holder.rel_pos_y_bias = Selected(64), SimpleNamespace(weight=nothing)
    across = Encoder._cal_2d_pos_emb(holder, boxes)
    holder.rel_pos_x_bias, holder.rel_pos_y_bias = holder.rel_pos_y_bias, holder.rel_pos_x_bias
    down = Encoder._cal_2d_pos_emb(holder, boxes)
    bias = sum(
        torch.einsum("bmij,hm->bhij", rows.to(table.dtype), table)
        for rows, table in zip((text, across, down), tables, strict=True)
    )
    names = [f"rel_pos_{axis}bias.weight" for axis in ("", "x_", "y_")]
    named = dict(zip(names, tables, strict=True))
    options = {"heads": HEADS, "bias_scale": scale}
    peer = of_bias("layout", options, length, length, scale * bias, named)
    peer.inputs = coordinates(boxes[..., [0, 3]].mT.contiguous())
    return peer


def cpm_ant(queries, keys, buckets, far):
    sizes = {"position_bias_num_buckets": buckets, "position_bias_max_distance": far}
    own = config(segment_types=4, **sizes)
    module = seeded(model("cpmant").CpmAntSegmentPositionEmbedding(own))
    of_q, of_k = drawn(2, queries, below=4), drawn(2, keys, below=4, seed=1)
    bias = module(torch.zeros_like(of_k), torch.zeros_like(of_q), of_k, of_q)
    options = {"heads": HEADS, "segments": 4, "buckets": buckets, "max_distance": far}
    named = {"relative_attention_bias": module.relative_attention_bias}
    peer = of_bias("cpm_ant", options, queries, keys, bias, named, q_offset=0)
    peer.inputs = {"q_segments": of_q, "k_segments": of_k}
    return peer


def xlnet(queries, keys, segments=True, padded=False):
    hf = model("xlnet")
    own = config(n_head=HEADS, d_head=DIM, d_model=WIDTH, layer_norm_eps=1e-12)
    module = seeded(hf.XLNetRelativeAttention(own))
    q, k, v = qkv(queries, keys)
    frequency = 1 / 10000 ** (torch.arange(0, WIDTH, 2).to(q.dtype) / WIDTH)
    at = torch.arange(keys, -queries, -1).to(q.dtype)
    waves = hf.XLNetModel.positional_embedding(at, frequency, 2)
    rows = torch.einsum("ibh,hnd->ibnd", waves, module.r)
    of_q, of_k = drawn(2, queries, below=3), drawn(2, keys, below=3, seed=1)
    other = (of_q.T[:, None] != of_k.T[None]).long()
    kinds = torch.nn.functional.one_hot(other, 2).to(q.dtype) if segments else None
    call, mask = hidden_keys(keys, padded)
    mask = (mask != 0).permute(1, 3, 0, 2).expand(queries, -1, -1, -1).to(q.dtype)
    core = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    out = module.rel_attn_core(*core, rows, seg_mat=kinds, attn_mask=mask)
    named = {n: getattr(module, n) for n in ("r", "r_w_bias", "r_r_bias")}
    if segments:
        named |= {n: getattr(module, n) for n in ("r_s_bias", "seg_embed")}
    options = {"heads": HEADS, "head_dim": DIM, "width": WIDTH, "segments": segments}
    inputs = {"q_segments": of_q, "k_segments": of_k} if segments else {}
    call |= {"q_offset": keys - queries}
    return Peer("xlnet", options, [q, k, v], out.permute(1, 2, 0, 3), named, inputs, call)


def funnel(length, kind, pooled=False, separate=True):
    """Its sum of three scores, of all tokens or of the queries of the second block."""
    hf = model("funnel")
    sizes = {"d_model": WIDTH, "n_head": HEADS, "d_head": DIM, "block_sizes": [1, 1]}
    own = hf.FunnelConfig(**sizes, attention_type=kind, separate_cls=separate)
    structure = hf.FunnelAttentionStructure(own).eval()
    module = seeded(hf.FunnelRelMultiheadAttention(own, 1 if pooled else 0))
    types = drawn(2, length, below=2)
    types[:, 0] = 2
    hidden = torch.zeros(2, length, WIDTH, dtype=Drawing.dtype)
    made = structure.init_attention_inputs(hidden, token_type_ids=types)
    number = torch.arange(length)
    if pooled:
        _, made = structure.pre_attention_pooling(hidden, made)
        number = structure.stride_pool(number, 0)
    waves, kinds, _, cls = made
    q, k, v = qkv(len(number), length)
    scaled = q.transpose(1, 2) * module.scale
    content = torch.einsum(
        "bind,bjnd->bnij", scaled + module.r_w_bias * module.scale, k.transpose(1, 2)
    )
    scores = (
        content
        + module.relative_positional_attention(waves, scaled, length, cls)
        + module.relative_token_type_attention(kinds, scaled, cls)
    )
    out = attended(scores, v)
    names = ("r_w_bias", "r_r_bias", "r_kernel", "r_s_bias", "seg_embed")
    named = {n: getattr(module, n) for n in names}
    options = {"heads": HEADS, "head_dim": DIM, "width": WIDTH}
    options |= {"max_length": 64, "separate_cls": separate}
    call = {"q_positions": number.clone(), "k_positions": torch.arange(length)}
    if separate:
        call["q_positions"][0], call["k_positions"][0] = 128, -64
    inputs = {"q_segments": types[:, number], "k_segments": types}
    return Peer("funnel", options, [q, k, v], out, named, inputs, call)


def gemma3n_audio(length):
    hf = model("gemma3n")
    own = config(
        conf_num_attention_heads=HEADS,
        conf_attention_context_left=5,
        conf_attention_context_right=2,
        conf_attention_chunk_size=6,
        conf_attention_logit_cap=3.0,
    )
    module = seeded(hf.Gemma3nAudioAttention(own))
    hidden = normal(2, length, WIDTH)
    out = module(hidden, torch.zeros(2, length, dtype=torch.bool)).transpose(1, 2)
    q, k, v = projected(hidden, module.q_proj, module.k_proj, module.v_proj)
    q = q * module.q_scale * torch.nn.functional.softplus(module.per_dim_scale)
    weight = module.relative_position_embedding.pos_proj.weight
    options = {"heads": HEADS, "head_dim": DIM, "width": WIDTH}
    call = {"scale": 1.0, "softcap": 3.0, "window": (4, 2)}
    named = {"pos_proj.weight": weight}
    return Peer("gemma_audio", options, [q, k, v], out, named, {}, call, [hidden])


def sam(side):
    own = config(image_size=16 * side, use_rel_pos=True)
    module = seeded(model("sam").SamVisionAttention(own, 0))
    passing(module.proj)
    hidden = normal(2, side, side, WIDTH)
    out = heads_of(module(hidden)[0].flatten(1, 2))
    made = [heads_of(x) for x in module.qkv(hidden).flatten(1, 2).chunk(3, -1)]
    named = {n: getattr(module, n) for n in ("rel_pos_h", "rel_pos_w")}
    options = {"head_dim": DIM, "grid": side}
    return Peer("decomposed", options, made, out, named, of=[hidden])


segments = partial(of, "cpm_ant", "CpmAntSegmentPositionEmbedding", cpm_ant)
funnels = partial(of, "funnel", "FunnelRelMultiheadAttention", funnel)

PEERS = {
    "UDOP": of("udop", "RelativePositionBiasAggregated", udop, 20),
    "LayoutLMv2": of("layout", "LayoutLMv3Encoder", layout, 40, 1.0),
    "LayoutLMv3": of("layout", "LayoutLMv3Encoder", layout, 40, DIM ** (-0.5)),
    "CPM-Ant": segments(60, 60, 512, 2048),
    "CPM-Ant, small buckets": segments(33, 70, 16, 50),
    "XLNet": of("xlnet", "XLNetRelativeAttention", xlnet, 40, 40),
    "XLNet with memory": of("xlnet", "XLNetRelativeAttention", xlnet, 33, 65),
    "XLNet without segments": of("xlnet", "XLNetRelativeAttention", xlnet, 40, 40, segments=False),
    "XLNet, padded": of("xlnet", "XLNetRelativeAttention", xlnet, 40, 40, padded=True),
    "Funnel": funnels(40, "relative_shift"),
    "Funnel, pooled": funnels(64, "factorized", pooled=True),
    "Funnel, [CLS] as the others": funnels(33, "factorized", separate=False),
    "Gemma 3n audio": of("gemma_audio", "Gemma3nAudioAttention", gemma3n_audio, 40),
    "SAM": of("decomposed", "SamVisionAttention", sam, 6),
}
