"""Biases of the distance of coordinates that are inputs of the call."""

import pytest
import relpos
import torch
from relpos.gpu.rows import chunks
from relpos.gpu.sums import table_gradients

from tests.gpu.cases import PLAIN, TIMES, assert_the_same_bits_twice, drawn_of, judged, number_of

POSITIONS = ["layout#1", "udop#1", "udop#2"]
POSITIONS += ["layout#1+rope#0", "udop#1+alibi#3", "layout#1+udop#2", "udop#1+t5#0"]
if TIMES > 1:  # their maps are wide, which the interpreter takes long for
    POSITIONS += ["layout#0", "udop#0"]
CASE = PLAIN | {"position": "layout#1", "queries": 40, "keys": 33, "mask": "padding"}


@pytest.mark.parametrize("case", drawn_of(POSITIONS), ids=number_of)
def test_a_call_keeps_the_promise(case, garbage):
    assert not judged(case), case


def test_chunks_of_queries_keep_it(garbage, monkeypatch):
    """Of the sums of pairs, and of the whole call beside a table of rows."""
    monkeypatch.setattr(table_gradients, "MOST_PAIRS", 1)
    monkeypatch.setattr(chunks, "LEAST", 16)
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    assert not judged(CASE)
    assert not judged(CASE | {"position": "layout#1+music_transformer#0", "queries": 20})


def test_two_runs_have_the_same_bits():
    assert_the_same_bits_twice(CASE)


def test_without_keys_a_table_gets_nothing():
    layout = relpos.LayoutBias(2)
    q, none = torch.randn(1, 2, 3, 8), torch.empty(1, 2, 0, 8)
    at = torch.zeros(1, 2, 3).long(), torch.zeros(1, 2, 0).long()
    out = relpos.attention(q.requires_grad_(), none, none, position=layout(*at), q_offset=0)
    grads = torch.autograd.grad(out.sum(), [q, *layout.parameters()])
    assert not any(grad.any() for grad in grads)
