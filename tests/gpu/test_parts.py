"""Tiles that are seen as a whole, away from where tables change: the loops and the branches that
such tiles have of their own take most of a long call, and none of a short one in large tiles."""

import pytest
import relpos
import torch
from relpos.gpu import run, tiles

from tests.gpu.cases import PLAIN, judged, on_the_cpu

SMALL = tiles.Tile(16, 16, 4, 1)
# Tables of narrow windows, so that tiles lie before and after them.
POSITIONS = ["", "t5#8", "bias_rpe#5", "alibi#0", "shaw#0", "relative_key#1", "deberta#1"]
POSITIONS += ["inkling#0", "bias_rpe#2+shaw#0", "alibi#4+bias_rpe#1"]
MASKS = ["", "causal", "window", "causal+window"]
CASE = PLAIN | {"queries": 65, "keys": 81, "heads": (2, 1), "head_dim": 8, "value_dim": 8}
CASE |= {"batch": 1}


@pytest.mark.parametrize("split", [True, False], ids=["loops", "branches"])
@pytest.mark.parametrize("position", POSITIONS)
def test_small_tiles_keep_the_promise(position, split, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    monkeypatch.setattr(run, "splits", lambda *_: split)
    which = POSITIONS.index(position) + split
    mask, dropout = MASKS[which % len(MASKS)], 0.3 * (which % 3 == 0)
    assert not judged(CASE | {"position": position, "mask": mask, "dropout": dropout})


@pytest.mark.parametrize("mask", ["", "window", "range", "bool"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_small_tiles_keep_it_in_16_bits(mask, dtype, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    assert not judged(CASE | {"position": "t5#8", "mask": mask, "dtype": dtype, "queries": 49})


@pytest.mark.parametrize("scale", [0.3, -0.3, 0.0])
def test_scores_that_are_products_alone(scale, monkeypatch):
    """The largest product is that of the largest score where the scale is above 0."""
    monkeypatch.setattr(tiles, "INTERPRETED", SMALL)
    q, k, v, dout = torch.randn(4, 1, 2, 48, 8)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = relpos.attention(q, k, v, scale=scale)
    found = [out, *torch.autograd.grad(out, leaves, dout)]
    for ours, theirs in zip(found, on_the_cpu(q, k, v, dout, scale=scale), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
