"""A distance bias of a call, whose table is a parameter."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.numbers import Numbers, numbers_of
from relpos.gpu.problem import Places


class Along(NamedTuple):
    """An axis of coordinates [B, axes, L], or [B, L], of queries and of keys."""

    q: Numbers
    k: Numbers
    axis: int

    def places(self, parameters: Sequence[Tensor]) -> Places:
        """Where the tokens of each batch row stand on it."""
        both = (numbers.view(parameters[numbers.parameter]) for numbers in (self.q, self.k))
        q, k = (x if x.dim() == 2 else x[:, self.axis] for x in both)
        q, k = q.contiguous(), k.contiguous()
        return Places(q, k, *(x.shape[1] if len(x) > 1 else 0 for x in (q, k)))


class TableBias(NamedTuple):
    """table[h, m(delta)] of [H, M]; along: whose distance delta is, None of positions."""

    map: ClassMap
    table: Numbers
    along: Along | None

    @classmethod
    def of(cls, lowered: Any) -> "TableBias":
        """As _core.lower says it."""
        map_, table, q, k, axis = lowered
        along = None if q is None else Along(numbers_of(q), numbers_of(k), axis)
        return cls(ClassMap(*map_), numbers_of(table), along)
