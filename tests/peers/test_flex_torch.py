"""relpos.compat.flex_attention beside torch's without its compiler, which has no gradients on a
CPU."""

import pytest
import torch
from relpos import compat
from torch.nn.attention import flex_attention as theirs

from tests.support.near import close

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

B, H, QUERIES, KEYS = 2, 4, 35, 50


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TABLE, PAIRS = drawn(H, 90), drawn(B, H, QUERIES, KEYS)
CLASSES = (drawn(B, QUERIES, KEYS).abs() * 20).long().clamp(max=89)

SCORE_MODS = {
    "none": None,
    "alibi": lambda s, b, h, q, k: s + (k - q) * torch.exp2(-((h + 1) * 8.0 / H)),
    "table": lambda s, b, h, q, k: s + TABLE[h, k - q + QUERIES],
    "keys": lambda s, b, h, q, k: s * 0.7 - TABLE[h, k] * b + 0.25,
    "pairs": lambda s, b, h, q, k: s + PAIRS[b, h, q, k],
    "classes": lambda s, b, h, q, k: s + TABLE[h, CLASSES[b, q, k]],
    "capped": lambda s, b, h, q, k: 2 * torch.tanh((s + TABLE[h, k - q + QUERIES]) / 2),
    "masked": lambda s, b, h, q, k: torch.where(q + h >= k, s + q - k, -float("inf")),
}
MASK_MODS = {
    "none": None,
    "causal": lambda b, h, q, k: q >= k,
    "rows and heads": lambda b, h, q, k: (q - k).abs() <= 4 * h + b,
}


@pytest.mark.parametrize("mask", MASK_MODS)
@pytest.mark.parametrize("score", SCORE_MODS)
def test_results_are_torchs(score, mask):
    query, key, value = drawn(B, H, QUERIES, 8), drawn(B, 2, KEYS, 8), drawn(B, 2, KEYS, 5)
    blocks = None
    if MASK_MODS[mask] is not None:
        blocks = theirs.create_block_mask(
            MASK_MODS[mask], B, H, QUERIES, KEYS, device="cpu", BLOCK_SIZE=16
        )
    call = (query, key, value, SCORE_MODS[score], blocks, 0.4, True)
    request = theirs.AuxRequest(lse=True)
    got, got_aux = compat.flex_attention(*call, return_aux=request)
    want, want_aux = theirs.flex_attention(*call, return_aux=request)
    close([got, got_aux.lse], [want, want_aux.lse])
    assert type(got_aux) is type(want_aux)
    lone, lone_aux = compat.flex_attention(*call, return_aux=theirs.AuxRequest())
    assert torch.equal(lone, got)
    assert lone_aux.lse is None
