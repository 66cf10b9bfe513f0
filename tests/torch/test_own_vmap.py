"""Positions of one's own under vmap and torch.func."""

import pytest
import relpos
import torch
from relpos import _core
from torch import nn
from torch.func import functional_call, grad, vmap

from tests.support.near import close
from tests.support.own_positions import (
    DIM,
    HEADS,
    MADE,
    distances,
    drawn,
    given,
    numbers,
    plain,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class Attending(nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, query, key, value, hidden):
        called = given(self.position, hidden)
        return relpos.attention(query, key, value, position=called, is_causal=True)


def dense(position, *tensors):
    at = distances(6, 6)
    return plain(position, *tensors[:3], at, at <= 0, hidden=tensors[3])[0]


def drawn_tensors():
    return [numbers(n, 3, 2, HEADS, 6, DIM) for n in range(3)] + [numbers(3, 3, 2, 6, 16)]


@pytest.mark.parametrize("name", MADE)
def test_over_queries_keys_and_values(name, monkeypatch):
    """One call over the mapped axis, unless a gate is an input with a batch axis of its own."""
    model, given_tensors = Attending(drawn(MADE[name])), drawn_tensors()
    calls = []

    def count(name):
        run = getattr(_core, name)
        monkeypatch.setattr(_core, name, lambda *a: calls.append(1) or run(*a))

    count("attend")  # where nobody observes
    count("attention")
    got = vmap(model)(*given_tensors)
    assert len(calls) == (3 if "gated" in name else 1)
    want = [dense(model.position, *each) for each in zip(*given_tensors, strict=True)]
    close(got, torch.stack(want))


@pytest.mark.parametrize("name", MADE)
def test_over_parameters(name):
    """One call for each slice; gradients of each set of them."""
    model, tensors = Attending(drawn(MADE[name])), [x[0] for x in drawn_tensors()]
    several = {n: torch.stack([p, 2 * p, -p]).detach() for n, p in model.named_parameters()}

    def loss(values):
        return functional_call(model, values, tuple(tensors)).square().sum()

    found = vmap(grad(loss))(several)
    for i in range(3):
        leaves = {n: x[i].clone().requires_grad_() for n, x in several.items()}
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(leaves[n])
        wanted = torch.autograd.grad(
            dense(model.position, *tensors).square().sum(), list(model.parameters())
        )
        for (n, _), want in zip(model.named_parameters(), wanted, strict=True):
            close(found[n][i], want)
