"""The last two notebooks: scores with tables and skews, rotations, Hugging Face's Llama, ALiBi.

docs/notebooks.md lists the cells. The last one's attention module is in test_mha.py.
"""

import math

import pytest
import relpos
import tomllib
import torch
from torch import nn
from transformers.models.llama import modeling_llama

from tests import ROOT
from tests.support import notebook_prints as prints
from tests.support.near import close, within
from tests.support.notebook_prints import is_printed
from tests.support.peer_modes import Float32Angles, Float64

pytestmark = pytest.mark.peers

# The fourth notebook: the scores of Shaw and of the Music Transformer.


def fourth(spread=1.0):
    torch.manual_seed(0)
    embedding = nn.Embedding(15, 512).double()
    x = torch.randn(12, 512).double()
    return embedding, [x @ (spread * torch.randn(512, 512).double()) for _ in range(3)]


def heads(*tensors):
    return [t[None, None] for t in tensors]


def test_fourth_shaw():
    embedding, (q, k, v) = fourth()
    positions = torch.arange(12)
    relative = positions.unsqueeze(-1) - positions.unsqueeze(-2)
    rows = embedding((relative.clamp(-7, 7) + 7).view(-1)).view(12, 12, 512)
    relative_scores = torch.matmul(q.unsqueeze(1), rows.permute(0, 2, 1)).squeeze()
    weights = torch.softmax((q @ k.T + relative_scores) / math.sqrt(512), dim=-1)

    position = relpos.Shaw(7, 512, values=False, distance="query-key").double()
    with torch.no_grad():
        position.key_table.copy_(embedding.weight)
    steps = dict(position.steps(12, 12))
    assert is_printed(steps["distance_mat"], prints.FOURTH_RELATIVE)
    assert is_printed(steps["distance_mat_clipped"], prints.FOURTH_CLIPPED)
    assert torch.equal(position.dense(12, 12), rows)
    out, got = relpos.attention(*heads(q, k, v), position=position, return_weights=True)
    close([got[0, 0], out[0, 0]], [weights, weights @ v])


def skewed(embedding, q):
    q_er = q @ embedding(torch.arange(12)).T
    return q_er, nn.functional.pad(q_er, (1, 0)).view(13, 12)[-12:, :]


def test_fourth_skew_holds_other_rows_above_the_diagonal():
    embedding, (q, _, _) = fourth()
    q_er, s_rel = skewed(embedding, q)
    assert torch.equal(relpos.skew(q_er), s_rel)
    for i in range(12):
        for j in range(12):
            above = q_er[i + 1, j - i - 2] if j >= i + 2 else 0.0
            assert s_rel[i, j] == (q_er[i, 11 + j - i] if j <= i else above), (i, j)


def music(embedding):
    """The notebook's Er: rows 0 to 11 of the table that Shaw's part used with 15."""
    position = relpos.MusicTransformer(12, 512).to(embedding.weight.dtype)
    with torch.no_grad():
        position.Er.copy_(embedding.weight[:12])
    return position


def test_fourth_music_transformer_with_the_missing_mask():
    embedding, (q, k, v) = fourth(spread=0.05)
    _, s_rel = skewed(embedding, q)
    future = torch.ones(12, 12, dtype=torch.bool).triu(1)
    scores = ((q @ k.T + s_rel) / math.sqrt(512)).masked_fill(future, -math.inf)
    position = music(embedding)
    q4, k4, v4 = heads(q, k, v)
    close(relpos.scores(q4, k4, position=position, is_causal=True)[0, 0], scores)
    out = relpos.attention(q4, k4, v4, position=position, is_causal=True)
    close(out[0, 0], scores.softmax(-1) @ v)


def test_fourth_music_transformer_as_the_notebook_has_it():
    """Without a mask the wrapped values are attended to; as a dense term they can be repeated."""
    embedding, (q, k, v) = fourth(spread=0.05)
    _, s_rel = skewed(embedding, q)
    notebook = torch.softmax((q @ k.T + s_rel) / math.sqrt(512), dim=-1) @ v
    repeated = relpos.attention(*heads(q, k, v), attn_mask=s_rel / math.sqrt(512))
    close(repeated[0, 0], notebook)
    right = relpos.attention(*heads(q, k, v), position=music(embedding), is_causal=True)[0, 0]
    close(right[11], notebook[11])  # the last row sees everything
    assert (right[:11] - notebook[:11]).abs().amax(1).min() > 1e-2


# The last notebook: rotations, Hugging Face's, ALiBi.


def test_last_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == ">=3.10"
    assert project["project"]["optional-dependencies"]["torch"] == ["torch>=2.6"]


def precompute_rope_cos_sin(d, max_len, base=10_000):
    theta = base ** (-torch.arange(0, d, 2).float() / d)
    freqs_twice = torch.outer(torch.arange(max_len), theta).repeat_interleave(2, dim=-1)
    return freqs_twice.cos(), freqs_twice.sin()


def rope_rotation(t, cos_theta, sin_theta):
    t_swapped = t.reshape(*t.shape[:-1], -1, 2)[..., [1, 0]]
    t_swapped[..., 0] *= -1
    length = t.size(-2)
    return t * cos_theta[:length] + t_swapped.flatten(start_dim=-2) * sin_theta[:length]


def exact_tables(d, max_len):
    theta = 10_000.0 ** (-torch.arange(0, d, 2).double() / d)
    angles = torch.outer(torch.arange(max_len).double(), theta).repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()


def test_last_rope_tables():
    with Float32Angles():
        notebook = precompute_rope_cos_sin(64, 4096)
    parity = relpos.RoPE(64, layout="interleaved", angle="float32").tables(4096)
    ours = relpos.RoPE(64, layout="interleaved").tables(4096)
    for theirs, single, double, exact in zip(
        notebook, parity, ours, exact_tables(64, 4096), strict=True
    ):
        assert theirs.shape == double.shape == (4096, 64)
        # An angle below 4096 that is one float32 step off: 2^-12.
        within((single - theirs).abs().max(), 2.0**-12)
        torch.testing.assert_close(double.double(), exact, rtol=0, atol=2**-24)
        assert (theirs - exact).abs().max() > 1e-4  # what float32 angles cost


def test_last_rope_rotation():
    torch.manual_seed(42)
    q = torch.randn(2, 8, 800, 64)
    rope = relpos.RoPE(64, layout="interleaved")
    assert rope.rotate(q).shape == q.shape
    exact = rope_rotation(q.double(), *exact_tables(64, 800))
    within((rope.rotate(q) - exact).abs().max(), 2e-6)
    with Float32Angles():
        notebook = rope_rotation(q.double(), *precompute_rope_cos_sin(64, 4096))
    # A float32 angle below 800 is off by up to 2^-14, with two roundings; |q| is below 6.
    within((rope.rotate(q) - notebook).abs().max(), 2e-3)


def llama(head_dim=64, heads=8, length=800):
    config = modeling_llama.LlamaConfig(
        hidden_size=heads * head_dim, num_attention_heads=heads, max_position_embeddings=4096
    )
    with Float32Angles():
        rotary = modeling_llama.LlamaRotaryEmbedding(config)
        return rotary(torch.empty(1).double(), torch.arange(length).unsqueeze(0))


def test_last_hugging_face_tables():
    cos, sin = relpos.RoPE(64, layout="half", angle="float32").tables(800)
    want_cos, want_sin = llama()
    assert want_cos.shape == (1, 800, 64)
    # The same float32 angles; here their cosines and sines are rounded to float32.
    close([cos[None].double(), sin[None].double()], [want_cos, want_sin], 2.0**-24)


def permuted(x, to):
    """rope_permute on the last axis."""
    return relpos.rope_permute(x.movedim(-1, 0), x.shape[-1], to=to).movedim(0, -1)


def test_last_hugging_face_cell():
    """The notebook rotates interleaved pairs, Llama half-split ones; the same Q and K need the
    permutation that the notebook leaves out."""
    torch.manual_seed(42)
    q, k = torch.randn(2, 1, 8, 800, 64, dtype=torch.float64)
    tables = llama()
    ours = [relpos.RoPE(64, layout="interleaved", angle="float32").rotate(x) for x in (q, k)]
    mixed = modeling_llama.apply_rotary_pos_emb(q, k, *tables)
    right = modeling_llama.apply_rotary_pos_emb(permuted(q, "half"), permuted(k, "half"), *tables)
    half = relpos.RoPE(64, layout="half", angle="float32")
    for interleaved, theirs, mixed_up, x in zip(ours, right, mixed, (q, k), strict=True):
        close(permuted(interleaved, "half"), theirs)
        close(interleaved, permuted(theirs, "interleaved"))
        close(half.rotate(permuted(x, "half")), theirs)
        assert (mixed_up - interleaved).abs().max() > 1
    scores = ours[0] @ ours[1].mT
    close(right[0] @ right[1].mT, scores)
    assert (mixed[0] @ mixed[1].mT - scores).abs().max() > 1


def get_alibi_biases(n_heads, seq_len):
    head = torch.arange(1, n_heads + 1, dtype=torch.float32)
    slopes = torch.pow(2, -8 * head / n_heads)
    pos = torch.arange(seq_len)
    return slopes.view(-1, 1, 1) * -(pos[:, None] - pos[None, :]).abs()


def test_last_alibi():
    position = relpos.ALiBi(8, slopes="geometric")
    assert position.dense(4, 4).shape == (8, 4, 4)
    assert is_printed(position.dense(4, 4)[0], prints.LAST_BIASES_0)
    assert is_printed(dict(position.steps(4, 4))["biases"][0], prints.LAST_BIASES_0)
    assert is_printed(relpos.ALiBi(8).dense(4, 4)[0], prints.LAST_BIASES_0)
    for heads_count in (8, 12):
        ours = relpos.ALiBi(heads_count, slopes="geometric").dense(30, 30)
        with Float64():  # slope and bias are rounded here, by 2^-24 each
            close(ours.double(), get_alibi_biases(heads_count, 30), 2.0**-22)
