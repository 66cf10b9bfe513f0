"""relpos.merge: attention over disjoint sets of keys, joined into one softmax."""

from collections.abc import Sequence

import torch
from torch import Tensor

from relpos._memory import check_device


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
    wide = lses[0].dtype
    top = lses[0].detach()
    for lse in lses[1:]:
        top = torch.maximum(top, lse.detach())
    top = top.masked_fill(torch.isneginf(top), 0.0)
    total, joined = None, None
    for out, lse in zip(outs, lses, strict=True):
        weight = torch.exp(lse - top)
        # A set without a key for this query is selected away, since 0 times NaN would be NaN.
        seen = out.to(wide).masked_fill(torch.isneginf(lse).unsqueeze(-1), 0.0)
        part = seen * weight.unsqueeze(-1)
        total = weight if total is None else total + weight
        joined = part if joined is None else joined + part
    unseen = total == 0
    total = total.masked_fill(unseen, 1.0)
    lse = (top + torch.log(total)).masked_fill(unseen, -torch.inf)
    return (joined / total.unsqueeze(-1)).to(outs[0].dtype), lse


def _check(outs: list[Tensor], lses: list[Tensor]) -> None:
    if not outs or len(outs) != len(lses):
        raise ValueError(
            f"lses: expected one for each of outs, and at least one, got {len(outs)} outs and "
            f"{len(lses)} lses"
        )
    for name, tensors in (("outs", outs), ("lses", lses)):
        for n, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(f"{name}[{n}]: expected a floating tensor, got {got}")
            if tensor.dtype != tensors[0].dtype:
                raise TypeError(
                    f"{name}[{n}]: expected {tensors[0].dtype}, as {name}[0] has, got "
                    f"{tensor.dtype}"
                )
            check_device(f"{name}[{n}]", tensor, outs[0], "outs[0]")
    for n, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if out.dim() < 2 or out.shape != outs[0].shape:
            raise ValueError(
                f"outs[{n}]: expected [..., L, Dv], all alike: {list(outs[0].shape)}, got "
                f"{list(out.shape)}"
            )
        if lse.shape != out.shape[:-1]:
            raise ValueError(
                f"lses[{n}]: expected {list(out.shape[:-1])}, the shape of its out without Dv, "
                f"got {list(lse.shape)}"
            )
