"""relpos.compose: query temperature, rotated values, PoPE and TUPE, against the papers' formulas
over all pairs and against modules of transformers."""

import math
from functools import partial

import pytest
import relpos
import torch
from relpos import compose

from tests.call.composed import (
    CALLS,
    DOUBLE,
    HK,
    OFFSETS,
    THETA,
    B,
    D,
    H,
    Scene,
    drawn,
    softmax_over,
    spread,
    turned,
)
from tests.support.near import close
from tests.support.peer_modes import Float64

pytestmark = pytest.mark.usefixtures("one_thread")


# Query temperature


def test_published_temperatures():
    positions = torch.tensor([0, 8190, 8191, 131071])
    found = compose.log_temperature(positions, dtype=DOUBLE)
    wanted = torch.tensor([1.0, 1.0, 1.0693147, 1.2833213], dtype=DOUBLE)
    torch.testing.assert_close(found, wanted, rtol=0, atol=5e-8)
    steps = compose.log_temperature(torch.tensor([16383, 16384]), "ministral3", length=16384)
    torch.testing.assert_close(steps, torch.tensor([1.0, 1 + 0.1 * math.log(2)]))
    logs = compose.log_temperature(torch.tensor([10, 99, 9999]), "log_n", length=100)
    torch.testing.assert_close(logs, torch.tensor([1.0, 1.0, 2.0]))
    floored = compose.log_temperature(torch.tensor([-3, 99, 100, 271]), "inkling", length=100)
    torch.testing.assert_close(floored, torch.tensor([1.0, 1.0, 1.0009950331, 1.1000631880]))
    scalable = compose.log_temperature(torch.tensor([-3, 0, 1, 9]), "ssmax")
    torch.testing.assert_close(scalable, torch.tensor([0.0, 0.0, math.log(2), math.log(10)]))


def test_temperature_of_batch_rows_scales_scores():
    q, k, v, _ = drawn(6, 6)
    positions = torch.stack([torch.arange(6), 3 + torch.arange(6)])
    tau = compose.log_temperature(positions, "ssmax", dtype=DOUBLE)
    out = relpos.attention(q * tau[:, None, :, None], k, v, is_causal=True)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D)
    scores = scores * (positions + 1).log().double()[:, None, :, None]
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(out, softmax_over(scores, v, hidden)[0])


# Rotated values


def rotation_matrices(positions, undo=False):
    """[B, L, D, D] of the pairs (p, p + D / 2)."""
    angle = positions.unsqueeze(-1).double() * THETA * (-1 if undo else 1)
    cos, sin = torch.diag_embed(angle.cos()), torch.diag_embed(angle.sin())
    return torch.cat([torch.cat([cos, -sin], -1), torch.cat([sin, cos], -1)], -2)


@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("call", [*OFFSETS, "explicit"])
def test_rotated_values(call, undo):
    explicit = {
        "queries": 7,
        "keys": 9,
        "q_positions": 3 * torch.arange(7) + torch.tensor([[2], [0]]),
        "k_positions": 2 * torch.arange(9).expand(B, 9),
    }
    scene = Scene(**CALLS.get(call, explicit), kv_heads=HK, value_dim=D, is_causal=True)

    def formula(q, k, v):
        scores = scene.scale * turned(q, k, scene.distance)
        values = torch.einsum("bjde,bhje->bhjd", rotation_matrices(scene.pos_k), v)
        out, lse = scene.attended(scores, values)
        if undo:
            out = torch.einsum("bide,bhie->bhid", rotation_matrices(scene.pos_q, undo=True), out)
        return out, lse

    position = relpos.RoPE(D, layout="half")
    scene.agree(partial(compose.rotate_values, position=position, undo=undo), formula)


def test_undone_values_count_by_distance():
    q, k, _, _ = drawn(8, 8)
    v = torch.randn(B, H, 8, D, dtype=DOUBLE)
    position = relpos.RoPE(D, layout="interleaved") + relpos.ALiBi(H)
    near, far = (
        compose.rotate_values(q, k, v, position=position, undo=True, q_offset=at, k_offset=at)
        for at in (0, 1000)
    )
    torch.testing.assert_close(near, far, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("offset", [0, 4, torch.tensor([3, 0])])
def test_values_turn_where_another_part_places_them(offset):
    """In a sum, values turn by the positions by which queries and keys do."""
    q, k, _, _ = drawn(5, 9)
    v = torch.randn(B, H, 9, D, dtype=DOUBLE)
    rotation, bias = relpos.RoPE(D, layout="half"), relpos.SwinBias(H, [3.0])
    sums = rotation + bias.double()
    with torch.no_grad():
        bias.relative_position_bias_table.normal_()

    def by_rows(tokens):
        return tokens // 3 * 5 + tokens % 3  # of a window of 3 x 3

    start = torch.as_tensor(offset).reshape(-1, 1)
    pos_q, pos_k = by_rows(start + torch.arange(5)), by_rows(torch.arange(9))
    at = {"q_positions": pos_q.expand(B, 5).contiguous(), "k_positions": pos_k}
    for undo in (True, False):
        found = compose.rotate_values(q, k, v, position=sums, undo=undo, q_offset=offset)
        wanted = compose.rotate_values(q, k, v, position=sums, undo=undo, **at)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


# PoPE


@pytest.mark.parametrize("call", OFFSETS)
def test_polar(call):
    scene = Scene(**CALLS[call], kv_heads=HK, is_causal=True)
    phase = torch.linspace(-8, 1, HK * D, dtype=DOUBLE).view(HK, D).requires_grad_()
    angle = scene.distance[..., None] * 10000.0 ** (-torch.arange(D, dtype=DOUBLE) / D)

    def formula(q, k, v):
        lengths = torch.einsum("bhid,bhjd->bhijd", *((1 + x.exp()).log() for x in (q, k)))
        shift = phase.clamp(-2 * math.pi, 0).repeat_interleave(H // HK, 0)[:, None, None]
        scores = (lengths * (angle[:, None] - shift).cos()).sum(-1) / math.sqrt(2 * D)
        return scene.attended(scores, v)

    scene.agree(partial(compose.polar, phase=phase), formula, [phase])


def tables_of_key_heads(queries, keys, pairs):
    """terms.RotaryTables of each key head, its tensors, and how rows [B, heads, L, D] turn by them:
    at their first dimensions."""
    angles = [torch.randn(B, HK, n, pairs, dtype=DOUBLE) for n in (queries, keys)]
    given = [f(x).requires_grad_() for x in angles for f in (torch.cos, torch.sin)]

    def turned_by(x, cos, sin):
        cos, sin = (t.repeat_interleave(x.shape[1] // HK, 1) for t in (cos, sin))
        one, two, rest = x.split([pairs, pairs, x.shape[3] - 2 * pairs], -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin, rest], -1)

    return relpos.terms.RotaryTables(*given, layout="half"), given, turned_by


def test_rotary_tables_of_key_heads():
    """PoPE turns all dimensions itself; beside TUPE, the words turn by the tables."""
    scene = Scene(9, 9, kv_heads=HK, is_causal=True)
    term, given, turned_by = tables_of_key_heads(9, 9, D // 2)
    with pytest.raises(ValueError, match="two rotations turn the same dims of a head"):
        compose.polar(scene.q, scene.k, scene.v, position=term, enable_gqa=True)
    of_q = torch.randn(H, 9, 3, dtype=DOUBLE, requires_grad=True)
    of_k = torch.randn(HK, 9, 3, dtype=DOUBLE, requires_grad=True)

    def formula(q, k, v):
        q, k = turned_by(q, *given[:2]), turned_by(k, *given[2:])
        scores = q @ spread(k).mT + of_q @ of_k.repeat_interleave(H // HK, 0).mT
        return scene.attended(scores / math.sqrt(D + 3), v)

    run = partial(compose.tupe, query_position=of_q, key_position=of_k, position=term)
    scene.agree(run, formula, [of_q, of_k, *given])


# TUPE


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("untied", [False, True])
def test_tupe(untied, relative):
    length = 9
    scene = Scene(length, length, kv_heads=HK, padding=True, sinks=True, causal=False)
    of_q = torch.randn(H, length, 3, dtype=DOUBLE, requires_grad=True)
    of_k = torch.randn(B, HK, length, 3, dtype=DOUBLE, requires_grad=True)
    cls = [torch.randn(H, dtype=DOUBLE, requires_grad=True) for _ in range(2)]
    bias = relpos.BiasRPE(H, 3).double()
    torch.nn.init.normal_(bias.biases)

    def formula(q, k, v):
        scale = 1 / math.sqrt(D + 3)
        scores = scale * torch.einsum("bhid,bhjd->bhij", q, k)
        added = scale * torch.einsum("hid,bhjd->bhij", of_q, spread(of_k))
        if relative:
            row = (torch.arange(length)[:, None] - torch.arange(length)).clamp(-2, 2) + 2
            added = added + bias.biases[:, row]
        if untied:
            first = torch.arange(length) == 0
            added = torch.where(first, cls[1][:, None, None], added)
            added = torch.where(first[:, None], cls[0][:, None, None], added)
        return scene.attended(scores + added, v)

    run = partial(
        compose.tupe,
        query_position=of_q,
        key_position=of_k,
        position=bias if relative else None,
        cls=cls if untied else None,
    )
    leaves = [of_q, of_k, *(cls if untied else []), *([bias.biases] if relative else [])]
    scene.agree(run, formula, leaves)


# Modules of transformers, with random weights. All of their arithmetic is in double.


@pytest.fixture
def double():
    with Float64():
        yield


def seeded(cls, config, **more):
    torch.manual_seed(0)
    module = cls(config, **more).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def causal(length, left=None):
    rows = torch.arange(length)
    far = rows[:, None] - rows
    seen = (far >= 0) & ((far <= left) if left is not None else True)
    return torch.zeros(length, length).masked_fill(~seen, -torch.inf)[None, None]


@pytest.mark.peers
@pytest.mark.usefixtures("double")
def test_temperature_of_llama_4():
    from transformers.models.llama4 import modeling_llama4 as theirs

    config = theirs.Llama4TextConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        no_rope_layers=[0],
        num_hidden_layers=1,
        floor_scale=4,
        attn_scale=0.7,
    )
    config._attn_implementation = "eager"
    module = seeded(theirs.Llama4TextAttention, config, layer_idx=0)
    x = torch.randn(2, 19, 32)
    with torch.no_grad():
        wanted = module(x, None, causal(19))[0]
        q, k, v = split(module.q_proj(x), 4), split(module.k_proj(x), 2), split(module.v_proj(x), 2)
        tau = compose.log_temperature(torch.arange(19), "llama4", length=4, beta=0.7)
        out = relpos.attention(q * tau[:, None], k, v, is_causal=True, enable_gqa=True)
        found = module.o_proj(out.transpose(1, 2).flatten(2))
    close(found, wanted)


@pytest.mark.peers
@pytest.mark.usefixtures("double")
def test_temperature_of_ministral_3():
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    positions = torch.tensor([[0, 9, 10, 11, 29, 30, 12345]])
    wanted = get_llama_4_attn_scale(positions, 0.1, 10)[0, 0, :, 0]
    found = compose.log_temperature(positions[0], "ministral3", length=10)
    close(found, wanted)


@pytest.mark.peers
@pytest.mark.usefixtures("double")
def test_rotary_value_of_roformer():
    from transformers.models.roformer import modeling_roformer as theirs

    config = theirs.RoFormerConfig(hidden_size=32, num_attention_heads=4, rotary_value=True)
    module = seeded(theirs.RoFormerSelfAttention, config)
    angles = torch.outer(torch.arange(17.0), 10000.0 ** -(torch.arange(0.0, 8.0, 2.0) / 8))
    table = torch.cat([angles.sin(), angles.cos()], -1)
    made = theirs.RoFormerSinusoidalPositionalEmbedding(17, 8).create_weight()
    close(made, table, 2.0**-24)  # it holds float32 numbers
    x = torch.randn(2, 17, 32)
    with torch.no_grad():
        wanted = module(x, sinusoidal_pos=table[None, None])[0]
        q, k, v = (split(project(x), 4) for project in (module.query, module.key, module.value))
        position = relpos.RoPE(8, layout="interleaved")
        out = compose.rotate_values(q, k, v, position=position, undo=False)
    close(out.transpose(1, 2).flatten(2), wanted)


@pytest.mark.peers
@pytest.mark.usefixtures("double")
def test_rotated_values_of_deepseek_v4():
    """A layer of sliding windows: one vector is key and value, and there are sinks."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs

    config = theirs.DeepseekV4Config(
        hidden_size=32,
        num_attention_heads=4,
        head_dim=16,
        q_lora_rank=12,
        num_hidden_layers=1,
        layer_types=["sliding_attention"],
        sliding_window=5,
        mlp_layer_types=["moe"],
        o_groups=2,
        o_lora_rank=6,
        vocab_size=50,
        partial_rotary_factor=0.5,
        max_position_embeddings=64,
    )
    config._attn_implementation = "eager"
    module = seeded(theirs.DeepseekV4Attention, config, layer_idx=0)
    rotary = theirs.DeepseekV4RotaryEmbedding(config)
    x, positions = torch.randn(2, 14, 32), torch.arange(14)[None]
    with torch.no_grad():
        tables = {"main": rotary(x, positions, layer_type="main")}
        wanted = module(x, tables, positions, causal(14, left=4))[0]
        q = module.q_b_norm(split(module.q_b_proj(module.q_a_norm(module.q_a_proj(x))), 4))
        kv = split(module.kv_norm(module.kv_proj(x)), 1)
        position = relpos.RoPE(16, layout="interleaved", rotary_dim=8, start=8)
        options = {"window": (4, 0), "enable_gqa": True, "sinks": module.sinks}
        out = compose.rotate_values(q, kv, kv, position=position, undo=True, **options)
        groups = out.transpose(1, 2).reshape(2, 14, 2, -1)
        found = module.o_b_proj(module.o_a_proj(groups).flatten(2))
    close(found, wanted)
