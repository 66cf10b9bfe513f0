"""Biases and rows of the distance of coordinates, which are inputs of the call, or follow from
these and from positions."""

from types import SimpleNamespace

import pytest
import relpos
import torch
from relpos import terms
from relpos.gpu.lowered.delta import Along
from relpos.gpu.lowered.numbers import Numbers
from relpos.gpu.rows import chunks
from relpos.gpu.sums import pair_launches

from tests.gpu.cases import PLAIN, TIMES, assert_the_same_bits_twice, drawn_of, judged, number_of

POSITIONS = ["layout#1", "udop#1", "udop#2"]
POSITIONS += ["layout#1+rope#0", "udop#1+alibi#3", "layout#1+udop#2", "udop#1+t5#0"]
ROWS = ["botnet#1", "decomposed#1+t5#1", "xlnet#0", "funnel#0", "funnel#2", "cpm_ant#1"]
ROWS += ["xlnet#1+layout#1+rope#0", "botnet#0+shaw#1", "cpm_ant#1+swin#0"]
if TIMES > 1:  # their maps are wide, which the interpreter takes long for
    POSITIONS += ["layout#0", "udop#0"]
    ROWS += ["cpm_ant#0", "botnet#0", "decomposed#0", "funnel#1", "xlnet#1"]
CASE = PLAIN | {"position": "layout#1", "queries": 40, "keys": 33, "mask": "padding"}


@pytest.mark.parametrize("case", drawn_of(POSITIONS), ids=number_of)
def test_a_call_keeps_the_promise(case, garbage):
    assert not judged(case), case


FEW = {"queries": [1, 16, 33], "keys": [5, 33, 64], "heads": [(1, 1), (4, 2)]}


@pytest.mark.parametrize("case", drawn_of(ROWS, **FEW), ids=number_of)
def test_rows_and_what_is_computed_keep_it(case, garbage):
    assert not judged(case), case


def test_chunks_of_queries_keep_it(garbage, monkeypatch):
    """Of the sums of pairs, and of the whole call beside a table of rows."""
    monkeypatch.setattr(pair_launches, "MOST_PAIRS", 1)
    monkeypatch.setattr(chunks, "LEAST", 16)
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    assert not judged(CASE)
    assert not judged(CASE | {"position": "layout#1+music_transformer#0", "queries": 20})
    for position in ("xlnet#0", "botnet#0+shaw#1"):
        assert not judged(CASE | {"position": position, "queries": 20, "heads": (2, 1)})


@pytest.mark.parametrize("position", ["layout#1+xlnet#0"])
def test_two_runs_have_the_same_bits(position):
    assert_the_same_bits_twice(CASE | {"position": position})


def test_one_input_may_be_that_of_queries_and_of_keys():
    """A chunk of queries has its part of it, and all keys."""
    numbers = Numbers(0, (0, 1), (), 1.0)
    whole = torch.arange(12)[None]
    entire = SimpleNamespace(parameters=(whole,))
    call = SimpleNamespace(parameters=(whole.narrow(1, 4, 3),), entire=entire)
    places = Along(numbers, numbers, 0, None).read(call)
    assert torch.equal(places.q, whole[:, 4:7])
    assert torch.equal(places.k, whole)


def test_a_map_that_is_too_wide_for_a_number_of_each_distance_is_refused():
    far = 2**22
    position = terms.DistanceBias(torch.randn(2, 2), relpos.Buckets.runs([-far, far], [0, 1, 0]))
    q = torch.randn(1, 2, 3, 8)
    at = torch.tensor([0, 1, far])
    assert relpos.attention(q, q, q, position=position).isfinite().all()  # no distance is far
    with pytest.raises(NotImplementedError, match=r"^position: a map that changes over 4194304 "):
        relpos.attention(q, q, q, position=position, q_positions=at, k_positions=at)


def test_segments_are_read_anew_in_each_call():
    """A plan of the same shapes is another's where other segments are given."""
    cpm = relpos.CPMAntBias(2, segments=3, buckets=4, max_distance=8, max_length=16)
    q = torch.randn(1, 2, 3, 8)
    found = []
    for numbers in ([0, 1, 2], [2, 2, 0], [0, 1, 2]):
        segments = torch.tensor([numbers])
        found.append(relpos.attention(q, q, q, position=cpm(segments, segments)))
    assert torch.equal(found[0], found[2])
    assert not torch.allclose(found[0], found[1])
    wrong = torch.tensor([[0, 1, 3]])
    with pytest.raises(ValueError, match=r"segments: expected 0 to 2, got 3"):
        relpos.attention(q, q, q, position=cpm(wrong, wrong))


def test_without_keys_a_table_gets_nothing():
    layout = relpos.LayoutBias(2)
    q, none = torch.randn(1, 2, 3, 8), torch.empty(1, 2, 0, 8)
    at = torch.zeros(1, 2, 3).long(), torch.zeros(1, 2, 0).long()
    out = relpos.attention(q.requires_grad_(), none, none, position=layout(*at), q_offset=0)
    grads = torch.autograd.grad(out.sum(), [q, *layout.parameters()])
    assert not any(grad.any() for grad in grads)
