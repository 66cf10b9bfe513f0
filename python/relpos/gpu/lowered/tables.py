"""Tables of rows as relpos._core.lower says them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos.gpu.device import uploaded
from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.delta import Delta, delta_of
from relpos.gpu.lowered.numbers import Numbers, numbers_of
from relpos.gpu.sums.targets import Targets


class Projected(NamedTuple):
    """A table [H, M, D] of weights [H D, width] or [H, D, width] and features float64 [M, width],
    on the CPU. It is computed in float64, so that no switch of torch rounds what it reads."""

    weights: Numbers
    features: Tensor
    heads: int

    @property
    def parameter(self) -> int:
        return self.weights.parameter

    @property
    def chosen(self) -> tuple[tuple[int, int], ...]:
        return self.weights.chosen

    @property
    def multiplier(self) -> float:
        """Of the table."""
        return 1.0

    def view(self, parameter: Tensor) -> Tensor:
        """The table, float32."""
        weights = self.weights.view(parameter).double() * self.weights.multiplier
        weights = weights.reshape(self.heads, -1, self.features.shape[1])
        return (uploaded(self.features, parameter.device) @ weights.mT).float()

    def write_gradient(self, gradient: Tensor, of_table: Tensor) -> None:
        """Of the parameter, from the table's."""
        found = of_table.double().mT @ uploaded(self.features, gradient.device)
        to = self.weights.view(gradient)
        to.copy_(found.reshape(to.shape) * self.weights.multiplier)


class Table(NamedTuple):
    """scale <a_i, table[m(delta)]>, of a table [M, r] or [H, M, r], and a_i the query or `factor`
    [B, H, Lq, r], plus `added` [H, r]; or the same of the key or a factor [B, Hk, Lk, r]. delta is
    a distance of positions where it is None."""

    map: ClassMap
    table: Numbers | Projected
    factor: Numbers | None
    added: Numbers | None
    scale: float
    delta: Delta

    @classmethod
    def of(cls, lowered: Any, heads: int, lengths: tuple[int, int]) -> "Table":
        """As _core.lower says it, of a call with so many heads, queries and keys."""
        map_, table, factor, added, scale, delta, width, features = lowered
        found: Any = numbers_of(table)
        if width:
            features = torch.frombuffer(bytearray(features), dtype=torch.float64)
            found = Projected(found, features.view(-1, width), heads)
        more = numbers_of(factor), numbers_of(added), scale
        return cls(ClassMap(*map_), found, *more, delta_of(delta, lengths))

    def trains(self, factor: Tensor | None, targets: Targets) -> bool:
        """Whether gradients are wanted of what it reads; `factor`: where that of the queries is."""
        of_factor = factor is not None and self.factor is None
        return of_factor or any(targets.wants(each.parameter) for each in self.numbers())

    def numbers(self) -> list[Numbers | Projected]:
        return [each for each in (self.table, self.factor, self.added) if each is not None]

    def strides(self, table: Tensor) -> dict[str, int]:
        """Between heads, 0 where they share the table, classes and columns of a view of it."""
        head = table.stride(0) if table.dim() == 3 else 0
        return {
            "head_stride": head,
            "class_stride": table.stride(-2),
            "column_stride": table.stride(-1),
        }
