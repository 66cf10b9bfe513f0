"""The tensors of which a score_mod consists, and their values at many pairs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import wrong_value
from relpos._flex.score import Record, Score, Unfit
from relpos._flex.sources import Indexing

# Of a record: everything but its tensors, which is the same at every pair.
Structure = tuple[Any, ...]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Changed(ValueError):
    """A function that does otherwise than when it was traced."""


class Pieces:
    """A score_mod as a function of a pair: what it adds to the score, what it adds after a softcap,
    and the conditions under which a pair is seen, one after another."""

    def __init__(self, score_mod: ScoreMod, dtype: torch.dtype) -> None:
        self.score_mod, self.dtype = score_mod, dtype
        self.record = Record()  # of the last pair

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> tuple[Tensor, ...]:
        score = Score.of(Record(), self.dtype, q_idx.device)
        changed = self.score_mod(score, b, h, q_idx, kv_idx)
        if not isinstance(changed, Score):
            then = "return torch.where(cond, score, -inf) for a mask, score + bias for a bias"
            raise Unfit("a result without the score", then)
        self.record = record = changed.record
        return (*(x for _, x in record.bias), *(x for _, x in record.after), *record.seen)

    @property
    def structure(self) -> Structure:
        bias, after = ([by for by, _ in pieces] for pieces in (self.record.bias, self.record.after))
        return (*self.record[:2], tuple(bias), self.record.cap, tuple(after), len(self.record.seen))


def total(
    pieces: Pieces,
    structure: Structure,
    chosen: Sequence[tuple[int, float]],
    constant: float = 0.0,
    seen: Sequence[int] = (),
) -> Callable[..., Tensor]:
    """As a function of a pair: constant and the chosen pieces, each with its place and its factor,
    added up, -inf where one of the conditions at the places of `seen` is False."""

    def one(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        found = pieces(b, h, q_idx, kv_idx)
        if pieces.structure != structure:
            wanted = "the function as it was when it was lowered"
            got = "other numbers or parts: lower it again"
            raise Changed(str(wrong_value("score_mod", wanted, got)))
        added = torch.full((), constant, dtype=pieces.dtype, device=q_idx.device)
        for place, factor in chosen:
            added = added + (found[place] if factor == 1.0 else factor * found[place])
        for place in seen:
            added = torch.where(found[place], added, -torch.inf)
        return added

    return one


def over(
    function: Callable[..., Tensor],
    b: Tensor,
    h: Tensor,
    q_idx: Tensor,
    kv_idx: Tensor,
    *,
    paired: bool = False,
) -> Tensor:
    """A function of one pair at all batch rows, heads, queries and keys, with an axis in this order
    for each that has one; paired: at q_idx and kv_idx one by one, on one axis."""
    if paired:
        function = torch.vmap(function, in_dims=(None, None, 0, 0))
    else:
        function = _along(_along(function, 3, kv_idx), 2, q_idx)
    function = _along(_along(function, 1, h), 0, b)
    with Indexing(), torch.autocast(q_idx.device.type, enabled=False):
        return function(b, h, q_idx, kv_idx)


def _along(function: Callable[..., Tensor], axis: int, index: Tensor) -> Callable[..., Tensor]:
    if not index.dim():
        return function
    return torch.vmap(function, in_dims=tuple(0 if n == axis else None for n in range(4)))
