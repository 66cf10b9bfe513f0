"""What users write: mypy --strict finds nothing here."""

import relpos
import torch
from torch import Tensor
from typing_extensions import assert_type


def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rope = relpos.RoPE(64, layout="half", rotary_dim=32)
    t5 = relpos.T5Bias(8, 32, bidirectional=False)
    alibi = relpos.ALiBi(8, slopes=[0.5, 0.25], learned=True)
    shaw = relpos.Shaw(max_distance=16, head_dim=64, init="xavier_normal")
    both = assert_type(rope + t5, relpos.Sum)
    assert_type(both.describe(), str)
    assert_type(list(t5.parameters()), list[torch.nn.Parameter])
    assert_type(relpos.schemes()[0].name, str)
    assert_type(relpos.show_config(), dict[str, str])
    out: Tensor = relpos.attention(q, k, v, position=[rope, alibi], is_causal=True, window=(9, 0))
    assert_type(relpos.sdpa(q, k, v, is_causal=True), Tensor)
    lse = torch.zeros(q.shape[:-1])
    merged, joined = relpos.merge([out, out], [lse, lse])
    assert_type((merged, joined), tuple[Tensor, Tensor])
    cache = relpos.KVCache(max_length=100)
    assert_type(cache.append(k, v), tuple[Tensor, Tensor])
    assert_type(cache.end, int)
    layer = relpos.nn.MultiheadAttention(512, 8, position=shaw)
    assert_type(layer, relpos.nn.MultiheadAttention)
    assert_type(t5.dense(4, 4), Tensor)
    assert_type(rope.dense(4, 4)[0], tuple[Tensor, Tensor])
    assert_type(relpos.rope_permute(q, 64, to="half"), Tensor)
    assert_type(relpos.check("t5", q).verdict, str)
    assert_type(relpos.check("t5", {"bias": q})["bias"].verdict, str)
    layer(q, k, v, softcap=30.0)
    assert_type(relpos.scores(q, k, key_padding_mask=lse > 0), Tensor)
    assert_type(relpos.attention(q, k, v, float32_products=True), Tensor)
    assert_type(relpos.attention(q, k, v, return_lse=True), tuple[Tensor, Tensor])
    assert_type(relpos.attention(q, k, v, return_weights=True), tuple[Tensor, Tensor])
    every = relpos.attention(q, k, v, return_lse=True, return_weights=True)
    assert_type(every, tuple[Tensor, Tensor, Tensor])
    assert_type(cache.attend(q, k, v, return_lse=True, sinks=lse), tuple[Tensor, Tensor])
    starts = torch.tensor([0, 2, 4])
    assert_type(relpos.attention_varlen(q, k, v, starts, window=(2, 0)), Tensor)
    packed = relpos.attention_varlen(q, k, v, starts, starts, return_lse=True)
    assert_type(packed, tuple[Tensor, Tensor])
    assert_type(relpos.flash_attn_func(q, k, v, 0.0, None, True), Tensor)
    probs = relpos.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert_type(probs, tuple[Tensor, Tensor, Tensor])
    return relpos.skew(merged)


def across(q: Tensor, k: Tensor, v: Tensor) -> None:
    ring, ulysses = relpos.distributed.ring_attention, relpos.distributed.ulysses_attention
    assert_type(ring(q, k, v, layout="zigzag", is_causal=True), Tensor)
    assert_type(ulysses(q, k, v, scale=0.5, return_lse=True), tuple[Tensor, Tensor])
