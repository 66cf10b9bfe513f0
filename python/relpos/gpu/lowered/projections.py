"""Tables of rows that are projected from features of the distance. Each is computed once for a
call, whose parameters it joins, and its gradient is projected back once."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relpos.gpu.device import uploaded
from relpos.gpu.lowered.numbers import Numbers


class Projected(NamedTuple):
    """A table [H, M, D] of weights [H D, width] or [H, D, width] and features float64 [M, width],
    on the CPU. It is computed in float64, so that no switch of torch rounds what it reads."""

    weights: Numbers
    features: Tensor
    heads: int

    def table(self, parameters: Sequence[Tensor]) -> Tensor:
        """float32."""
        parameter = parameters[self.weights.parameter]
        weights = self.weights.view(parameter).double() * self.weights.multiplier
        weights = weights.reshape(self.heads, -1, self.features.shape[1])
        return (uploaded(self.features, parameter.device) @ weights.mT).float()

    def add_gradient(self, gradient: Tensor, of_table: Tensor) -> None:
        """To that of the parameter, from the table's."""
        found = of_table.double().mT @ uploaded(self.features, gradient.device)
        to = self.weights.view(gradient)
        to.copy_(to.double() + found.reshape(to.shape) * self.weights.multiplier)


def new_gradients(
    projections: Sequence[Projected], tables: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """For the gradients of tables, where those of their parameters are wanted."""
    wanted = (gradients[each.weights.parameter] is not None for each in projections)
    return [torch.empty_like(x) if own else None for x, own in zip(tables, wanted, strict=True)]


def pull_back(
    projections: Sequence[Projected],
    of_tables: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> None:
    """Adds to the gradients of parameters what those of the tables give."""
    for each, of_table in zip(projections, of_tables, strict=True):
        to = gradients[each.weights.parameter]
        if of_table is not None and to is not None:
            each.add_gradient(to, of_table)
