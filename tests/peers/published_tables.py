"""Biases and tables as modules of transformers compute them, with random weights."""

import math
from functools import partial

import torch

from tests.peers.published import (
    DIM,
    HEADS,
    WIDTH,
    Drawing,
    Peer,
    config,
    heads_of,
    hidden_keys,
    model,
    normal,
    of,
    of_bias,
    padding,
    passing,
    projected,
    seeded,
)


def beit(window):
    own = config(image_size=(16 * window[0], 16 * window[1]))
    module = seeded(model("beit").BeitRelativePositionBias(own))
    tokens = window[0] * window[1] + 1
    table = {"relative_position_bias_table": module.relative_position_bias_table}
    options = {"heads": HEADS, "window": list(window)}
    return of_bias("beit", options, tokens, tokens, module(window), table)


def levit(side):
    module = seeded(model("levit").LevitAttention(8, DIM, HEADS, 2, side))
    table = {"attention_biases": module.attention_biases}
    bias, options = module.get_attention_biases("cpu"), {"heads": HEADS, "grid": side}
    return of_bias("levit", options, side * side, side * side, bias, table)


def levit_subsample(side, stride):
    """Queries stand at every second patch."""
    out = (side - 1) // stride + 1
    module = model("levit").LevitAttentionSubsample(8, 8, DIM, HEADS, 2, stride, side, out)
    module = seeded(module)
    table = {"attention_biases": module.attention_biases}
    patch = torch.arange(side * side)
    ids = patch // side * (2 * side - 1) + patch % side
    kept = ids.view(side, side)[::stride, ::stride].flatten()
    bias, options = module.get_attention_biases("cpu"), {"heads": HEADS, "grid": side}
    call = {"q_positions": kept, "k_positions": ids}
    return of_bias("levit", options, out * out, side * side, bias, table, **call)


def phi4_audio(symmetric):
    hf = model("phi4_multimodal")
    reach, length = 36, 60 if not symmetric else 36
    own = config(bias_max_distance=reach, bias_symmetric=symmetric)
    module = seeded(hf.Phi4MultimodalAudioRelativeAttentionBias(own))
    bias = module(torch.zeros(1, length, 1))[0]
    table = module.bias_values.weight.T
    options = {"heads": HEADS, "max_distance": reach + 1, "right": reach - 1}
    if symmetric:
        options = {"heads": HEADS, "max_distance": reach, "symmetric": True}
    held = {"biases": table if symmetric else table.flip(-1)}
    peer = of_bias("bias_rpe", options, length, length, bias, held)
    peer.leaves[-1] = module.bias_values.weight
    return peer


def w2v_bert(length, padded=False):
    hf = model("wav2vec2_bert")
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_dropout": 0.0}
    reach = {"left_max_position_embeddings": 7, "right_max_position_embeddings": 2}
    own = hf.Wav2Vec2BertConfig(**sizes, **reach, position_embeddings_type="relative_key")
    own._attn_implementation = "eager"
    module = seeded(hf.Wav2Vec2BertSelfAttention(own))
    passing(module.linear_out)
    hidden = normal(2, length, WIDTH)
    call, mask = hidden_keys(length, padded)
    out = heads_of(module(hidden, attention_mask=mask)[0])
    table = module.distance_embedding.weight
    made = projected(hidden, module.linear_q, module.linear_k, module.linear_v)
    options = {"max_distance": 7, "head_dim": DIM, "left": 7, "right": 2, "values": False}
    return Peer("shaw", options, made, out, {"key_table": table}, {}, call, [hidden])


def speecht5():
    """Its table lacks the row of the farthest past."""
    hf = model("speecht5")
    encoding = seeded(hf.SpeechT5RelativePositionalEncoding(DIM, 5), seed=2)
    module = seeded(hf.SpeechT5Attention(WIDTH, HEADS))
    passing(module.out_proj)
    hidden = normal(2, 40, WIDTH)
    out = heads_of(module(hidden, position_bias=encoding(hidden))[0])
    table = encoding.pe_k.weight
    made = projected(hidden, module.q_proj, module.k_proj, module.v_proj)
    options = {"max_distance": 5, "left": 4, "head_dim": DIM, "values": False}
    options |= {"distance": "query-key"}
    return Peer("shaw", options, made, out, {"key_table": table}, of=[hidden])


def granite():
    """Blocks of `context` frames, and a table with rows that no distance reads."""
    hf = model("granite_speech")
    context, most = 40, 50
    sizes = {"dim_head": DIM, "num_heads": HEADS, "hidden_dim": WIDTH}
    own = config(max_pos_emb=most, context_size=context, **sizes)
    module = seeded(hf.GraniteSpeechConformerAttention(own))
    passing(module.to_out)
    at = torch.arange(context)
    distances = (at[:, None] - at[None, :]).clamp(-context, context) + most
    hidden = normal(2, context, WIDTH)
    out = heads_of(module(hidden, distances))
    normed = module.pre_norm(hidden)
    k, v = module.to_kv(normed).chunk(2, -1)
    made = [heads_of(x) for x in (module.to_q(normed), k, v)]
    table = module.rel_pos_emb.weight
    options = {"max_distance": context, "rows": 2 * most + 1, "head_dim": DIM, "values": False}
    options |= {"distance": "query-key"}
    return Peer("shaw", options, made, out, {"key_table": table}, of=[hidden])


def vits(window, length, padded=False):
    module = seeded(model("vits").VitsAttention(config(window_size=window, use_bias=True)))
    passing(module.out_proj)
    hidden = normal(2, length, WIDTH)
    call, mask = hidden_keys(length, padded)
    out = heads_of(module(hidden, attention_mask=mask.expand(-1, -1, length, -1))[0])
    made = projected(hidden, module.q_proj, module.k_proj, module.v_proj)
    tables = {"emb_rel_k": module.emb_rel_k, "emb_rel_v": module.emb_rel_v}
    options = {"window_size": window, "head_dim": DIM}
    return Peer("vits", options, made, out, tables, {}, call, [hidden])


def conformer(length, padded=False):
    hf = model("wav2vec2_conformer")
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_dropout": 0.0}
    own = hf.Wav2Vec2ConformerConfig(
        **sizes, position_embeddings_type="relative", max_source_positions=64
    )
    own._attn_implementation = "eager"
    module = seeded(hf.Wav2Vec2ConformerSelfAttention(own))
    passing(module.linear_out)
    hidden = normal(2, length, WIDTH)
    waves = hf.Wav2Vec2ConformerRelPositionalEmbedding(own)(hidden).to(hidden.dtype)
    call, mask = hidden_keys(length, padded)
    out = heads_of(module(hidden, mask, relative_position_embeddings=waves)[0])
    made = projected(hidden, module.linear_q, module.linear_k, module.linear_v)
    named = {
        "linear_pos.weight": module.linear_pos.weight,
        "pos_bias_u": module.pos_bias_u,
        "pos_bias_v": module.pos_bias_v,
    }
    options = {"heads": HEADS, "head_dim": DIM}
    return Peer("conformer", options, made, out, named, {}, call, [hidden])


def inkling(queries, keys, extent):
    module = seeded(model("inkling").InklingRelativeLogits(3, extent))
    c = normal(2, queries, HEADS, 3, seed=5)
    at = torch.arange(keys)
    bias = module(c, at[keys - queries :], at)
    call = {"is_causal": True, "q_offset": keys - queries}
    options = {"rank": 3, "extent": extent}
    peer = of_bias("inkling", options, queries, keys, bias, {"proj": module.proj}, **call)
    peer.inputs, peer.leaves = {"c": c.transpose(1, 2)}, [*peer.leaves, c]
    return peer


def prophetnet(length):
    hf = model("prophetnet")
    sizes = {"num_buckets": 8, "relative_max_distance": 20, "num_decoder_attention_heads": HEADS}
    own = hf.ProphetNetConfig(hidden_size=WIDTH, **sizes)
    module = seeded(hf.ProphetNetNgramSelfAttention(own))
    hidden, at = normal(2, length, WIDTH), torch.arange(1, length + 1)[None]
    index, _ = hf.compute_all_stream_relative_buckets(8, 20, at)
    weights = torch.zeros(2, HEADS, length, length, dtype=hidden.dtype)
    bias = module.get_main_relative_pos_embeddings(hidden, weights, at, index.repeat(2, 1, 1))
    options = {"buckets": 8, "max_distance": 20}
    peer = of_bias("prophetnet", options, length, length, bias, {}, is_causal=True)
    numbers = module.relative_pos_embeddings(hidden).unflatten(-1, (8, HEADS)).permute(0, 3, 1, 2)
    peer.inputs, peer.leaves = {"bias": numbers}, [*peer.leaves, hidden]
    return peer


def wavlm(length):
    module = seeded(model("wavlm").WavLMAttention(WIDTH, HEADS, num_buckets=16, max_distance=20))
    passing(module.out_proj)
    hidden = normal(2, length, WIDTH)
    out = heads_of(module(hidden)[0])
    gates = module.gru_rel_pos_linear(heads_of(hidden)).unflatten(-1, (2, 4)).sum(-1).sigmoid()
    a, b = gates.chunk(2, -1)
    gate = a * (b * module.gru_rel_pos_const - 1.0) + 2.0
    weight = module.rel_attn_embed.weight
    made = projected(hidden, module.q_proj, module.k_proj, module.v_proj)
    options = {"heads": HEADS, "buckets": 16, "max_distance": 20}
    named = {"rel_attn_embed.weight": weight}
    return Peer("wavlm", options, made, out, named, {"gate": gate}, {}, [hidden])


def swin_v2(window):
    hf = model("swinv2")
    own = hf.Swinv2Config(attention_probs_dropout_prob=0.0, qkv_bias=True)
    module = seeded(hf.Swinv2SelfAttention(own, WIDTH, HEADS, window, [0, 0]))
    tokens = window[0] * window[1]
    hidden = normal(2, tokens, WIDTH)
    out = heads_of(module(hidden)[0])
    q, k, v = projected(hidden, module.query, module.key, module.value)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    q = q * torch.clamp(module.logit_scale, max=math.log(1.0 / 0.01)).exp()
    names = ("0.weight", "0.bias", "2.weight")
    network = module.continuous_position_bias_mlp
    named = {f"continuous_position_bias_mlp.{n}": network.get_parameter(n) for n in names}
    options = {"heads": HEADS, "window": list(window), "hidden": 512}
    return Peer("swin_v2", options, [q, k, v], out, named, {}, {"scale": 1.0}, [hidden])


def t5(queries, keys, bidirectional, padded=False):
    hf = model("t5")
    own = hf.T5Config(
        d_model=WIDTH, d_kv=DIM, num_heads=HEADS, dropout_rate=0.0, is_decoder=not bidirectional
    )
    module = seeded(hf.T5Attention(own, has_relative_attention_bias=True, layer_idx=0))
    bias = module.compute_bias(queries, keys, past_seen_tokens=keys - queries)
    weight = module.relative_attention_bias.weight
    options = {"heads": HEADS, "bidirectional": bidirectional}
    named = {"relative_attention_bias.weight": weight}
    call = {"is_causal": not bidirectional, "q_offset": keys - queries}
    return of_bias("t5", options, queries, keys, bias, named, padded, **call)


def bloom(length, padded=False):
    seen = torch.ones(2, length)  # where it is 0, BLOOM does not count, not even amid a row
    bias = model("bloom").build_alibi_tensor(seen, HEADS, Drawing.dtype).unflatten(0, (2, HEADS))
    return of_bias("alibi", {"heads": HEADS}, length, length, bias, {}, padded, is_causal=True)


# Models that transformers 5 no longer has, by transformers 4.57.6.


def bert(length, kind, padded=False):
    positions = 64
    own = config(max_position_embeddings=positions, is_decoder=False)
    module = seeded(model("bert").BertSelfAttention(own, position_embedding_type=kind))
    hidden = normal(2, length, WIDTH)
    call, mask = hidden_keys(length, padded)
    out = heads_of(module(hidden, mask)[0])
    made = projected(hidden, module.query, module.key, module.value)
    named = {"distance_embedding.weight": module.distance_embedding.weight}
    options = {"positions": positions, "head_dim": DIM, "kind": kind}
    return Peer("relative_key", options, made, out, named, {}, call, [hidden])


def transformer_xl(queries, keys, clamp_len=None, padded=False):
    from transformers.models.deprecated.transfo_xl import modeling_transfo_xl as hf

    module = seeded(hf.RelPartialLearnableMultiHeadAttn(HEADS, WIDTH, DIM, 0.0))
    kept = []  # what attention gives, before its projection, the sum with the input and a norm
    module.o_net.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    hidden = normal(keys, 2, WIDTH)
    memory, new = hidden.split([keys - queries, queries])
    back = torch.arange(keys - 1, -1, -1.0, dtype=hidden.dtype).clamp(max=clamp_len or keys)
    waves = hf.PositionalEmbedding(WIDTH).to(hidden.dtype)(back)
    mask = torch.ones(queries, keys).triu(keys - queries + 1)[:, :, None]
    call = {"is_causal": True, "q_offset": keys - queries}
    if padded:
        call["key_padding_mask"] = padding(keys)
        mask = torch.maximum(mask, padding(keys).T[None].to(mask.dtype))
    module(new, waves, mask, mems=memory)
    out = heads_of(kept[0].transpose(0, 1))
    q, k, v = (heads_of(x) for x in module.qkv_net(hidden).transpose(0, 1).chunk(3, -1))
    named = {"r_net.weight": module.r_net.weight}
    named |= {n: getattr(module, n) for n in ("r_w_bias", "r_r_bias")}
    options = {"heads": HEADS, "head_dim": DIM, "width": WIDTH, "clamp_len": clamp_len}
    made = [q[:, :, keys - queries :], k, v]
    return Peer("transformer_xl", options, made, out, named, {}, call, [hidden])


berts = partial(of, "relative_key", "BertSelfAttention", bert, 50, old=True)
xls = partial(of, "transformer_xl", "RelPartialLearnableMultiHeadAttn", transformer_xl, old=True)
conformers = partial(of, "conformer", "Wav2Vec2ConformerSelfAttention", conformer)
phi4 = partial(of, "bias_rpe", "Phi4MultimodalAudioRelativeAttentionBias", phi4_audio)

PEERS = {
    "BEiT 5 x 5": of("beit", "BeitRelativePositionBias", beit, (5, 5)),
    "BEiT 6 x 6": of("beit", "BeitRelativePositionBias", beit, (6, 6)),
    "LeViT": of("levit", "LevitAttention", levit, 6),
    "LeViT, subsampled": of("levit", "LevitAttentionSubsample", levit_subsample, 11, 2),
    "Phi-4 audio": phi4(False),
    "Phi-4 audio, symmetric": phi4(True),
    "w2v-BERT 2.0": of("shaw", "Wav2Vec2BertSelfAttention", w2v_bert, 40),
    "w2v-BERT 2.0, padded": of("shaw", "Wav2Vec2BertSelfAttention", w2v_bert, 40, padded=True),
    "SpeechT5": of("shaw", "SpeechT5Attention", speecht5),
    "Granite Speech": of("shaw", "GraniteSpeechConformerAttention", granite),
    "VITS": of("vits", "VitsAttention", vits, 4, 40),
    "VITS, short": of("vits", "VitsAttention", vits, 4, 3),
    "VITS, padded": of("vits", "VitsAttention", vits, 4, 40, padded=True),
    "Wav2Vec2-Conformer": conformers(40),
    "Wav2Vec2-Conformer, padded": conformers(40, padded=True),
    "Inkling": of("inkling", "InklingRelativeLogits", inkling, 40, 40, 8),
    "Inkling with a cache": of("inkling", "InklingRelativeLogits", inkling, 33, 65, 12),
    "ProphetNet": of("prophetnet", "ProphetNetNgramSelfAttention", prophetnet, 33),
    "WavLM": of("wavlm", "WavLMAttention", wavlm, 40),
    "Swin V2 7 x 7": of("swin_v2", "Swinv2SelfAttention", swin_v2, (7, 7)),
    "T5, encoder": of("t5", "T5Attention", t5, 60, 60, True),
    "T5, decoder": of("t5", "T5Attention", t5, 60, 60, False),
    "T5, decoder with a cache": of("t5", "T5Attention", t5, 33, 150, False),
    "T5, padded": of("t5", "T5Attention", t5, 60, 60, True, padded=True),
    "BLOOM": of("alibi", "build_alibi_tensor", bloom, 60),
    "BLOOM, padded": of("alibi", "build_alibi_tensor", bloom, 60, padded=True),
    "BERT, keys": berts("relative_key"),
    "BERT, keys and queries": berts("relative_key_query"),
    "BERT, padded": berts("relative_key_query", padded=True),
    "Transformer-XL 4.57.6": xls(40, 40),
    "Transformer-XL 4.57.6 with memory": xls(33, 65),
    "Transformer-XL 4.57.6, clamped": xls(33, 65, 40),
    "Transformer-XL 4.57.6, padded": xls(40, 40, padded=True),
}
