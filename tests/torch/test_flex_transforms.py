"""FlexAttention's functions under torch.func, torch.compile and autocast, and in a cache."""

import pytest
import relpos
import torch
from relpos.compat import flex_attention

from tests.support.near import close
from tests.support.oracle import naive

pytestmark = pytest.mark.usefixtures("one_thread")

B, H, L, D = 2, 4, 33, 8


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUERY, KEY, VALUE = (drawn(B, H, L, D, seed=seed) for seed in (1, 2, 3))
TABLE, NUMBERS = drawn(H, 2 * L, seed=4), drawn(H, L, seed=5)
DISTANCE = torch.arange(L) - torch.arange(L)[:, None]


def loss(table, numbers):
    def score_mod(score, b, h, q_idx, kv_idx):
        score = score + table[h, kv_idx - q_idx + L] + numbers[h, kv_idx]
        return torch.where(q_idx >= kv_idx, score, -float("inf"))

    return flex_attention(QUERY, KEY, VALUE, score_mod).square().sum()


def formula(table, numbers):
    bias = table[:, DISTANCE + L] + numbers[:, None] + torch.where(DISTANCE > 0, -torch.inf, 0.0)
    return naive(QUERY, KEY, VALUE, bias).out.square().sum()


def test_torch_func():
    given = TABLE, NUMBERS
    close(torch.func.grad(loss, (0, 1))(*given), torch.func.grad(formula, (0, 1))(*given))
    tables = torch.stack([TABLE, -TABLE])
    want = torch.stack([formula(table, NUMBERS) for table in tables])
    close(torch.vmap(loss, (0, None))(tables, NUMBERS), want)


def test_compiled_with_graph_breaks():
    leaves = [TABLE.clone().requires_grad_(), NUMBERS.clone().requires_grad_()]
    got = torch.autograd.grad(torch.compile(loss)(*leaves), leaves)
    close(got, torch.func.grad(formula, (0, 1))(TABLE, NUMBERS))


def test_autocast_does_not_reach_the_function():
    rows = drawn(H, 16, seed=6).float()

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + (rows @ rows[h])[0] * (kv_idx - q_idx) + (rows @ rows[h])[1] * kv_idx

    plain = [x.float() for x in (QUERY, KEY, VALUE)]
    want = flex_attention(*(x.bfloat16() for x in plain), score_mod)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(flex_attention(*plain, score_mod), want)


def test_caches_take_the_position():
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + TABLE[h, kv_idx - q_idx + L] + NUMBERS[h, kv_idx]

    position = relpos.from_score_mod(score_mod, H, dtype=torch.float64).options["position"]
    bias = TABLE[:, DISTANCE + L] + NUMBERS[:, None] + torch.where(DISTANCE > 0, -torch.inf, 0.0)
    want = naive(QUERY, KEY, VALUE, bias).out
    cache = relpos.KVCache()
    with torch.no_grad():
        for n, rows in enumerate(zip(*(x.split(1, 2) for x in (QUERY, KEY, VALUE)), strict=True)):
            close(cache.attend(*rows, position=position), want[:, :, n : n + 1])
