"""Where the gradients of a position's parameters are written."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor


class Targets:
    """Of the gradients that are wanted, None for others. Those of `shared` parameters are sums of
    what several terms write, or of what a term writes a part of; those that no term writes are
    0."""

    def __init__(self, gradients: Sequence[Tensor | None], shared: Collection[int]) -> None:
        self._gradients, self._shared = gradients, shared
        self._written: dict[int, list[Tensor]] = {}

    def wants(self, parameter: int) -> bool:
        return self._gradients[parameter] is not None

    def to(self, parameter: int) -> Tensor:
        """Of a gradient that is wanted, for one term to write."""
        wanted = self._gradients[parameter]
        made = self._written.setdefault(parameter, [])
        shared = parameter in self._shared
        made.append(torch.zeros_like(wanted, dtype=torch.float32) if shared else wanted)
        return made[-1]

    def finish(self) -> None:
        for parameter, wanted in enumerate(self._gradients):
            if wanted is None:
                continue
            written = self._written.get(parameter)
            if written is None:
                wanted.zero_()
            elif parameter in self._shared:
                for more in written[1:]:
                    written[0] += more
                wanted.copy_(written[0])
