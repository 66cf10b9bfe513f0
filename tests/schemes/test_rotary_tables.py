"""Rotations by cosines and sines that the caller gives."""

import pytest
import relpos
import torch

from tests.support.near import close
from tests.support.oracle import gradients, naive
from tests.support.promise import work_type
from tests.support.sample import HEADS, tensors
from tests.support.steps import same_at_any_thread_count, same_bits, step

DIM, LENGTH, BATCH = 8, 70, 2
WIDE = torch.float64


def drawn(dtype=WIDE, **sizes):
    sizes = {"queries": LENGTH, "keys": LENGTH, "head_dim": DIM} | sizes
    return tensors(BATCH, dtype=dtype, **sizes)


def numbers(dtype=WIDE, queries=LENGTH, keys=LENGTH, seed=5):
    """q_cos, q_sin, k_cos, k_sin of scattered angles."""
    draw = torch.Generator().manual_seed(seed)
    angles = [
        9 * torch.rand(BATCH, n, DIM // 2, generator=draw, dtype=WIDE) for n in (queries, keys)
    ]
    found = [table for angle in angles for table in (angle.cos(), angle.sin())]
    return [table.to(dtype).requires_grad_() for table in found]


def stepped(inputs, dout, position, tables=(), **call):
    ones = torch.ones(dout.shape[:3], dtype=work_type(dout.dtype))
    return step(*inputs, dout, position, ones, tables, enable_gqa=True, **call)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_same_bits_as_rope_by_its_own_tables(layout):
    *inputs, dout = drawn(torch.float32, key_heads=2)
    rope = relpos.RoPE(DIM, layout=layout)
    own = [
        table[..., : DIM // 2] if layout == "half" else table[..., ::2]
        for table in rope.tables(LENGTH)
    ]
    own = [table.expand(BATCH, -1, -1) for table in own]
    given = relpos.RotaryTables(DIM, layout=layout)(*own, *own)
    same_bits(*(stepped(inputs, dout, position, is_causal=True) for position in (given, rope)))


@pytest.mark.peers
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_equals_what_models_do(dtype, key_heads):
    """rotate_half of transformers, whose tables hold each number twice."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    *inputs, dout = (x.to(dtype) for x in drawn(key_heads=key_heads, queries=30))
    tables = numbers(dtype, queries=30)
    position = relpos.RotaryTables(DIM, layout="half")(*tables)
    found = stepped(inputs, dout, position, tables, q_offset=0)
    wide = [x.detach().to(WIDE).requires_grad_() for x in (*inputs, *tables)]
    twice = [torch.cat([table, table], -1) for table in wide[3:]]
    q, _ = apply_rotary_pos_emb(wide[0], wide[0], *twice[:2])
    _, k = apply_rotary_pos_emb(wide[1], wide[1], *twice[2:])
    results = naive(q, k, wide[2])[:2]
    wanted = gradients(results, [dout.to(WIDE), torch.ones_like(results[1])], wide)
    found = [x.to(WIDE) for x in found]
    close(found, [*results, *wanted], 1e-12 if dtype == WIDE else 2e-5)  # roundings of ours alone


def test_same_bits_at_any_thread_count():
    *inputs, dout = drawn(torch.float32, key_heads=2, queries=300, keys=300)
    tables = numbers(torch.float32, 300, 300)
    position = relpos.RotaryTables(DIM, layout="half")(*tables)
    same_at_any_thread_count(lambda: stepped(inputs, dout, position, tables))


@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_a_hidden_key_gives_its_tables_nothing(dtype):
    q, k, v, dout = drawn(dtype)
    tables = numbers(dtype)
    k[:, :, 7] = torch.nan
    hidden = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    hidden[:, 7] = True
    position = relpos.RotaryTables(DIM, layout="half")(*tables)
    found = stepped((q, k, v), dout, position, tables, key_padding_mask=hidden)
    assert all(x.isfinite().all() for x in found)
    assert all((x[:, 7] == 0).all() for x in found[-2:])
    assert all((x[:, 8] != 0).all() for x in found[-2:])


@pytest.mark.parametrize("queries", [3, LENGTH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, WIDE])
def test_what_a_hidden_token_turns_by_has_no_influence(dtype, queries):
    """NaN in the tables of a key that nobody sees and of a query that sees nothing."""
    q, k, v, dout = drawn(dtype, queries=queries)
    tables = numbers(WIDE if dtype == WIDE else torch.float32, queries)
    hidden = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    hidden[:, 7] = True
    call = {"key_padding_mask": hidden, "q_offset": 0}
    call["key_range"] = tuple(torch.full((queries,), n) for n in (0, LENGTH))
    call["key_range"][1][2] = 0
    results = []
    for wild in (1.0, torch.nan):
        held = [x.detach().clone() for x in tables]
        for table, token in zip(held, (2, 2, 7, 7), strict=True):
            table[:, token] *= wild
        held = [x.requires_grad_() for x in held]
        position = relpos.RotaryTables(DIM, layout="half")(*held)
        results.append(stepped((q, k, v), dout, position, held, **call))
    same_bits(*results)
    found = results[1]
    for x, token in zip(found[2:5], (2, 7, 7), strict=True):  # dq, dk, dv
        assert not x[:, :, token].any()
    for x, token in zip(found[5:], (2, 2, 7, 7), strict=True):
        assert not x[:, token].any()


def test_errors_say_why():
    position = relpos.RotaryTables(DIM, layout="half")
    q, k, v, _ = drawn(torch.float32)
    tables = numbers(torch.float32)
    with pytest.raises(ValueError, match=r"k_sin: expected \[2, 70, 4\], got \[2, 69, 4\]"):
        relpos.attention(q, k, v, position=position(*tables[:3], tables[3][:, 1:]))
    with pytest.raises(ValueError, match="q_cos"):
        relpos.attention(q, k, v, position=position)
    with pytest.raises(ValueError, match="q_cos"):
        position.tables(4)
    both = [position(*tables), relpos.RoPE(DIM, layout="half")]
    with pytest.raises(ValueError, match="two rotations turn the same dims"):
        relpos.attention(q, k, v, position=both)
