"""Rotations: queries and keys that turn before they are multiplied."""

import pytest
import relpos
import torch
from relpos._call.call import Call as Fields
from relpos.gpu.rotations import strided
from relpos.gpu.rows import chunks
from relpos.gpu.terms.rotation import write_turns

from tests.gpu.cases import (
    PLAIN,
    assert_the_same_bits_twice,
    drawn_of,
    judged,
    number_of,
    on_the_cpu,
)

POSITIONS = [f"rope#{n}" for n in (0, 1, 3, 5, 7)] + [f"mrope#{n}" for n in (1, 3)]
POSITIONS += [f"rope_mixed#{n}" for n in (0, 1, 3)] + [f"rotary_tables#{n}" for n in range(5)]
POSITIONS += [f"{name}#0" for name in ("rope_axial", "rope_dinov3", "rope_video", "rope_dynamic")]
POSITIONS += [f"{name}#1" for name in ("rope_axial", "rope_yarn", "rope_dynamic", "rope_longrope")]
POSITIONS += ["rope#2+t5#3", "rotary_tables#1+attention_sink#1", "rope_mixed#2+bias_rpe#1"]
MIXED = PLAIN | {"position": "rope_mixed#0", "mask": "", "offsets": "both", "queries": 33}
TABLES = PLAIN | {"position": "rotary_tables#0", "mask": "padding", "queries": 33}


@pytest.mark.parametrize("case", drawn_of(POSITIONS, head_dim=[4, 16, 34, 64]), ids=number_of)
def test_a_call_that_turns_keeps_the_promise(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize("name", ["mrope", "rope_mixed", "rotary_tables"])
def test_chunks_of_queries_turn_as_the_whole(name, garbage, monkeypatch):
    """Beside a table of rows, whose calls are computed as several."""
    monkeypatch.setattr(chunks, "LEAST", 16)
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    position = f"{name}#1+music_transformer#0"
    assert not judged(
        PLAIN | {"position": position, "queries": 20, "keys": 33, "mask": "", "offsets": "zero"}
    )


@pytest.mark.parametrize("float32", [False, True])
def test_angles_are_rounded_once(float32):
    """At positions of 32 bits and beyond, by frequencies of which some turn far less than once."""
    at = torch.cat([torch.arange(-40, 40), 10 ** torch.arange(2, 13), -(2 ** torch.arange(20, 53))])
    frequency = torch.tensor([1.0, 3.1, 0.25, 1e-4, 2.0**-40, 0.0], dtype=torch.float64)
    cos, sin = torch.empty(2, 1, 1, len(at), len(frequency)).fill_(torch.nan)
    write_turns[(-(-len(at) // 16), 1)](
        cos=cos,
        sin=sin,
        at=strided(at[None, None, :, None]),
        frequency=strided(frequency[None, None, None]),
        factors=torch.tensor([1.5, 2.0], dtype=torch.float64),
        axes=1,
        length=len(at),
        tokens=len(at),
        tables=1,
        pairs=len(frequency),
        BLOCK=16,
        PAIRS=8,
        FLOAT32=float32,
    )
    angle = at[:, None].double() * (2.0 * frequency)
    if float32:
        angle = (at[:, None].float() * frequency.float()).double()
    for ours, exact in ((cos, 1.5 * angle.cos()), (sin, 1.5 * angle.sin())):
        error = (ours[0, 0].double() - exact).abs()
        assert (error <= 2.0**-24 * exact.abs() + 1.5 * 2.0**-51 * angle.abs() + 1e-15).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_frequencies_that_are_not_finite_give_nan(value):
    mixed = relpos.RoPEMixed(1, 12, grid=2)
    with torch.no_grad():
        mixed.freqs[0, 0, 1] = value
    q, k, v = torch.randn(3, 1, 1, 4, 12)
    assert relpos.attention(q, k, v, position=mixed).isnan().all()


@pytest.mark.parametrize("case", [MIXED, TABLES], ids=["frequencies", "tables"])
def test_two_runs_have_the_same_bits(case):
    assert_the_same_bits_twice(case)


def test_what_launches_and_what_does_not():
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    rope = relpos.RoPE(8, layout="half")

    def launched(call, names):
        before = relpos.gpu.launches()
        call()
        after = relpos.gpu.launches()
        return [after.get(name, 0) - before.get(name, 0) for name in names]

    names = ("write_turns", "turn_rows")
    assert launched(lambda: relpos.attention(q, k, v, position=rope), names) == [1, 2]
    apart = {"position": rope, "q_offset": 3}
    assert launched(lambda: relpos.attention(q, k, v, **apart), names) == [2, 2]
    k.requires_grad_()
    out = relpos.attention(q, k, v, position=rope)
    names = ("turn_rows", "backward_queries", "backward_keys", "sum_angles")
    assert launched(out.sum().backward, names) == [3, 0, 1, 0]
    mixed = relpos.RoPEMixed(2, 8, grid=[1, 5])
    out = relpos.attention(q, k.detach(), v, position=mixed)
    names = (*names, "fold_angles")
    assert launched(out.sum().backward, names) == [2, 1, 1, 2, 1]
    assert not q.requires_grad


POSITIONS_IN_TENSORS = [
    (lambda: relpos.DynamicRoPE(8, layout="half", factor=4.0, max_position_embeddings=16), 1),
    (lambda: relpos.AxialRoPE(8, layout="half", grid=[7, 10]), 1),
    (lambda: relpos.RoPE(8, layout="interleaved"), 10**6),
]


@pytest.mark.parametrize(("make", "far"), POSITIONS_IN_TENSORS, ids=["length", "grid", "far"])
def test_positions_in_tensors_are_those_of_the_cpu(make, far):
    q, k, v, dout = torch.randn(4, 2, 2, 40, 8)
    at = {
        "q_positions": (torch.arange(40) + torch.tensor([[0], [25]])) * far % (69 * far + 1),
        "k_positions": (torch.arange(40) + 5) * far,
    }
    offsets = {"q_offset": torch.tensor([3, 29]) * far, "k_offset": 10 * far}
    for given in (at, offsets) if not isinstance(make(), relpos.AxialRoPE) else (at,):
        options = {"position": make(), **given}
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = relpos.attention(*leaves, **options)
        found = [out, *torch.autograd.grad(out, leaves, dout)]
        for ours, theirs in zip(found, on_the_cpu(q, k, v, dout, **options), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def test_hidden_tokens_may_turn_by_nan():
    """Of tables that are given with a call, and whose gradient is 0 there."""
    turn = relpos.RotaryTables(8, layout="half")
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    tables = [torch.randn(1, 20, 4) for _ in range(4)]
    k[:, :, 15:] = torch.nan
    for table in tables[2:]:
        table[:, 15:] = torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v, *tables)]
    padding = torch.arange(20)[None] >= 15
    out = relpos.attention(q, k, v, position=turn(*tables), key_padding_mask=padding)
    grads = torch.autograd.grad(out.sum(), leaves)
    assert out.isfinite().all()
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[1][:, :, 15:].any()
    assert not grads[5][:, 15:].any()
    assert grads[5][:, :15].any()


def test_packed_sequences_turn_each_by_itself():
    starts = torch.tensor([0, 40, 40, 75])
    q, k, v = torch.randn(3, 75, 2, 8)
    rope = relpos.RoPE(8, layout="half")
    packed = relpos.attention_varlen(q, k, v, starts, position=rope, is_causal=True)
    for first, last in ((0, 40), (40, 75)):
        alone = (x[first:last].transpose(0, 1)[None] for x in (q, k, v))
        out = relpos.attention(*alone, position=rope, is_causal=True)
        torch.testing.assert_close(packed[first:last], out[0].transpose(0, 1))


def test_a_decaying_rotation_is_refused():
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(NotImplementedError, match=r"^position: xpos: its decaying rotation has no"):
        relpos.attention(q, q, q, position=relpos.XPos(8, layout="half"))


def test_the_cpu_has_the_same_numbers_of_a_call():
    """Of a call with no other term, to a few roundings."""
    call = {"position": relpos.RoPE(16, layout="half", rotary_dim=6, start=4), "scale": 1.0}
    q, k, v = torch.randn(3, 1, 2, 70, 16)
    want, lse = torch.empty_like(v), torch.empty(1, 2, 70)
    relpos._core.attention(q, k, v, Fields.of("attention", q, k, call), want, lse, None)
    found = relpos.attention(q, k, v, return_lse=True, **call)
    torch.testing.assert_close(found[0], want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], lse, rtol=2e-6, atol=2e-6)
