"""Both sides are proved equal before they are timed."""

from collections.abc import Callable

import torch
from formulas import Match, Shape
from torch import Tensor

LENGTH = 389  # no multiple of a tile or of a vector
# Largest difference of two float32 (or 16-bit) sides at full size, of the largest value.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class Unequal(Exception):
    """A row that is not timed."""


def step(match: Match, call: Callable[[], Tensor], dout: Tensor) -> list[Tensor]:
    out = call()
    return [out.detach(), *torch.autograd.grad(out, match.leaves, dout)]


def prove(build: Callable[[Shape, torch.dtype], Match], shape: Shape) -> None:
    """At a small length relpos is off float64 by at most twice what float32 torch is (gradients: 3
    times), plus 1e-6 of the largest value."""
    _, heads, queries, keys, dim = shape
    small = (1, heads, min(queries, LENGTH), min(keys, LENGTH + keys - queries), dim)
    torch.manual_seed(0)
    single, double = build(small, torch.float32), build(small, torch.float64)
    with torch.no_grad():
        for wide, narrow in zip(double.leaves, single.leaves, strict=True):
            wide.copy_(narrow)
    dout = torch.randn_like(single.leaves[0])
    exact = step(double, double.formula, dout.double())
    peer = step(single, single.formula, dout)
    mine = step(single, single.ours, dout)
    for n, (want, got, other) in enumerate(zip(exact, mine, peer, strict=True)):
        error, allowed = (got - want).abs().max(), (other - want).abs().max()
        bound = (2 if n == 0 else 3) * allowed + 1e-6 * want.abs().max()
        if not error <= bound:
            raise Unequal(f"result {n} is off by {error:.3g}, allowed {bound:.3g}: not timed")


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Of the largest value; raises Unequal where it is more than rounding."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        apart = float((a.float() - b.float()).abs().max() / b.float().abs().max())
        if not apart <= TOLERANCE[a.dtype]:
            raise Unequal(f"differs from relpos by {apart:.2g} of the largest value: not timed")
        worst = max(worst, apart)
    return worst
