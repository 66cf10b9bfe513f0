"""Slopes and key biases of a call: what its rows count from, what the passes read of both, and
their gradients."""

from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.lowered.numbers import Numbers
from relpos.gpu.pairs.softmax import LOG2E
from relpos.gpu.sums.targets import Targets
from relpos.gpu.terms.key_bias import KeyBias, key_score, sum_along
from relpos.gpu.terms.slopes import Nearest, Slopes, find_nearest, slope_score
from relpos.gpu.tiles import NEAREST

_BLOCK = 256  # of sum_along
_LARGEST = 1e30  # biases beyond stand for a mask, and rows do not count from them


class Lines:
    """Of one call, as `run` launches it.

    Attributes:
      terms: what the passes read, with the functions that add it to scores.
      nearest: what slopes count from, or None.
      wide: whether the passes hold numbers of each row or key for them.
      row_shift: float32 [B, H, Lq], by how much rows are less, in log2 units, or None.
    """

    def __init__(self, run: Any) -> None:
        self.run, self.slopes, self.keys = run, run.lowered.slopes, run.lowered.key_biases
        self.terms: list[Any] = []
        self.nearest = self.row_shift = None
        self.wide = False
        if not self.slopes and not self.keys:
            return
        distance = which = None
        # A softcap sees the scores themselves; and the nearest key of a query that sees its own
        # is at distance 0.
        at_zero = not self.keys and not run.problem.masks and run.lowered.sees_itself
        if not run.of_scores and run.lowered.softcap is None and run.keys and not at_zero:
            distance, which = self._nearest()
            self.row_shift = run.workspace(run.batch, run.heads, run.queries, dtype=torch.float64)
            self.row_shift.zero_()
        if self.slopes:
            self._add_slopes(distance)
        if self.keys:
            self._add_keys(which)
        if self.row_shift is not None:
            self.row_shift = self.row_shift.float()
        self.wide = bool(self.keys) or self.nearest is not None

    def trains_slopes(self, targets: Targets) -> bool:
        return any(targets.wants(n.parameter) for term in self.slopes for n in term.numbers())

    def trains_keys(self, targets: Targets) -> bool:
        return any(targets.wants(term.values.parameter) for term in self.keys)

    def write_slopes(
        self, lines: Tensor, rows: tuple[Tensor, Tensor | None, Tensor], targets: Targets
    ) -> None:
        """Of the sums [B, H, Lq, 4] that backward_queries wrote (line_sums); rows: the sum, dlse
        and softmax of each. The gradients of a row's scores and sinks add up to dlse, which says
        the sum on the side of the nearest key better than adding them up."""
        past, before, future, after = lines.double().unbind(-1)
        if self.nearest is not None:
            sums, dlse, softmax = rows
            total = self._sunk(softmax) * sums
            total = total if dlse is None else total + dlse
            distance = self.nearest.distance
            past = past + distance * torch.where(distance < 0, total - after, before)
            future = future + distance * torch.where(distance > 0, total - before, after)
        sides = [past.sum((0, 2)), future.sum((0, 2))]  # [H] each
        for term in self.slopes:
            for numbers, total in zip(term, sides, strict=True):
                if numbers is not None and targets.wants(numbers.parameter):
                    to = numbers.view(targets.to(numbers.parameter))
                    to.copy_(total * numbers.multiplier)

    def _sunk(self, softmax: Tensor) -> Tensor:
        """float64 [B, H, Lq]: the weights of all sinks."""
        reference, total = softmax.double().unbind(-1)
        found = torch.zeros_like(reference)
        for sink in self.run.lowered.sinks:
            values = self.run.lowered.parameters[sink.parameter].double()
            values = values if values.dim() == 3 else values[:, None]
            score = values * (sink.multiplier * LOG2E.value) - self.row_shift
            found += torch.exp2(score - reference) / total
        return found

    def write_keys(self, sums: Tensor, targets: Targets) -> None:
        """Of the sums [B, H, Lk] that backward_keys wrote."""
        for term in self.keys:
            if not targets.wants(term.values.parameter):
                continue
            to = term.values.view(targets.to(term.values.parameter))
            total = sums.double() if to.dim() == 3 else sums.sum(0, dtype=torch.float64)
            if term.cumulative:
                total = self._sums_along(total, reverse=True)
            to.copy_(total * term.values.multiplier)

    def _numbers(self, numbers: Numbers) -> Tensor:
        """float64."""
        return numbers.view(self.run.parameter(numbers)).double() * numbers.multiplier

    def _nearest(self) -> tuple[Tensor, Tensor]:
        """The distance of each row's nearest visible key, int64 [.., .., Lq], and which it is."""
        run, lowered = self.run, self.run.lowered
        if lowered.places is None and not run.problem.masks:
            lo, hi = lowered.intervals()
            at = torch.arange(run.queries, device=run.device) - lowered.shifts[:, None]
            which = torch.minimum(torch.maximum(at, lo), hi - 1)
            distance = torch.where(lo < hi, which - at, 0)
            return distance[:, None], which.clamp(0, run.keys - 1)[:, None]
        by_head = lowered.tiles is not None and lowered.tiles[0].shape[1] > 1
        heads = run.heads if lowered.mask is not None or by_head else 1
        distance, which = (
            run.workspace(run.batch, heads, run.queries, dtype=dtype)
            for dtype in (torch.int64, torch.int32)
        )
        run.launch(
            find_nearest,
            (run.batch * heads * triton.cdiv(run.queries, NEAREST.queries),),
            NEAREST,
            distance=distance,
            which=which,
            problem=run.problem,
            heads=heads,
            queries=run.queries,
            keys=run.keys,
            CONFIG=run.config(NEAREST),
        )
        return distance, which.long()

    def _add_slopes(self, distance: Tensor | None) -> None:
        run = self.run
        both = torch.zeros(2, run.heads, dtype=torch.float64, device=run.device)
        for term in self.slopes:
            for side, numbers in zip(both, term, strict=True):
                if numbers is not None:
                    side += self._numbers(numbers)
        both *= LOG2E.value
        if distance is not None:
            self.nearest = Nearest(distance.contiguous(), *_shared(distance))
            past, future = both[..., None]
            self.row_shift += torch.where(distance < 0, past * distance, future * distance)
        slopes = torch.cat([both, both.sum(0, keepdim=True)]).float()
        self.terms.append((Slopes(slopes, run.heads, self.nearest), slope_score))

    def _add_keys(self, which: Tensor | None) -> None:
        run = self.run
        whole = torch.zeros(1, run.heads, run.keys, dtype=torch.float64, device=run.device)
        for term in self.keys:
            numbers = self._numbers(term.values)
            whole = whole + (self._sums_along(numbers) if term.cumulative else numbers)
        whole *= LOG2E.value
        rows = (None, None)
        if which is not None:
            at = which.expand(run.batch, run.heads, run.queries)
            own = whole.expand(run.batch, run.heads, run.keys).gather(2, at)
            own = torch.where(own.abs() < _LARGEST, own, 0.0)
            self.row_shift += own
            rows = _two(own)
        term = KeyBias(*_two(whole), _shared(whole)[0], run.heads, *rows)
        self.terms.append((term, key_score))

    def _sums_along(self, x: Tensor, reverse: bool = False) -> Tensor:
        x, to = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        if x.numel():
            self.run.launch(
                sum_along,
                (x.numel() // x.shape[-1],),
                None,
                to=to,
                x=x,
                length=x.shape[-1],
                row_stride=x.shape[-1],
                column_stride=1,
                BLOCK=_BLOCK,
                REVERSE=reverse,
            )
        return to


def _shared(x: Tensor) -> tuple[int, int]:
    """The elements between two batch rows and heads of x [.., .., L], 0 where all share theirs."""
    batch, heads, length = x.shape
    return (heads * length if batch > 1 else 0), (length if heads > 1 else 0)


def _two(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 numbers whose sums are those of float64 x, but for 2^-48 of them."""
    big = x.float()
    small = torch.where(big.isfinite(), x - big.double(), 0.0).float()
    return big.contiguous(), small.contiguous()
