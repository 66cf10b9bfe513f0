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
    return relpos.skew(merged)
