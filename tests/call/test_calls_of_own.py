"""Positions of one's own in packed calls, caches, scores, merged calls and compositions, against
plain torch at every pair."""

import pytest
import relpos
import torch
from relpos import compose

from tests.call.composed import chunked, grouped, rectified
from tests.support.own_positions import (
    DIM,
    HEADS,
    MADE,
    Gated,
    Kerple,
    KeyGated,
    Picture,
    Shaw,
    distances,
    drawn,
    given,
    gradients,
    numbers,
    plain,
)

pytestmark = pytest.mark.usefixtures("one_thread")

DOUBLE = {"atol": 1e-10, "rtol": 1e-10}


def agree(got, want, leaves):
    """(out, lse) of both, and the gradients of a loss of them."""
    seeds = [numbers(90 + n, *x.shape) for n, x in enumerate(got)]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **DOUBLE)
    losses = (sum((x * s).sum() for x, s in zip(both, seeds, strict=True)) for both in (got, want))
    for one, other in zip(*(gradients(loss, leaves) for loss in losses), strict=True):
        torch.testing.assert_close(one, other, **DOUBLE)


def leaves_of(position, *tensors):
    return [*(x for x in tensors if x.is_floating_point()), *position.parameters()]


def tensors(queries, keys, key_heads=HEADS, batch=2):
    """query, key, value, hidden."""
    shapes = [(HEADS, queries, DIM), (key_heads, keys, DIM), (key_heads, keys, DIM), (queries, 16)]
    return [numbers(n, batch, *shape).requires_grad_() for n, shape in enumerate(shapes)]


BOUNDS = {
    "all": ({}, lambda at: at < 99),
    "causal": ({"is_causal": True}, lambda at: at <= 0),
    "window": ({"window": (3, 1)}, lambda at: (at >= -3) & (at <= 1)),
}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", MADE)
def test_packed_sequences(name, bounds):
    options, visible = BOUNDS[bounds]
    q_lengths, k_lengths = [5, 0, 9, 1], [7, 2, 9, 1]
    position = drawn(MADE[name])
    q, k, v, hidden = tensors(sum(q_lengths), sum(k_lengths), key_heads=2, batch=1)
    starts_q, starts_k = (torch.tensor([0, *x]).cumsum(0) for x in (q_lengths, k_lengths))
    offsets = starts_k.diff() - starts_q.diff()
    out, lse = relpos.attention_varlen(
        *(x[0].transpose(0, 1) for x in (q, k, v)),
        starts_q,
        starts_k,
        position=given(position, hidden),
        q_offset=offsets,
        enable_gqa=True,
        return_lse=True,
        **options,
    )
    found = []
    for n, (lq, lk) in enumerate(zip(q_lengths, k_lengths, strict=True)):
        rows, columns = (slice(*x[n : n + 2].tolist()) for x in (starts_q, starts_k))
        at = distances(lq, lk, int(offsets[n]))
        own = q[:, :, rows], k[:, :, columns], v[:, :, columns]
        found.append(plain(position, *own, at, visible(at), hidden=hidden[:, rows]))
    want = [torch.cat(x, 2)[0] for x in zip(*found, strict=True)]
    agree((out.transpose(0, 1), lse), want, leaves_of(position, q, k, v, hidden))


def test_packed_sequences_ask_for_no_later_distances():
    """A method that is defined for the past alone, in a causal call."""

    class Past(relpos.Position):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(HEADS, 1, dtype=torch.float64))

        def bias(self, distance):
            assert int(distance.max()) <= 0
            return self.scale * torch.sqrt(-distance.to(torch.float64) + 1)

    position = Past()
    q, k, v, _ = tensors(9, 9, batch=1)
    packed = [x[0].transpose(0, 1) for x in (q, k, v)]
    starts = torch.tensor([0, 4, 9])
    relpos.attention_varlen(*packed, starts, position=position, is_causal=True).sum().backward()
    assert position.scale.grad.isfinite().all()


def test_packed_grids_are_refused():
    q, k, v, _ = (x[0].transpose(0, 1) for x in tensors(24, 24, batch=1))
    starts = torch.tensor([0, 12, 24])
    with pytest.raises(ValueError, match=r"Picture has a grid.*as a batch row"):
        relpos.attention_varlen(q, k, v, starts, position=drawn(Picture))


@pytest.mark.parametrize("name", MADE)
def test_a_cache_in_chunks(name):
    position, cache = drawn(MADE[name]), relpos.KVCache()
    q, k, v, hidden = tensors(23, 23)
    at = distances(23, 23)
    want = plain(position, q, k, v, at, at <= 0, hidden=hidden)
    parts, start = [], 0
    for count in (1, 5, 1, 16):
        own = slice(start, start + count)
        called = given(position, hidden[:, own])
        step = [x[:, :, own] for x in (q, k, v)]
        parts.append(cache.attend(*step, position=called, return_lse=True))
        start += count
    got = [torch.cat(x, 2) for x in zip(*parts, strict=True)]
    agree(got, want, leaves_of(position, q, k, v, hidden))


def test_a_cache_that_forgets():
    position, cache = drawn(Kerple), relpos.KVCache(max_length=4)
    q, k, v, _ = tensors(12, 12)
    at = distances(12, 12)
    want, _ = plain(position, q, k, v, at, (at <= 0) & (at >= -4))
    with torch.no_grad():
        for n in range(12):
            step = [x[:, :, n : n + 1] for x in (q, k, v)]
            got = cache.attend(*step, position=position)
            torch.testing.assert_close(got, want[:, :, n : n + 1], **DOUBLE)


@pytest.mark.parametrize("name", ["kerple", "gated", "key_gated"])
def test_scores(name):
    position = drawn(MADE[name])
    q, k, _, hidden = tensors(5, 9)
    got = relpos.scores(q, k, position=given(position, hidden), q_offset=4)
    weights, values = got.softmax(-1), numbers(9, 2, HEADS, 9, DIM)
    out, lse = plain(position, q, k, values, distances(5, 9), hidden=hidden)
    agree((weights @ values, got.logsumexp(-1)), (out, lse), leaves_of(position, q, k, hidden))


@pytest.mark.parametrize("name", MADE)
def test_merged_calls_over_halves_of_the_keys(name):
    position = drawn(MADE[name])
    q, k, v, hidden = tensors(7, 11)
    called = given(position, hidden)
    halves = [
        relpos.attention(
            q, k[:, :, own], v[:, :, own], position=called, q_offset=4, k_offset=own.start,
            return_lse=True,
        )
        for own in (slice(0, 6), slice(6, 11))
    ]  # fmt: skip
    got = relpos.merge(*zip(*halves, strict=True))
    want = plain(position, q, k, v, distances(7, 11, 4), hidden=hidden)
    agree(got, want, leaves_of(position, q, k, v, hidden))


def test_workspace_bytes():
    q, k, v, hidden = (x.detach().float() for x in tensors(64, 64))
    plain = relpos._call.attention.workspace_bytes(q, k, v)
    for make in MADE.values():
        position = given(drawn(make).float(), hidden)
        assert relpos._call.attention.workspace_bytes(q, k, v, position=position) > plain


REMAPS = {
    "self_extend": (compose.self_extend, grouped, {"group_size": 2, "window_size": 4}),
    "rerope": (compose.rerope, rectified, {"window_size": 4}),
    "dual_chunk": (compose.dual_chunk, chunked, {"chunk_size": 6, "local_size": 2}),
}


@pytest.mark.parametrize("make", [Kerple, Gated, KeyGated])
@pytest.mark.parametrize("name", REMAPS)
def test_compositions_that_change_distances(name, make):
    function, rule, sizes = REMAPS[name]
    position = drawn(make)
    q, k, v, hidden = tensors(13, 17)
    i, j = torch.arange(13)[:, None] + 4, torch.arange(17)
    at = torch.tensor([[-rule(a, b) if b <= a else 0 for b in range(17)] for a in range(4, 17)])
    want = plain(position, q, k, v, at, j <= i, hidden=hidden)
    calls = []
    if make is Kerple:
        bias = position.bias
        position.bias = lambda distance: calls.append(len(distance)) or bias(distance)
    called = given(position, hidden)
    got = function(q, k, v, position=called, q_offset=4, return_lse=True, **sizes)
    assert len(calls) == (make is Kerple)  # once for all regimes
    agree(got, want, leaves_of(position, q, k, v, hidden))


class Sinking(relpos.Position):
    def terms(self, distance):
        return relpos.terms.Sink(torch.zeros(HEADS, dtype=torch.float64))


def test_what_compositions_refuse():
    q, k, v, _ = tensors(12, 12)
    with pytest.raises(ValueError, match="would join each of the calls"):
        compose.rerope(q, k, v, position=Sinking(), window_size=4)
    with pytest.raises(ValueError, match="Picture places tokens where its own rule says"):
        compose.rerope(q, k, v, position=drawn(Picture), window_size=4)
    with pytest.raises(ValueError, match=r"leak: expected position a relpos.RoPE.*Kerple"):
        compose.rerope(q, k, v, position=drawn(Kerple), window_size=4, leak=1.5)
    with pytest.raises(ValueError, match=r"expected one rotation.*Kerple"):
        compose.rotate_values(q, k, v, position=drawn(Kerple), undo=True)
    with pytest.raises(ValueError, match=r"expected one relpos.FIRE.*Kerple"):
        compose.fire(q, k, v, position=drawn(Kerple))


@pytest.mark.parametrize("make", [Kerple, Gated, KeyGated])
def test_vectors_appended_to_the_heads(make):
    """TUPE, whose gates read the query and the key as they were given."""
    position = drawn(make)
    q, k, v, hidden = tensors(6, 6)
    of_q, of_k = (numbers(n, HEADS, 6, 5).requires_grad_() for n in (7, 8))
    got = compose.tupe(
        q, k, v, query_position=of_q, key_position=of_k, position=given(position, hidden),
        return_lse=True,
    )  # fmt: skip
    scale = (DIM + 5) ** -0.5

    class Both(torch.nn.Module):
        reach = None

        def bias(self, distance):
            return (scale * of_q @ of_k.mT).flatten(1)

    class Sum(relpos.Sum):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.parts = torch.nn.ModuleList([Both(), position])

    want = plain(Sum(), q, k, v, distances(6, 6), hidden=hidden, scale=scale)
    agree(got, want, [*leaves_of(position, q, k, v, hidden), of_q, of_k])


@pytest.mark.parametrize("make", [Kerple, Gated, Shaw])
def test_a_rotation_beside_it(make):
    """PoPE, and values that turn, are what they are with the terms given one by one."""
    position = drawn(make)
    q, k, v, hidden = tensors(6, 6)

    def terms():
        return relpos._call.distances.lowered(q, k, {"position": given(position, hidden)})

    rope = relpos.RoPE(DIM, layout="half").double()
    options = {"undo": True, "return_lse": True}
    got = compose.rotate_values(q, k, v, position=[rope, given(position, hidden)], **options)
    want = compose.rotate_values(q, k, v, position=[rope, *terms()], **options)
    leaves = leaves_of(position, q, k, v, hidden)
    agree(got, want, leaves)
    if make is Shaw:  # its rows are those of 2 D
        return
    got = compose.polar(q, k, v, position=given(position, hidden), return_lse=True)
    want = compose.polar(q, k, v, position=terms(), return_lse=True)
    agree(got, want, leaves)


@pytest.mark.parametrize("make", [Kerple, Gated, KeyGated])
def test_beside_fire(make):
    """Beyond FIRE's threshold queries are computed in blocks, and gates are cut as they are."""
    position = drawn(make)
    fire = relpos.FIRE(HEADS, init_L=6).double()
    q, k, v, hidden = tensors(11, 11)
    got = compose.fire(
        q, k, v, position=[fire, given(position, hidden)], is_causal=True, rows=2, return_lse=True
    )
    i, j = torch.arange(11)[:, None], torch.arange(11)
    c, multiplier = fire.c.abs(), fire.L_multiplier.abs() * fire.init_L
    held = [dict(fire.named_parameters())[f"mlp.{n}"] for n in ("0.weight", "0.bias")]
    after = [dict(fire.named_parameters())[f"mlp.{n}"] for n in ("2.weight", "2.bias")]

    class Dense(torch.nn.Module):
        reach = None

        def bias(self, distance):
            at = torch.where(i > multiplier, i, multiplier)
            x = torch.log(c * (i - j).abs() + 1) / (torch.log(c * at + 1) + 1e-6)
            hidden_of = torch.relu(torch.nn.functional.linear(x.unsqueeze(-1), *held))
            found = torch.nn.functional.linear(hidden_of, *after)
            return found.movedim(-1, 0).flatten(1)

    class Sum(relpos.Sum):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.parts = torch.nn.ModuleList([Dense(), position])

    want = plain(Sum(), q, k, v, distances(11, 11), j <= i, hidden=hidden)
    agree(got, want, [*leaves_of(position, q, k, v, hidden), *fire.parameters()])
