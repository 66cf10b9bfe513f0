"""Which row of a table a distance reads."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_KEPT = 256
_FARTHEST = 2**62  # no distance is farther from 0


class ClassMap:
    """m(delta): classes[n] for starts[n - 1] <= delta < starts[n], -1 is none."""

    def __init__(self, starts: Sequence[int], classes: Sequence[int]) -> None:
        reached = [n for n, start in enumerate(starts) if -_FARTHEST + 1 < start < _FARTHEST]
        passed = sum(start <= -_FARTHEST + 1 for start in starts)
        starts = [starts[n] for n in reached]
        classes = classes[passed : passed + len(reached) + 1]
        self.starts = torch.tensor(starts, dtype=torch.int64, device="cpu")
        self._classes = torch.tensor(classes, dtype=torch.int32, device="cpu")
        # Before lo and after hi the class stays as it is there.
        self.lo, self.hi = (starts[0] - 1, starts[-1]) if starts else (0, 1)
        self._held: dict[Any, Any] = {}

    def classes(self, lo: int, hi: int, device: torch.device) -> Tensor:
        """int32 [hi - lo + 1]: the classes of the distances lo, ..., hi."""
        return self.kept(("classes", lo, hi, device), lambda: self._between(lo, hi).to(device))

    def _between(self, lo: int, hi: int) -> Tensor:
        return self._at(torch.arange(lo, hi + 1, device="cpu"))

    def _at(self, distances: Tensor) -> Tensor:
        return self._classes[torch.searchsorted(self.starts, distances, right=True)]

    def cells(
        self,
        lo: int,
        hi: int,
        rows: int,
        device: torch.device,
        runs_of: "tuple[ClassMap, ...] | None" = None,
    ) -> tuple[Tensor, Tensor, int]:
        """The cells of each class: (cells, starts, longest), int32. Those of class m are
        cells[starts[m]], ..., cells[starts[m + 1] - 1], at most `longest`. A cell is one of the
        distances lo, ..., hi, less lo, or of the runs of maps, this among them (edges)."""

        def listed() -> tuple[Tensor, Tensor, int]:
            at = (
                torch.arange(lo, hi + 1, device="cpu")
                if runs_of is None
                else edges(runs_of, lo, hi)
            )
            ordered, cells = self._at(at).sort(stable=True)
            classes = torch.arange(rows + 1, dtype=torch.int32, device="cpu")
            starts = torch.searchsorted(ordered, classes)
            longest = int(starts.diff().max())
            return cells.int().to(device), starts.int().to(device), longest

        of_runs = None if runs_of is None else tuple(map(id, runs_of))  # which one plan keeps
        return self.kept(("cells", lo, hi, rows, device, of_runs), listed)

    def kept(self, key: Any, make: Any) -> Any:
        """What `make` makes; threads may make it twice."""
        found = self._held.get(key)
        if found is None:
            if len(self._held) >= _KEPT:
                self._held.clear()
            found = self._held[key] = make()
        return found


def edges(maps: Sequence[ClassMap], lo: int, hi: int) -> Tensor:
    """int64 [W], ascending: the first distances of the runs from lo to hi within which no map
    changes. The first run is lo alone, the last hi."""
    own = torch.tensor([lo, lo + 1, hi], dtype=torch.int64, device="cpu")
    found = torch.cat([own, *(each.starts for each in maps)]).unique()
    return found[(found >= lo) & (found <= hi)]


def edges_on(maps: tuple[ClassMap, ...], lo: int, hi: int, device: torch.device) -> Tensor:
    """The same on a device."""
    key = "edges", tuple(map(id, maps)), lo, hi, device
    return maps[0].kept(key, lambda: edges(maps, lo, hi).to(device))
