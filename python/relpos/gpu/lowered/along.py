"""Where tokens stand for a term that is not read by their positions."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos.gpu.device import uploaded
from relpos.gpu.lowered.numbers import Numbers, numbers_of
from relpos.gpu.problem import Places, places_of


class Along(NamedTuple):
    """On an axis of coordinates [B, axes, L], or [B, L], of queries and of keys; or `at` int64
    [1 or B, Lq] and [1 or B, Lk], on the CPU."""

    q: Numbers | None
    k: Numbers | None
    axis: int
    at: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, lowered: Any, lengths: tuple[int, int]) -> "Along | None":
        """As _core.lower says it, of a call of so many queries and keys."""
        if lowered is None:
            return None
        q, k, axis, *both = lowered
        at = None
        if q is None:
            each = (
                torch.tensor(numbers, dtype=torch.int64, device="cpu")
                for numbers in both
            )
            first, second = (x.view(-1, n) if n else x.view(1, 0) for x, n in zip(each, lengths, strict=True))
            at = first, second
        return cls(numbers_of(q), numbers_of(k), axis, at)

    def places(self, lowered: Any) -> Places:
        """Of the queries and keys of a Lowered."""
        if self.at is not None:
            device = lowered.device
            q, k = (uploaded(x, device) for x in self.at)
            return places_of(lowered.own(q), k)
        both = (numbers.view(lowered.parameters[numbers.parameter]) for numbers in (self.q, self.k))
        q, k = (x if x.dim() == 2 else x[:, self.axis] for x in both)
        return places_of(q.contiguous(), k.contiguous())
