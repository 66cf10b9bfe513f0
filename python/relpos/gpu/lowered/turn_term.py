"""A rotation of a call, as relpos.gpu.rotations takes it."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos.gpu.lowered.numbers import Numbers, numbers_of


class TurnTerm(NamedTuple):
    """A rotation, as LoweredTurn of relpos/lower.h says it. frequency float64 [1, axes, 1, pairs],
    factors float64 [2]: magnitude, and multiplier of frequencies. q, k int64 [.., axes, L, 1] on
    the CPU: coordinates that follow from positions, and q_near, k_near the same less one of
    them."""

    start: int
    dims: int
    interleaved: bool
    float32_angles: bool
    by: str
    numbers: tuple[Numbers, ...]
    magnitude: float
    frequency: Tensor
    factors: Tensor
    q: Tensor
    k: Tensor
    q_near: Tensor
    k_near: Tensor

    def of_queries(self) -> list[tuple[Numbers, int]]:
        """Numbers of each query, and the axis of their parameter that is that of queries."""
        of_each = {"inputs": self.numbers[:1], "tables": self.numbers[:2]}.get(self.by, ())
        last = 1 if self.by == "inputs" else 2
        return [(numbers, numbers.axes[-last]) for numbers in of_each]


def turn_of(lowered: Any, queries: int, keys: int) -> TurnTerm:
    """Of what _core.lower says of a rotation, in a call of so many queries and keys."""
    start, dims, interleaved, magnitude, float32_angles, axes, frequency, by, numbers, q, k = (
        lowered
    )
    numbers = tuple(map(numbers_of, numbers))

    def coordinates(numbers: list[int], length: int) -> Tensor:
        """[axes, .., L] as [.., axes, L, 1]."""
        found = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        rows = len(numbers) // max(1, axes * length)
        return found.view(axes, rows, length).transpose(0, 1)[..., None]

    if by != "coordinates":
        queries = keys = 0
    at_q = coordinates(q, queries)
    at_k = at_q if q == k else coordinates(k, keys)
    near = _nearest(at_q, at_k)
    multiplier = numbers[0].multiplier if by == "coordinates" and numbers else 1.0
    return TurnTerm(
        start,
        dims,
        interleaved,
        float32_angles,
        by,
        numbers,
        magnitude,
        torch.tensor(frequency, dtype=torch.float64, device="cpu").view(1, -1, 1, dims // 2),
        torch.tensor([magnitude, multiplier], dtype=torch.float64, device="cpu"),
        at_q,
        at_k,
        at_q - near,
        at_k - near,
    )


def _nearest(q: Tensor, k: Tensor) -> Tensor:
    """Of each axis and batch row the coordinate nearest to 0, or 0 where some lie on either side.
    Sums of gradients by coordinates count from it: the gradients of a pair's angles add up to 0, so
    that it changes no sum, and far coordinates cost no accuracy."""
    both = [x for x in (q, k) if x.shape[2]]
    if not both:
        return torch.zeros((1, 1, 1, 1), dtype=torch.int64, device="cpu")
    low, high = (
        functools.reduce(pick, (getattr(x, edge)(2, keepdim=True) for x in both))
        for edge, pick in (("amin", torch.minimum), ("amax", torch.maximum))
    )
    return low.clamp(min=0) + high.clamp(max=0)
