"""Tables of rows as relpos._core.lower says them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.delta import Delta, delta_of
from relpos.gpu.lowered.numbers import Numbers, numbers_of
from relpos.gpu.lowered.projections import Projected
from relpos.gpu.sums.targets import Targets


class Table(NamedTuple):
    """scale <a_i, table[m(delta)]>, of a table [M, r] or [H, M, r], and a_i the query or `factor`
    [B, H, Lq, r], plus `added` [H, r]; or the same of the key or a factor [B, Hk, Lk, r]. delta is
    a distance of positions where it is None."""

    map: ClassMap
    table: Numbers
    factor: Numbers | None
    added: Numbers | None
    scale: float
    delta: Delta

    @classmethod
    def of(
        cls,
        lowered: Any,
        heads: int,
        lengths: tuple[int, int],
        project: Callable[[Projected], Numbers],
    ) -> "Table":
        """As _core.lower says it, of a call with so many heads, queries and keys; project: the
        numbers of a table that is computed."""
        map_, table, factor, added, scale, delta, width, features = lowered
        found: Any = numbers_of(table)
        if width:
            features = torch.frombuffer(bytearray(features), dtype=torch.float64)
            found = project(Projected(found, features.view(-1, width), heads))
        more = numbers_of(factor), numbers_of(added), scale
        return cls(ClassMap(*map_), found, *more, delta_of(delta, lengths))

    def trains(self, factor: Tensor | None, targets: Targets) -> bool:
        """Whether gradients are wanted of what it reads; `factor`: where that of the queries is."""
        of_factor = factor is not None and self.factor is None
        return of_factor or any(targets.wants(each.parameter) for each in self.numbers())

    def numbers(self) -> list[Numbers]:
        return [each for each in (self.table, self.factor, self.added) if each is not None]

    def strides(self, table: Tensor) -> dict[str, int]:
        """Between heads, 0 where they share the table, classes and columns of a view of it."""
        head = table.stride(0) if table.dim() == 3 else 0
        return {
            "head_stride": head,
            "class_stride": table.stride(-2),
            "column_stride": table.stride(-1),
        }
