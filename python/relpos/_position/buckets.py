"""relpos.Buckets: which row of a table belongs to a distance."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.arguments import flag, integer, one_of
from relpos._base.errors import dtype_of, shape_of, wrong_type, wrong_value


class Buckets:
    """The class of each distance, as a value: buckets(distance) gives classes from int64
    distances, and relpos.terms read their tables by it.

    Make one by clamp, window, runs, of or t5. It compares by value, hashes and pickles. -1 is the
    class of a distance that has none.
    """

    __slots__ = ("_numbers", "_tensors")

    def __init__(self, kind: str, numbers: tuple[Any, ...]) -> None:
        self._numbers = (kind, *numbers)
        self._tensors = tuple(
            torch.tensor(n, dtype=torch.int64, device="cpu")
            for n in (numbers if kind == "runs" else ())
        )

    @staticmethod
    def clamp(lo: int, hi: int, reversed: bool = False) -> "Buckets":
        """Class clamp(distance, lo, hi) - lo; with `reversed`, class 0 is that of hi."""
        return Buckets("clamp", (*interval(lo, hi), flag("reversed", reversed)))

    @staticmethod
    def window(lo: int, hi: int, reversed: bool = False) -> "Buckets":
        """As clamp, but distances outside lo ... hi have no class."""
        return Buckets("window", (*interval(lo, hi), flag("reversed", reversed)))

    @staticmethod
    def runs(starts: Sequence[int], classes: Sequence[int]) -> "Buckets":
        """Sorted runs of distances: classes[n] from starts[n - 1] on and below starts[n], and
        classes[0] before the first start; one class more than starts, -1 for none."""
        first = [integer("starts", start) for start in starts]
        found = [integer("classes", number, -1) for number in classes]
        if len(found) != len(first) + 1:
            raise wrong_value("classes", f"{len(first) + 1}, one more than starts", len(found))
        if sorted(first) != first:
            raise wrong_value("starts", "distances that never decrease", first)
        return Buckets("runs", (tuple(first), tuple(found)))

    @staticmethod
    def of(
        function: Callable[[Tensor], Tensor], lo: int, hi: int, outside: str = "clamp"
    ) -> "Buckets":
        """The classes that a function gives to the distances lo ... hi.

        function: called once, with int64 [hi - lo + 1], ascending; returns int64 of that shape,
        -1 for none. outside: the class of other distances: that of the nearest ("clamp") or none
        ("none").
        """
        lo, hi = interval(lo, hi)
        one_of("outside", outside, ("clamp", "none"))
        found = function(torch.arange(lo, hi + 1, device="cpu"))
        if not isinstance(found, Tensor) or found.dtype != torch.int64:
            then = "round it, and convert it with .long()"
            raise wrong_type(
                "Buckets.of: function", "an int64 tensor of classes", dtype_of(found), then
            )
        if found.shape != (hi - lo + 1,):
            wanted = f"[{hi - lo + 1}], a class of each distance"
            raise wrong_value("Buckets.of: function", wanted, shape_of(found))
        if outside == "none":
            none = found.new_full((1,), -1)
            found, lo = torch.cat([none, found, none]), lo - 1
        changes = (found[1:] != found[:-1]).nonzero().flatten() + 1
        starts = [lo + n for n in changes.tolist()]
        return Buckets.runs(starts, found[[0, *changes.tolist()]].tolist())

    @staticmethod
    def t5(buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> "Buckets":
        """T5's: exact up to a half (a quarter) of the buckets, then logarithmic up to max_distance
        (Raffel et al. 2020, section 2.1). The options are those of relpos.T5Bias."""
        buckets, far = integer("buckets", buckets, 1), integer("max_distance", max_distance, 1)
        sides = str(flag("bidirectional", bidirectional)).lower()
        text = f"t5(heads=1, buckets={buckets}, max_distance={far}, bidirectional={sides})"

        def of_t5(distance: Tensor) -> Tensor:
            found = torch.empty(1, len(distance), dtype=torch.int64, device="cpu")
            _core.indices(text, 1, len(distance), far, [torch.zeros(buckets, 1)], found)
            return found[0]

        return Buckets.of(of_t5, -far, far)

    @property
    def classes(self) -> int:
        """How many classes there are: the rows that a table must have."""
        kind, *numbers = self._numbers
        return max(numbers[1]) + 1 if kind == "runs" else numbers[1] - numbers[0] + 1

    def __call__(self, distance: Tensor) -> Tensor:
        """int64, the class of each distance (key - query), -1 where it has none."""
        if not isinstance(distance, Tensor) or distance.dtype != torch.int64:
            raise wrong_type("distance", "an int64 tensor", dtype_of(distance))
        kind, *numbers = self._numbers
        if kind == "runs":
            starts, classes = (t.to(distance.device) for t in self._tensors)
            return classes[torch.searchsorted(starts, distance, right=True)]
        lo, hi, reverse = numbers
        inside = distance.clamp(lo, hi)
        found = hi - inside if reverse else inside - lo
        return found if kind == "clamp" else found.where(inside == distance, -1)

    def _map(self) -> tuple[str, dict[str, Tensor]]:
        """The options and the inputs by which a term of the registry has this map."""
        kind, *numbers = self._numbers
        if kind == "runs":
            return "map=runs", dict(zip(("starts", "classes"), self._tensors, strict=True))
        first = torch.tensor(numbers[:1], dtype=torch.int64, device="cpu")
        return f"map={kind}, reversed={str(numbers[2]).lower()}", {"first": first}

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Buckets) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    def __reduce__(self) -> Any:
        return Buckets, (self._numbers[0], self._numbers[1:])

    def __repr__(self) -> str:
        kind, *numbers = self._numbers
        if kind == "runs":
            return f"Buckets.runs({len(numbers[0])} starts, {self.classes} classes)"
        reverse = ", reversed=True" if numbers[2] else ""
        return f"Buckets.{kind}({numbers[0]}, {numbers[1]}{reverse})"


def interval(lo: Any, hi: Any, *, of: str = "") -> tuple[int, int]:
    """Two distances, the second not before the first; of: in front of their names in errors."""
    lo, hi = integer(f"{of}lo", lo), integer(f"{of}hi", hi)
    if hi < lo:
        raise wrong_value(f"{of}hi", f"a distance from lo = {lo} on", hi)
    return lo, hi
