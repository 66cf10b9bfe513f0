"""Biases and rows by the class of each pair, which a call gives."""

import pytest
import relpos
import torch
from relpos import terms
from relpos.gpu.rows import chunks
from relpos.gpu.sums import pair_launches

from tests.gpu.cases import (
    DEVICE,
    PLAIN,
    assert_the_same_bits_twice,
    drawn_of,
    judged,
    number_of,
    to_device,
)

POSITIONS = [f"{name}#{n}" for name in ("pair_bias", "pair_rows") for n in range(4)]
POSITIONS += ["pair_bias#1+pair_rows#2", "pair_bias#1+alibi#3", "pair_rows#1+t5#0+rope#0"]
POSITIONS += ["pair_bias#2+layout#1", "pair_rows#3+shaw#1"]
CASE = PLAIN | {"queries": 40, "keys": 33, "heads": (2, 1), "mask": "padding"}


@pytest.mark.parametrize("case", drawn_of(POSITIONS), ids=number_of)
def test_a_call_keeps_the_promise(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize("position", ["pair_bias#1", "pair_rows#3+pair_bias#0"])
def test_chunks_of_queries_keep_it(position, garbage, monkeypatch):
    """Of the sums of pairs, and of the whole call beside rows."""
    monkeypatch.setattr(pair_launches, "MOST_PAIRS", 1)
    monkeypatch.setattr(chunks, "LEAST", 16)
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    assert not judged(CASE | {"position": position})


@pytest.mark.parametrize("position", ["pair_bias#3+pair_rows#1"])
def test_two_runs_have_the_same_bits(position):
    assert_the_same_bits_twice(CASE | {"position": position})


@pytest.mark.parametrize("term", [terms.PairBias, terms.PairRows])
def test_without_keys_a_table_gets_nothing(term):
    shape = (2, 5) if term is terms.PairBias else (5, 8)
    table = torch.randn(*shape, requires_grad=True)
    q, none = torch.randn(1, 2, 3, 8, requires_grad=True), torch.empty(1, 2, 0, 8)
    position = term(table, relpos.PairClasses(torch.zeros(3, 0, dtype=torch.uint8)))
    out = relpos.attention(q, none, none, position=position, q_offset=0)
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), [q, table]))


def test_what_a_hidden_class_hides_is_not_read():
    """A key and a value that are not finite reach the queries alone that see them."""
    classes = torch.zeros(40, 70, dtype=torch.uint8)
    classes[:33, 69] = 3
    table, classes = torch.randn(2, 3, device=DEVICE), to_device(classes)
    position = terms.PairBias(table, relpos.PairClasses(classes, hidden=3))
    q, k, v = (torch.randn(1, 2, length, 8) for length in (40, 70, 70))
    k[:, :, 69], v[:, :, 69] = torch.nan, torch.inf
    q, k, v = (to_device(x).requires_grad_() for x in (q, k, v))
    out = relpos.attention(q, k, v, position=position, q_offset=0)
    assert out[:, :, :33].isfinite().all()
    assert not out[:, :, 33:].isfinite().any()
    dq, _ = torch.autograd.grad(out[:, :, :33].sum(), [q, k])
    assert dq[:, :, :33].isfinite().all()
