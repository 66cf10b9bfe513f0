"""The tensors of which a score_mod consists, and their values at many pairs."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import wrong_value
from relpos._flex.notes import Notes
from relpos._flex.score import Record, Score, Unfit
from relpos._flex.sources import Indexing

# Of a record: everything but its tensors, which is the same at every pair.
Structure = tuple[Any, ...]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Changed(ValueError):
    """A function that does otherwise than when it was traced."""


class Pieces:
    """A score_mod as a function of a pair: what it adds to the score, what it adds after a softcap,
    and the conditions under which a pair is seen, one after another; with notes, then the codes
    of Notes, and the summands of each tensor that it adds to the score."""

    def __init__(self, score_mod: ScoreMod, dtype: torch.dtype, notes: bool = False) -> None:
        self.score_mod, self.dtype, self.notes = score_mod, dtype, notes
        self.record = Record()  # of the last pair
        self.noted: tuple[int, ...] = ()  # how many codes, and how many summands of each tensor

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> tuple[Tensor, ...]:
        score = Score.of(Record(), self.dtype, q_idx.device)
        notes = Notes(b, h, q_idx, kv_idx) if self.notes else None
        with notes or contextlib.nullcontext():
            changed = self.score_mod(score, b, h, q_idx, kv_idx)
        if not isinstance(changed, Score):
            then = "return torch.where(cond, score, -inf) for a mask, score + bias for a bias"
            raise Unfit("a result without the score", then)
        self.record = record = changed.record
        found = (*(x for _, x in record.bias), *(x for _, x in record.after), *record.seen)
        if notes is None:
            return found
        summands = [notes.summands(x, self.dtype) for _, x in record.bias]
        self.noted = (len(notes.codes), *map(len, summands))
        return (*found, *notes.codes, *(x for parts in summands for x in parts))

    @property
    def structure(self) -> Structure:
        bias, after = ([by for by, _ in pieces] for pieces in (self.record.bias, self.record.after))
        return (*self.record[:2], tuple(bias), self.record.cap, tuple(after), len(self.record.seen))

    def check(self, structure: Structure, noted: tuple[int, ...]) -> None:
        """Raises Changed where the last pair had another structure than when it was traced."""
        if self.structure != structure or (self.notes and self.noted != noted):
            wanted = "the function as it was when it was lowered"
            got = "other numbers or parts: lower it again"
            raise Changed(str(wrong_value("score_mod", wanted, got)))


def total(
    pieces: Pieces,
    structure: Structure,
    noted: tuple[int, ...],
    chosen: Sequence[tuple[int, float]],
    constant: float = 0.0,
    seen: Sequence[int] = (),
) -> Callable[..., Tensor]:
    """As a function of a pair: constant and the chosen pieces, each with its place and its factor,
    added up, -inf where one of the conditions at the places of `seen` is False."""

    def one(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        found = pieces(b, h, q_idx, kv_idx)
        pieces.check(structure, noted)
        added = torch.full((), constant, dtype=pieces.dtype, device=q_idx.device)
        for place, factor in chosen:
            added = added + (found[place] if factor == 1.0 else factor * found[place])
        for place in seen:
            added = torch.where(found[place], added, -torch.inf)
        return added

    return one


def over(
    function: Callable[..., Any],
    b: Tensor,
    h: Tensor,
    q_idx: Tensor,
    kv_idx: Tensor,
    *,
    paired: bool = False,
) -> Any:
    """A function of one pair at all batch rows, heads, queries and keys, with an axis in this order
    for each that has one; paired: at q_idx and kv_idx one by one, on one axis."""
    if paired:
        function = torch.vmap(function, in_dims=(None, None, 0, 0))
    else:
        function = _along(_along(function, 3, kv_idx), 2, q_idx)
    function = _along(_along(function, 1, h), 0, b)
    with Indexing(), torch.autocast(q_idx.device.type, enabled=False):
        return function(b, h, q_idx, kv_idx)


def _along(function: Callable[..., Any], axis: int, index: Tensor) -> Callable[..., Any]:
    if not index.dim():
        return function
    return torch.vmap(function, in_dims=tuple(0 if n == axis else None for n in range(4)))
