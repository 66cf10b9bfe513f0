"""Attention of models that transformers 5 no longer has, by transformers 4.57.6."""

from types import SimpleNamespace

import torch
from published import DIM, HEADS, Origin, Peer, heads_of, normal, padding, seeded
from published_tables import WIDTH, projected


def bert(length, kind, padded=False):
    from transformers.models.bert.modeling_bert import BertSelfAttention

    positions = 64
    config = SimpleNamespace(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=positions,
        is_decoder=False,
    )
    module = seeded(BertSelfAttention(config, position_embedding_type=kind))
    hidden = normal(2, length, WIDTH)
    mask = torch.zeros(2, 1, 1, length, dtype=hidden.dtype)
    call = {}
    if padded:
        call = {"key_padding_mask": padding(length)}
        mask = mask.masked_fill(padding(length)[:, None, None], torch.finfo(hidden.dtype).min)
    out = heads_of(module(hidden, mask)[0])
    given = projected(hidden, module.query, module.key, module.value)
    named = {"distance_embedding.weight": module.distance_embedding.weight}
    options = {"positions": positions, "head_dim": DIM, "kind": kind}
    leaves = [hidden, *named.values()]
    return Peer("relative_key", options, given, out, leaves, named, call=call)


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
    given, leaves = [q[:, :, keys - queries :], k, v], [hidden, *named.values()]
    return Peer("transformer_xl", options, given, out, leaves, named, {}, call)


def old(scheme, name, make, *args, **own):
    return Origin(scheme, name, lambda: make(*args, **own), "transformers", old=True)


PEERS = {
    "BERT, keys": old("relative_key", "BertSelfAttention", bert, 50, "relative_key"),
    "BERT, keys and queries": old(
        "relative_key", "BertSelfAttention", bert, 50, "relative_key_query"
    ),
    "BERT, padded": old(
        "relative_key", "BertSelfAttention", bert, 50, "relative_key_query", padded=True
    ),
    "Transformer-XL 4.57.6": old(
        "transformer_xl", "RelPartialLearnableMultiHeadAttn", transformer_xl, 40, 40
    ),
    "Transformer-XL 4.57.6 with memory": old(
        "transformer_xl", "RelPartialLearnableMultiHeadAttn", transformer_xl, 33, 65
    ),
    "Transformer-XL 4.57.6, clamped": old(
        "transformer_xl", "RelPartialLearnableMultiHeadAttn", transformer_xl, 33, 65, 40
    ),
    "Transformer-XL 4.57.6, padded": old(
        "transformer_xl", "RelPartialLearnableMultiHeadAttn", transformer_xl, 40, 40, padded=True
    ),
}
