"""Tiles that are seen as a whole, away from where tables change: the loops that such tiles have of
their own take most of a long call, and none of a short one in large tiles."""

import random

import pytest
import relpos
import torch
import triton
import triton.language as tl
from relpos.gpu import tiles
from relpos.gpu.pairs.parts import parts_of_keys, parts_of_queries
from relpos.gpu.passes import key_launches
from relpos.gpu.problem import Config, Problem

from tests.gpu.cases import PLAIN, judged, on_the_cpu

SMALL = tiles.Tile(16, 16, 4, 1)
# Tables of narrow windows, so that tiles lie before and after them.
POSITIONS = ["", "t5#8", "bias_rpe#5", "alibi#0", "shaw#0", "relative_key#1", "deberta#1"]
POSITIONS += ["inkling#0", "bias_rpe#2+shaw#0", "alibi#4+bias_rpe#1"]
MASKS = ["", "causal", "window", "causal+window"]
CASE = PLAIN | {"queries": 65, "keys": 81, "heads": (2, 1), "head_dim": 8, "value_dim": 8}


@triton.jit
def _parts(to, problem, last, start, k0, keys, OF_QUERIES: tl.constexpr, CONFIG: tl.constexpr):
    if OF_QUERIES:
        parts = parts_of_queries(problem, 0, last, start, k0, keys, 8, 4, CONFIG)
    else:
        parts = parts_of_keys(problem, 0, last, start, keys, CONFIG)
    for n in tl.static_range(4):
        tl.store(to + n, parts[n])


@pytest.mark.parametrize("of_queries", [False, True], ids=["keys", "queries"])
def test_parts_are_the_tiles_that_are_seen_as_a_whole_far_from_tables(of_queries):
    """Of tiles of 8 queries and 4 keys, one by one, for the first queries and for keys 20 to 23."""
    names = dict.fromkeys(Config._fields) | {"queries": 8, "keys": 4, "far": True}
    none, draw, sides = dict.fromkeys(Problem._fields), random.Random(1), set()
    size, k0, count = (8, 20, 80) if of_queries else (4, 0, 50)
    for _ in range(300):
        left, right = (draw.choice([draw.randrange(-4, 40), 2**62]) for _ in range(2))
        below = draw.randrange(-30, 20)
        above, start = below + draw.randrange(1, 20), draw.randrange(-30, 60)
        keys = draw.choice([22, 24, 50]) if of_queries else count
        reach = start + left + 4 if of_queries else start + right + 8
        last = min(max(reach, 0), count)  # of queries_of, keys_of
        problem = Problem(**none | {"left": left, "right": right, "window": (below, above)})
        to = torch.full((4,), -1)
        _parts[(1,)](to, problem, last, start, k0, keys, of_queries, Config(**names))
        one, two, three, four = to.tolist()
        for at in range(0, last, size):
            if of_queries:  # whose key at distance 0 is `start` later than they
                first, apart = k0, [start + c - at - a for a in range(8) for c in range(4)]
            else:
                first, apart = at, [at + c - start - a for a in range(8) for c in range(4)]
            seen = first + 4 <= keys and all(-left <= d <= right for d in apart)
            side = seen and (max(apart) <= below) - (min(apart) >= above)
            side = -side if of_queries else side  # far keys are before near queries
            assert (one <= at < two) - (three <= at < four) == side, (problem, start, last, at)
            sides.add(side)
    assert sides == {-1, 0, 1}


@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("position", POSITIONS)
def test_small_tiles_keep_the_promise(position, other, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    case = {"position": position, "mask": MASKS[(POSITIONS.index(position) + other) % len(MASKS)]}
    assert not judged(CASE | case)


@pytest.mark.parametrize("more", [{"dropout": 0.3}, {"softcap": 1.5}], ids=["dropout", "softcap"])
def test_small_tiles_of_what_has_no_parts(more, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    assert not judged(CASE | {"position": "bias_rpe#2+shaw#0", "mask": "causal"} | more)


@pytest.mark.parametrize("value", [-torch.inf, torch.inf])
@pytest.mark.parametrize("all_", [True, False], ids=["all", "far"])
def test_infinite_biases_are_those_of_the_cpu(value, all_, monkeypatch):
    """A row whose scores are all -inf has no weights, and no gradient."""
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    bias = relpos.BiasRPE(2, max_distance=3)
    with torch.no_grad():
        bias.biases[:, :: 1 if all_ else 4] = value
    q, k, v, dout = torch.randn(4, 1, 2, 48, 8)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = relpos.attention(q, k, v, position=bias)
    found = [out, *torch.autograd.grad(out, leaves, dout)]
    for ours, theirs in zip(found, on_the_cpu(q, k, v, dout, position=bias), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_values_of_no_size():
    q, k = (torch.randn(1, 1, 48, 8, requires_grad=True) for _ in range(2))
    v = torch.randn(1, 1, 48, 0, requires_grad=True)
    out = relpos.attention(q, k, v, position=relpos.BiasRPE(1, max_distance=2))
    assert all(not x.any() for x in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("position", ["t5#8", "deberta#1"])
def test_both_parts_and_the_others_are_summed_by_some_heads_at_a_time(
    position, garbage, monkeypatch
):
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    monkeypatch.setattr(key_launches, "SHARE_BYTES", 1)
    monkeypatch.setattr(key_launches, "SHARE_BYTES_BESIDE_ROWS", 1)
    monkeypatch.setattr(key_launches, "PROGRAMS", 8)  # of 6 blocks: three heads
    before = relpos.gpu.launches().get("join_shares", 0)
    assert not judged(CASE | {"position": position, "heads": (4, 2), "batch": 2, "mask": "causal"})
    assert relpos.gpu.launches()["join_shares"] == before + 4


@pytest.mark.parametrize("mask", ["", "window", "range", "bool"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_small_tiles_keep_it_in_16_bits(mask, dtype, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    assert not judged(CASE | {"position": "t5#8", "mask": mask, "dtype": dtype, "queries": 49})


@pytest.mark.parametrize("scale", [0.3, -30.0, 0.0])
def test_scores_that_are_products_alone(scale, monkeypatch):
    """The largest product is that of the largest score where the scale is above 0."""
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    q, k, v, dout = torch.randn(4, 1, 2, 48, 8)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = relpos.attention(q, k, v, scale=scale)
    found = [out, *torch.autograd.grad(out, leaves, dout)]
    for ours, theirs in zip(found, on_the_cpu(q, k, v, dout, scale=scale), strict=True):
        limit = 1e-5 if abs(scale) < 1.0 else 1e-3  # of scores of some hundreds
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)
