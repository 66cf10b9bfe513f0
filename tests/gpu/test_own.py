"""Positions that are written in Python, and terms whose tensors are all inputs, against the
equation in plain torch."""

import pytest
import relpos
import torch
from relpos import Buckets, terms
from relpos._plain import plain_attention

from tests.gpu.cases import DEVICE

HEADS, KEY_HEADS, DIM = 4, 2, 8


class Own(relpos.Position):
    """One of each method by distances, with gates."""

    def __init__(self):
        super().__init__()
        self.b = torch.nn.Parameter(torch.randn(HEADS, 9))
        self.r, self.c, self.v = (torch.nn.Parameter(torch.randn(5, DIM)) for _ in range(3))
        self.g = torch.nn.Parameter(torch.randn(HEADS, DIM, 3))

    def bias(self, distance):
        return self.b[:, distance.clamp(-4, 4) + 4]

    def rows(self, distance):
        return self.r[distance.clamp(-2, 2) + 2][..., :3]

    def gate(self, query):
        return query @ self.g

    def columns(self, distance):
        return self.c[(distance % 5).abs()]

    def values(self, distance):
        return self.v[distance.clamp(-4, 0) + 4]


def numbers(*shape):
    return torch.randn(*shape, requires_grad=True)


def coordinates(queries, keys):
    return torch.randint(-3, 4, (2, queries)), torch.randint(-3, 4, (2, keys))


RUNS = Buckets.runs([-9, -2, 0, 3, 20], [3, 1, -1, 0, 4, 1])
TERMS = {
    "shared": lambda q, k: terms.DistanceBias(numbers(1, 9), -4),
    "runs": lambda q, k: terms.DistanceBias(numbers(HEADS, 5), RUNS),
    "along": lambda q, k: terms.DistanceBias(numbers(1, 4), -1, along=coordinates(q, k)),
    "rows": lambda q, k: terms.RowTable(
        numbers(HEADS, 5, 3), RUNS, factor=numbers(2, HEADS, q, 3), added=numbers(HEADS, 3)
    ),
    "rows along": lambda q, k: terms.RowTable(numbers(6, DIM), -3, along=coordinates(q, k)),
    "columns": lambda q, k: terms.ColumnTable(numbers(HEADS, 7, DIM), -5, scale=0.3),
    "values": lambda q, k: terms.ValueTable(numbers(HEADS, 6, DIM), -2),
    "sum": lambda q, k: (
        terms.DistanceBias(numbers(1, 9), -4)
        + terms.RowTable(numbers(6, DIM), -3)
        + terms.PairBias(
            numbers(1, 7),
            relpos.PairClasses(torch.randint(0, 7, (q, k)).to(torch.uint8), hidden=6),
        )
        + terms.Slopes(numbers(HEADS))
    ),
}


def call(queries, keys):
    return [
        numbers(2, heads, length, DIM)
        for heads, length in ((HEADS, queries), (KEY_HEADS, keys), (KEY_HEADS, keys))
    ]


def tensors_of(position):
    if isinstance(position, torch.nn.Module) and list(position.parameters()):
        return list(position.parameters())
    return [x for part in relpos._position.sum.flatten(position) for x in part._tensors]


def assert_equal(position, inputs, **options):
    """Outputs and gradients are those of the plain equation in float64."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    leaves = [x for x in tensors_of(position) if x.requires_grad]
    out = relpos.attention(*inputs, position=position, enable_gqa=True, **options)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, [*inputs, *leaves], upstream)
    plain = plain_attention(*wide, position, {}, options)
    expected = torch.autograd.grad(plain, [*wide, *leaves], upstream.double())
    torch.testing.assert_close(out.double(), plain, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(DEVICE != "cpu", reason="the plain equation is the CPU's")
@pytest.mark.parametrize(
    ("queries", "keys", "options"),
    [(21, 40, {"q_offset": 19, "is_causal": True}), (7, 70, {"q_offset": -3})],
)
def test_every_method_is_its_formula(queries, keys, options):
    torch.manual_seed(queries)
    assert_equal(Own(), call(queries, keys), **options)


@pytest.mark.skipif(DEVICE != "cpu", reason="the plain equation is the CPU's")
@pytest.mark.parametrize("name", TERMS)
def test_terms_are_their_formulas(name):
    torch.manual_seed(len(name))
    assert_equal(TERMS[name](21, 34), call(21, 34), q_offset=13)


def test_another_map_of_the_same_shape_is_read():
    """Its numbers are inputs, which the text and the shapes of a call do not say."""
    q, table = torch.randn(1, 2, 6, 8, device=DEVICE), torch.randn(2, 3, device=DEVICE)
    first, second = (
        relpos.attention(q, q, q, position=terms.DistanceBias(table, at)) for at in (-1, 2)
    )
    assert not torch.allclose(first, second)
