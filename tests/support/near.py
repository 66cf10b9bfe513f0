"""Comparisons with other code, each of which remembers how near it came to its bound.

`pytest --nearest` prints the five that came nearest, and fails where one needed more than half of
its bound: conftest.py asks `ratios`. `other_cpus.py` runs it under other settings of torch.
"""

import os

import torch

MOST = 0.5  # of a bound: the rest is for the rounding of other CPUs
ratios: dict[str, float] = {}  # of each test, the largest |error| / bound


def within(error, bound, what="error"):
    """error <= bound, for numbers."""
    error, bound = float(error), float(bound)
    assert error <= bound, f"{what}: {error:.3g}, which exceeds {bound:.3g}"
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    ratios[test] = max(ratios.get(test, 0.0), error / bound if error else 0.0)


def close(got, want, bound=1e-10, what="result"):
    """Each element within bound (1 + |want|); tensors, or lists of them. What is not finite is the
    same. `bound` is below 1e-9 where both sides compute in double; where other code computes in
    float32, it comes with the reason why that code's error is below it."""
    if not isinstance(want, torch.Tensor):
        for n, pair in enumerate(zip(got, want, strict=True)):
            close(*pair, bound, f"{what} {n}")
        return
    torch.testing.assert_close(
        got, want, rtol=bound, atol=bound, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )
    finite = want.isfinite()
    got, want = (x.detach()[finite].double() for x in (got, want))
    if want.numel():
        within(((got - want).abs() / (1.0 + want.abs())).max(), bound, what)


def close_with_gradients(got, want, leaves, bound=1e-10):
    """Values, and the gradients of a random weighting of them; tensors, or lists of them."""
    got, want = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (got, want))
    close(got, want, bound)
    draw = torch.Generator().manual_seed(9)
    seeds = [torch.randn(x.shape, dtype=x.dtype, generator=draw) for x in want]
    pulled = (torch.autograd.grad(x, leaves, seeds, retain_graph=True) for x in (got, want))
    close(*pulled, bound, "gradient")


def close_to_largest(got, want, bound, what="result"):
    """Each element within bound times the largest |want|."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    scale = want.detach().abs().max().item()
    within((got - want).detach().abs().max().item(), bound * scale, what)
