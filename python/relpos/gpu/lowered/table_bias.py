"""A distance bias of a call, whose table is a parameter."""

from typing import Any, NamedTuple

from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.delta import Delta, delta_of
from relpos.gpu.lowered.numbers import Numbers, numbers_of


class TableBias(NamedTuple):
    """table[h, m(delta)] of [H, M], or [1, M] for all heads; delta is a distance of positions where
    it is None."""

    map: ClassMap
    table: Numbers
    delta: Delta

    @classmethod
    def of(cls, lowered: Any, lengths: tuple[int, int]) -> "TableBias":
        """As _core.lower says it, of a call of so many queries and keys."""
        map_, table, delta = lowered
        return cls(ClassMap(*map_), numbers_of(table), delta_of(delta, lengths))
