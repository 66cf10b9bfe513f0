"""Tiles that are seen as a whole, away from where tables change: the loops and the branches that
such tiles have of their own take most of a long call, and none of a short one in large tiles."""

import random

import pytest
import relpos
import torch
import triton
import triton.language as tl
from relpos.gpu import run, tiles
from relpos.gpu.pairs.parts import is_plain, parts_of
from relpos.gpu.problem import Config, Problem

from tests.gpu.cases import PLAIN, judged, on_the_cpu

SMALL = tiles.Tile(16, 16, 4, 1)
# Tables of narrow windows, so that tiles lie before and after them.
POSITIONS = ["", "t5#8", "bias_rpe#5", "alibi#0", "shaw#0", "relative_key#1", "deberta#1"]
POSITIONS += ["inkling#0", "bias_rpe#2+shaw#0", "alibi#4+bias_rpe#1"]
MASKS = ["", "causal", "window", "causal+window"]
CASE = PLAIN | {"queries": 65, "keys": 81, "heads": (2, 1), "head_dim": 8, "value_dim": 8}
CASE |= {"batch": 1}


@triton.jit
def _parts(to, problem, last, start, keys, CONFIG: tl.constexpr):
    one, two, three, four = parts_of(problem, 0, last, start, keys, CONFIG)
    tl.store(to, one)
    tl.store(to + 1, two)
    tl.store(to + 2, three)
    tl.store(to + 3, four)
    for k0 in range(0, last, CONFIG.keys):
        at = (0, 0, 0, k0, 0, 0, 0, keys, 0)
        plain = is_plain(problem, at, (k0 - start, 0), CONFIG)
        tl.store(to + 4 + k0 // CONFIG.keys, tl.cast(plain, tl.int64))


def test_parts_are_the_tiles_that_are_seen_as_a_whole_far_from_tables():
    """Of 8 queries and tiles of 4 keys, one by one."""
    names = dict.fromkeys(Config._fields) | {"queries": 8, "keys": 4, "far": True}
    none, draw, sides = dict.fromkeys(Problem._fields), random.Random(1), set()
    for _ in range(300):
        left, right = (draw.choice([draw.randrange(-4, 40), 2**62]) for _ in range(2))
        below = draw.randrange(-30, 20)
        above, start, keys = below + draw.randrange(1, 20), draw.randrange(-30, 60), 50
        last = min(max(start + right + 8, 0), keys)  # of keys_of
        problem = Problem(**none | {"left": left, "right": right, "window": (below, above)})
        to = torch.full((4 + 13,), -1)
        _parts[(1,)](to, problem, last, start, keys, Config(**names))
        one, two, three, four = to[:4].tolist()
        plain = []
        for k0 in range(0, last, 4):
            apart = [j - start - i for j in range(k0, k0 + 4) for i in range(8)]
            seen = k0 + 4 <= keys and all(-left <= d <= right for d in apart)
            plain.append(seen and (max(apart) <= below) - (min(apart) >= above))
        assert to[4 : 4 + len(plain)].tolist() == [int(side != 0) for side in plain]
        for k0, side in zip(range(0, last, 4), plain, strict=True):
            assert (one <= k0 < two) - (three <= k0 < four) == side, (problem, start, last, k0)
            sides.add(side)
    assert sides == {-1, 0, 1}


@pytest.mark.parametrize("split", [True, False], ids=["loops", "branches"])
@pytest.mark.parametrize("position", POSITIONS)
def test_small_tiles_keep_the_promise(position, split, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    monkeypatch.setattr(run, "splits", lambda *_: split)
    which = POSITIONS.index(position) + split
    mask, dropout = MASKS[which % len(MASKS)], 0.3 * (which % 3 == 0)
    softcap = 1.5 if which % 2 else None
    case = {"position": position, "mask": mask, "dropout": dropout, "softcap": softcap}
    assert not judged(CASE | case)


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
