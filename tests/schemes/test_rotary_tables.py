"""Rotations by cosines and sines that the caller gives."""

import pytest
import relpos
import torch

from tests.support.promise import work_type
from tests.support.sample import tensors
from tests.support.steps import same_at_any_thread_count, same_bits, step

DIM, LENGTH, BATCH = 8, 70, 2
WIDE = torch.float64


def drawn(dtype=WIDE, **sizes):
    sizes = {"queries": LENGTH, "keys": LENGTH, "head_dim": DIM} | sizes
    return tensors(BATCH, dtype=dtype, **sizes)


def numbers(dtype=WIDE, queries=LENGTH, keys=LENGTH, kv_heads=None, seed=5):
    """q_cos, q_sin, k_cos, k_sin of scattered angles."""
    draw = torch.Generator().manual_seed(seed)
    own = [] if kv_heads is None else [kv_heads]
    angles = [
        9 * torch.rand(BATCH, *own, n, DIM // 2, generator=draw, dtype=WIDE)
        for n in (queries, keys)
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
    positions = [rope, given]
    for heads in (1, 2):
        each = [table[:, None].expand(-1, heads, -1, -1) for table in own]
        position = relpos.RotaryTables(DIM, layout=layout, kv_heads=heads)
        positions += [position(*each, *each), position(*(x.contiguous() for x in (*each, *each)))]
    for position in positions[1:]:
        same_bits(*(stepped(inputs, dout, each, is_causal=True) for each in (position, rope)))


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_same_bits_at_any_thread_count(kv_heads):
    *inputs, dout = drawn(torch.float32, key_heads=2, queries=300, keys=300)
    tables = numbers(torch.float32, 300, 300, kv_heads)
    position = relpos.RotaryTables(DIM, layout="half", kv_heads=kv_heads)(*tables)
    same_at_any_thread_count(lambda: stepped(inputs, dout, position, tables))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_heads_that_are_alike_add_up_their_gradients(kv_heads):
    *inputs, dout = drawn(key_heads=2, queries=9, keys=9)
    shared = numbers(queries=9, keys=9)
    each = [x.detach()[:, None].repeat(1, kv_heads, 1, 1).requires_grad_() for x in shared]
    position = relpos.RotaryTables(DIM, layout="half")
    by_head = relpos.RotaryTables(DIM, layout="half", kv_heads=kv_heads)
    whole = stepped(inputs, dout, position(*shared), shared)
    found = stepped(inputs, dout, by_head(*each), each)
    for n, (one, other) in enumerate(zip(found, whole, strict=True)):
        one = one.sum(1) if n >= len(whole) - 4 else one
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kv_heads", [None, 4])
@pytest.mark.parametrize("queries", [3, LENGTH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, WIDE])
def test_what_a_hidden_token_turns_by_has_no_influence(dtype, queries, kv_heads):
    """NaN in a key that nobody sees, in its tables, and in those of a query that sees nothing."""
    *inputs, dout = drawn(dtype, queries=queries)
    tables = numbers(WIDE if dtype == WIDE else torch.float32, queries, kv_heads=kv_heads)
    hidden = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    hidden[:, 7] = True
    ends = torch.full((queries,), LENGTH)
    ends[2] = 0
    call = {"key_padding_mask": hidden, "key_range": (torch.zeros_like(ends), ends), "q_offset": 0}
    results = []
    for wild in (1.0, torch.nan):
        (q, k, v), held = ([x.detach().clone() for x in each] for each in (inputs, tables))
        k[:, :, 7] *= wild
        for table, token in zip(held, (2, 2, 7, 7), strict=True):
            table[..., token, :] *= wild
        held = [x.requires_grad_() for x in held]
        position = relpos.RotaryTables(DIM, layout="half", kv_heads=kv_heads)(*held)
        results.append(stepped((q, k, v), dout, position, held, **call))
    same_bits(*results)
    dq, dk, dv, *of_tables = results[1][2:]
    for x, token in zip((dq, dk, dv), (2, 7, 7), strict=True):
        assert not x[:, :, token].any()
    for x, token in zip(of_tables, (2, 2, 7, 7), strict=True):
        assert not x[..., token, :].any()
        assert x[..., token - 1, :].all()


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
    by_head = relpos.RotaryTables(DIM, layout="half", kv_heads=2)
    with pytest.raises(ValueError, match=r"q_cos: expected \[2, 2, 70, 4\], got \[2, 70, 4\]"):
        relpos.attention(q, k, v, position=by_head(*tables))
    with pytest.raises(ValueError, match="kv_heads=2"):
        relpos.attention(q, k, v, position=by_head(*numbers(torch.float32, kv_heads=2)))
    both = [position(*tables), relpos.RoPE(DIM, layout="half")]
    with pytest.raises(ValueError, match="two rotations turn the same dims"):
        relpos.attention(q, k, v, position=both)
