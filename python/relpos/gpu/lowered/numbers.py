"""Where numbers of a term lie."""

from typing import Any, NamedTuple

from torch import Tensor


class Numbers(NamedTuple):
    """multiplier * a parameter, of whose axes `chosen` ones went, with the entry that stayed, and
    the rest stand in the order of `axes`, in which -1 is an axis of size 1."""

    parameter: int
    axes: tuple[int, ...]
    chosen: tuple[tuple[int, int], ...]
    multiplier: float

    def view(self, parameter: Tensor) -> Tensor:
        """The numbers, or their gradient, in the parameter or in the parameter's."""
        gone = [axis for axis, _ in self.chosen]
        for axis, entry in self.chosen:
            parameter = parameter.narrow(axis, entry, 1)
        found = parameter.permute([*(axis for axis in self.axes if axis >= 0), *gone])
        found = found[(..., *(0 for _ in gone))]
        for n, axis in enumerate(self.axes):
            found = found.unsqueeze(n) if axis < 0 else found
        return found


def numbers_of(lowered: Any) -> Numbers | None:
    if lowered is None:
        return None
    parameter, axes, chosen, multiplier = lowered
    return Numbers(parameter, tuple(axes), tuple(chosen), multiplier)
