"""Biases and tables as modules of transformers compute them, with random weights."""

import math
from types import SimpleNamespace

import torch
from published import DIM, HEADS, Drawing, Origin, Peer, attended, heads_of, normal, padding, seeded

WIDTH = HEADS * DIM


def passing(*linears):
    """Makes square linear maps give what they get."""
    with torch.no_grad():
        for linear in linears:
            linear.weight.copy_(torch.eye(len(linear.weight)))
            if linear.bias is not None:
                linear.bias.zero_()


def of_bias(scheme, options, queries, keys, bias, parameters, padded=False, **call):
    """The peer of a bias [(B,) H, Lq, Lk] that another module computes."""
    hidden = padding(keys) if padded else None
    q = normal(2, HEADS, queries, DIM)
    k, v = (normal(2, HEADS, keys, DIM, seed=n) for n in (1, 2))
    out = attended(q @ k.mT * DIM**-0.5 + bias, v, call.get("is_causal", False), hidden)
    if padded:
        call["key_padding_mask"] = hidden
    leaves = [q, k, v, *parameters.values()]
    return Peer(scheme, options, [q, k, v], out, leaves, parameters, call=call)


def projected(hidden, *linears):
    return [heads_of(linear(hidden)) for linear in linears]


def beit(window):
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    config = SimpleNamespace(
        image_size=(16 * window[0], 16 * window[1]), patch_size=16, num_attention_heads=HEADS
    )
    module = seeded(BeitRelativePositionBias(config))
    tokens = window[0] * window[1] + 1
    table = {"relative_position_bias_table": module.relative_position_bias_table}
    options = {"heads": HEADS, "window": list(window)}
    return of_bias("beit", options, tokens, tokens, module(window), table)


def levit(side):
    from transformers.models.levit.modeling_levit import LevitAttention

    module = seeded(LevitAttention(8, DIM, HEADS, 2, side))
    table = {"attention_biases": module.attention_biases}
    bias, options = module.get_attention_biases("cpu"), {"heads": HEADS, "grid": side}
    return of_bias("levit", options, side * side, side * side, bias, table)


def levit_subsample(side, stride):
    """Queries stand at every second patch."""
    from transformers.models.levit.modeling_levit import LevitAttentionSubsample

    out = (side - 1) // stride + 1
    module = LevitAttentionSubsample(8, 8, DIM, HEADS, 2, stride, side, out)
    module = seeded(module)
    table = {"attention_biases": module.attention_biases}
    patch = torch.arange(side * side)
    ids = patch // side * (2 * side - 1) + patch % side
    kept = ids.view(side, side)[::stride, ::stride].flatten()
    bias, options = module.get_attention_biases("cpu"), {"heads": HEADS, "grid": side}
    call = {"q_positions": kept, "k_positions": ids}
    return of_bias("levit", options, out * out, side * side, bias, table, **call)


def phi4_audio(symmetric):
    from transformers.models.phi4_multimodal import modeling_phi4_multimodal as hf

    reach, length = 36, 60 if not symmetric else 36
    config = SimpleNamespace(
        bias_max_distance=reach, bias_symmetric=symmetric, num_attention_heads=HEADS
    )
    module = seeded(hf.Phi4MultimodalAudioRelativeAttentionBias(config))
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
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as hf
    from transformers.models.wav2vec2_bert.configuration_wav2vec2_bert import Wav2Vec2BertConfig

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_dropout": 0.0}
    reach = {"left_max_position_embeddings": 7, "right_max_position_embeddings": 2}
    config = Wav2Vec2BertConfig(**sizes, **reach, position_embeddings_type="relative_key")
    config._attn_implementation = "eager"
    module = seeded(hf.Wav2Vec2BertSelfAttention(config))
    passing(module.linear_out)
    hidden = normal(2, length, WIDTH)
    mask = torch.zeros(2, 1, 1, length, dtype=hidden.dtype)
    if padded:
        mask = mask.masked_fill(padding(length)[:, None, None], torch.finfo(hidden.dtype).min)
    out = heads_of(module(hidden, attention_mask=mask)[0])
    table = module.distance_embedding.weight
    given = projected(hidden, module.linear_q, module.linear_k, module.linear_v)
    options = {"max_distance": 7, "head_dim": DIM, "left": 7, "right": 2, "values": False}
    call = {"key_padding_mask": padding(length)} if padded else {}
    return Peer("shaw", options, given, out, [hidden, table], {"key_table": table}, call=call)


def speecht5():
    """Its table lacks the row of the farthest past."""
    from transformers.models.speecht5 import modeling_speecht5 as hf

    encoding = seeded(hf.SpeechT5RelativePositionalEncoding(DIM, 5), seed=2)
    module = seeded(hf.SpeechT5Attention(WIDTH, HEADS))
    passing(module.out_proj)
    hidden = normal(2, 40, WIDTH)
    out = heads_of(module(hidden, position_bias=encoding(hidden))[0])
    table = encoding.pe_k.weight
    given = projected(hidden, module.q_proj, module.k_proj, module.v_proj)
    options = {"max_distance": 5, "left": 4, "head_dim": DIM, "values": False}
    options |= {"distance": "query-key"}
    return Peer("shaw", options, given, out, [hidden, table], {"key_table": table})


def granite():
    """Blocks of `context` frames, and a table with rows that no distance reads."""
    from transformers.models.granite_speech import modeling_granite_speech as hf

    context, most = 40, 50
    config = SimpleNamespace(
        dim_head=DIM,
        num_heads=HEADS,
        max_pos_emb=most,
        context_size=context,
        hidden_dim=WIDTH,
        dropout=0.0,
    )
    module = seeded(hf.GraniteSpeechConformerAttention(config))
    passing(module.to_out)
    at = torch.arange(context)
    distances = (at[:, None] - at[None, :]).clamp(-context, context) + most
    hidden = normal(2, context, WIDTH)
    out = heads_of(module(hidden, distances))
    normed = module.pre_norm(hidden)
    k, v = module.to_kv(normed).chunk(2, -1)
    given = [heads_of(x) for x in (module.to_q(normed), k, v)]
    table = module.rel_pos_emb.weight
    options = {"max_distance": context, "rows": 2 * most + 1, "head_dim": DIM, "values": False}
    options |= {"distance": "query-key"}
    return Peer("shaw", options, given, out, [hidden, table], {"key_table": table})


def vits(window, length, padded=False):
    from transformers.models.vits.modeling_vits import VitsAttention

    config = SimpleNamespace(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_dropout=0.0,
        window_size=window,
        use_bias=True,
    )
    module = seeded(VitsAttention(config))
    passing(module.out_proj)
    hidden = normal(2, length, WIDTH)
    mask = torch.zeros(2, 1, length, length, dtype=hidden.dtype)
    if padded:
        mask = mask.masked_fill(padding(length)[:, None, None], -torch.inf)
    out = heads_of(module(hidden, attention_mask=mask)[0])
    given = projected(hidden, module.q_proj, module.k_proj, module.v_proj)
    tables = {"emb_rel_k": module.emb_rel_k, "emb_rel_v": module.emb_rel_v}
    options = {"window_size": window, "head_dim": DIM}
    call = {"key_padding_mask": padding(length)} if padded else {}
    return Peer("vits", options, given, out, [hidden, *tables.values()], tables, call=call)


def conformer(length, padded=False):
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as hf
    from transformers.models.wav2vec2_conformer.configuration_wav2vec2_conformer import (
        Wav2Vec2ConformerConfig,
    )

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_dropout": 0.0}
    config = Wav2Vec2ConformerConfig(
        **sizes, position_embeddings_type="relative", max_source_positions=64
    )
    config._attn_implementation = "eager"
    module = seeded(hf.Wav2Vec2ConformerSelfAttention(config))
    passing(module.linear_out)
    hidden = normal(2, length, WIDTH)
    waves = hf.Wav2Vec2ConformerRelPositionalEmbedding(config)(hidden).to(hidden.dtype)
    mask = torch.zeros(2, 1, 1, length, dtype=hidden.dtype)
    if padded:
        mask = mask.masked_fill(padding(length)[:, None, None], torch.finfo(hidden.dtype).min)
    out = heads_of(module(hidden, mask, relative_position_embeddings=waves)[0])
    given = projected(hidden, module.linear_q, module.linear_k, module.linear_v)
    named = {
        "linear_pos.weight": module.linear_pos.weight,
        "pos_bias_u": module.pos_bias_u,
        "pos_bias_v": module.pos_bias_v,
    }
    leaves = [hidden, *named.values()]
    options = {"heads": HEADS, "head_dim": DIM}
    call = {"key_padding_mask": padding(length)} if padded else {}
    return Peer("conformer", options, given, out, leaves, named, call=call)


def inkling(queries, keys, extent):
    from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

    module = seeded(InklingRelativeLogits(3, extent))
    c = normal(2, queries, HEADS, 3, seed=5)
    at = torch.arange(keys)
    bias = module(c, at[keys - queries :], at)
    call = {"is_causal": True, "q_offset": keys - queries}
    options = {"rank": 3, "extent": extent}
    peer = of_bias("inkling", options, queries, keys, bias, {"proj": module.proj}, **call)
    peer.inputs, peer.leaves = {"c": c.transpose(1, 2)}, [*peer.leaves, c]
    return peer


def prophetnet(length):
    from transformers.models.prophetnet import modeling_prophetnet as hf
    from transformers.models.prophetnet.configuration_prophetnet import ProphetNetConfig

    own = {"num_buckets": 8, "relative_max_distance": 20, "num_decoder_attention_heads": HEADS}
    config = ProphetNetConfig(hidden_size=WIDTH, **own)
    module = seeded(hf.ProphetNetNgramSelfAttention(config))
    hidden, at = normal(2, length, WIDTH), torch.arange(1, length + 1)[None]
    index, _ = hf.compute_all_stream_relative_buckets(8, 20, at)
    weights = torch.zeros(2, HEADS, length, length, dtype=hidden.dtype)
    bias = module.get_main_relative_pos_embeddings(hidden, weights, at, index.repeat(2, 1, 1))
    options = {"buckets": 8, "max_distance": 20}
    peer = of_bias("prophetnet", options, length, length, bias, {}, is_causal=True)
    given = module.relative_pos_embeddings(hidden).unflatten(-1, (8, HEADS)).permute(0, 3, 1, 2)
    peer.inputs, peer.leaves = {"bias": given}, [*peer.leaves, hidden]
    return peer


def wavlm(length):
    from transformers.models.wavlm.modeling_wavlm import WavLMAttention

    module = seeded(WavLMAttention(WIDTH, HEADS, num_buckets=16, max_distance=20))
    passing(module.out_proj)
    hidden = normal(2, length, WIDTH)
    out = heads_of(module(hidden)[0])
    gates = module.gru_rel_pos_linear(heads_of(hidden)).unflatten(-1, (2, 4)).sum(-1).sigmoid()
    a, b = gates.chunk(2, -1)
    gate = a * (b * module.gru_rel_pos_const - 1.0) + 2.0
    weight = module.rel_attn_embed.weight
    given = projected(hidden, module.q_proj, module.k_proj, module.v_proj)
    options = {"heads": HEADS, "buckets": 16, "max_distance": 20}
    named = {"rel_attn_embed.weight": weight}
    return Peer("wavlm", options, given, out, [hidden, weight], named, {"gate": gate})


def swin_v2(window):
    from transformers.models.swinv2 import modeling_swinv2 as hf
    from transformers.models.swinv2.configuration_swinv2 import Swinv2Config

    config = Swinv2Config(attention_probs_dropout_prob=0.0, qkv_bias=True)
    module = seeded(hf.Swinv2SelfAttention(config, WIDTH, HEADS, window, [0, 0]))
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
    leaves, call = [hidden, *named.values()], {"scale": 1.0}
    return Peer("swin_v2", options, [q, k, v], out, leaves, named, {}, call)


def t5(queries, keys, bidirectional, padded=False):
    from transformers.models.t5.configuration_t5 import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=WIDTH, d_kv=DIM, num_heads=HEADS, dropout_rate=0.0, is_decoder=not bidirectional
    )
    module = seeded(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    bias = module.compute_bias(queries, keys, past_seen_tokens=keys - queries)
    weight = module.relative_attention_bias.weight
    options = {"heads": HEADS, "bidirectional": bidirectional}
    named = {"relative_attention_bias.weight": weight}
    call = {"is_causal": not bidirectional, "q_offset": keys - queries}
    return of_bias("t5", options, queries, keys, bias, named, padded, **call)


def bloom(length, padded=False):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    seen = torch.ones(2, length)  # where it is 0, BLOOM does not count, not even amid a row
    bias = build_alibi_tensor(seen, HEADS, Drawing.dtype).unflatten(0, (2, HEADS))
    return of_bias("alibi", {"heads": HEADS}, length, length, bias, {}, padded, is_causal=True)


def of(scheme, name, make, *args, **own):
    return Origin(scheme, name, lambda: make(*args, **own))


PEERS = {
    "T5, encoder": of("t5", "T5Attention", t5, 60, 60, True),
    "T5, decoder": of("t5", "T5Attention", t5, 60, 60, False),
    "T5, decoder with a cache": of("t5", "T5Attention", t5, 33, 150, False),
    "T5, padded": of("t5", "T5Attention", t5, 60, 60, True, padded=True),
    "BLOOM": of("alibi", "build_alibi_tensor", bloom, 60),
    "BLOOM, padded": of("alibi", "build_alibi_tensor", bloom, 60, padded=True),
    "BEiT 5 x 5": of("beit", "BeitRelativePositionBias", beit, (5, 5)),
    "BEiT 6 x 6": of("beit", "BeitRelativePositionBias", beit, (6, 6)),
    "LeViT": of("levit", "LevitAttention", levit, 6),
    "LeViT, subsampled": of("levit", "LevitAttentionSubsample", levit_subsample, 11, 2),
    "Swin V2 7 x 7": of("swin_v2", "Swinv2SelfAttention", swin_v2, (7, 7)),
    "Phi-4 audio": of("bias_rpe", "Phi4MultimodalAudioRelativeAttentionBias", phi4_audio, False),
    "Phi-4 audio, symmetric": of(
        "bias_rpe", "Phi4MultimodalAudioRelativeAttentionBias", phi4_audio, True
    ),
    "w2v-BERT 2.0": of("shaw", "Wav2Vec2BertSelfAttention", w2v_bert, 40),
    "w2v-BERT 2.0, padded": of("shaw", "Wav2Vec2BertSelfAttention", w2v_bert, 40, padded=True),
    "SpeechT5": of("shaw", "SpeechT5Attention", speecht5),
    "Granite Speech": of("shaw", "GraniteSpeechConformerAttention", granite),
    "VITS": of("vits", "VitsAttention", vits, 4, 40),
    "VITS, short": of("vits", "VitsAttention", vits, 4, 3),
    "VITS, padded": of("vits", "VitsAttention", vits, 4, 40, padded=True),
    "Wav2Vec2-Conformer": of("conformer", "Wav2Vec2ConformerSelfAttention", conformer, 40),
    "Wav2Vec2-Conformer, padded": of(
        "conformer", "Wav2Vec2ConformerSelfAttention", conformer, 40, padded=True
    ),
    "Inkling": of("inkling", "InklingRelativeLogits", inkling, 40, 40, 8),
    "Inkling with a cache": of("inkling", "InklingRelativeLogits", inkling, 33, 65, 12),
    "ProphetNet": of("prophetnet", "ProphetNetNgramSelfAttention", prophetnet, 33),
    "WavLM": of("wavlm", "WavLMAttention", wavlm, 40),
}
