"""relpos.merge: attention over disjoint sets of keys, joined into one softmax."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from relpos._base.errors import dtype_of, shape_of, wrong_type, wrong_value
from relpos._base.tensors import check_device


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint sets of keys, from attention over each.

    Args:
      outs: one [..., L, Dv] for each set of keys, of one shape and dtype.
      lses: one [..., L] for each, the natural log of each row's sum, as return_lse gives it. Give
        sinks to one of the calls alone.

    Returns:
      (out, lse) as one call over all keys at once would give them, up to rounding: each out is
      weighted with exp(its lse - lse). A query that sees no key in any set gets 0 and lse -inf.
      Differentiable in outs and lses, any number of times. 16-bit outs are added in float32.

    Source: Milakov, Gimelshein 2018, Online normalizer calculation for softmax, section 3.1.
    """
    outs, lses = list(outs), list(lses)
    _check(outs, lses)
    weights, lse = shares(lses)
    # A set without a key for this query is selected away, since 0 times NaN would be NaN.
    parts = (
        out.to(lse.dtype).masked_fill(torch.isneginf(own).unsqueeze(-1), 0.0) * weight.unsqueeze(-1)
        for out, own, weight in zip(outs, lses, weights, strict=True)
    )
    return functools.reduce(torch.add, parts).to(outs[0].dtype), lse


def shares(lses: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The share of each set of keys in the softmax over all of them, 0 where it has no key for a
    query, and the log-sum-exp of that softmax."""
    top = functools.reduce(torch.maximum, [lse.detach() for lse in lses])
    top = top.masked_fill(torch.isneginf(top), 0.0)
    weights = [torch.exp(lse - top) for lse in lses]
    total = functools.reduce(torch.add, weights)
    unseen = total == 0
    total = total.masked_fill(unseen, 1.0)
    return [w / total for w in weights], (top + total.log()).masked_fill(unseen, -torch.inf)


def _check(outs: list[Tensor], lses: list[Tensor]) -> None:
    if not outs or len(outs) != len(lses):
        got = f"{len(outs)} outs and {len(lses)} lses"
        raise wrong_value("lses", "one for each of outs, and at least one", got)
    for name, tensors in (("outs", outs), ("lses", lses)):
        for n, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                raise wrong_type(f"{name}[{n}]", "a floating tensor", dtype_of(tensor))
            if tensor.dtype != tensors[0].dtype:
                wanted = f"{tensors[0].dtype}, as {name}[0] has"
                raise wrong_type(f"{name}[{n}]", wanted, tensor.dtype)
            check_device(f"{name}[{n}]", tensor, outs[0], "outs[0]")
    for n, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if out.dim() < 2 or out.shape != outs[0].shape:
            wanted = f"[..., L, Dv], all alike: {shape_of(outs[0])}"
            raise wrong_value(f"outs[{n}]", wanted, shape_of(out))
        if lse.shape != out.shape[:-1]:
            wanted = f"{list(out.shape[:-1])}, the shape of its out without Dv"
            raise wrong_value(f"lses[{n}]", wanted, shape_of(lse))
