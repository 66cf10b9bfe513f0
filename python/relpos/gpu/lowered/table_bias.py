"""A distance bias of a call, whose table is a parameter."""

from typing import Any, NamedTuple

from relpos.gpu.lowered.along import Along
from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.numbers import Numbers, numbers_of


class TableBias(NamedTuple):
    """table[h, m(delta)] of [H, M]; along: whose distance delta is, None of positions."""

    map: ClassMap
    table: Numbers
    along: Along | None

    @classmethod
    def of(cls, lowered: Any, lengths: tuple[int, int]) -> "TableBias":
        """As _core.lower says it, of a call of so many queries and keys."""
        map_, table, along = lowered
        return cls(ClassMap(*map_), numbers_of(table), Along.of(along, lengths))
