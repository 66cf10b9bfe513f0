"""Tables of distances that C++ computes from few numbers: formulas, networks and fixed tables. The
numbers are copied to the CPU, which waits for the device, the tables computed there in float64 and
uploaded; their gradients go the same way back."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos import _core
from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.sums.targets import Targets

# Tensors of a call that say where tokens stand, and those of which no table depends.
OFFSETS = ("q_offsets", "k_offsets")
PLACING = (*OFFSETS, "q_positions", "k_positions")
_UNREAD = {"attn_mask": None, "key_padding_mask": None, "key_lo": None, "key_hi": None}
_UNREAD |= {"dropout_p": 0.0, "seed": None, "tile_ranges": None, "tile_entries": None}
_UNREAD |= {"tile_words": None, "tile_lengths": None}


class ComputedTerm(NamedTuple):
    """b[h, m(delta)] of a table [heads, M], heads H or 1, from the parameters of its part."""

    map: ClassMap
    heads: int
    parameters: tuple[int, ...]

    @classmethod
    def of(cls, lowered: Any) -> "ComputedTerm":
        """As _core.lower says it."""
        map_, heads, first, last = lowered
        return cls(ClassMap(*map_), heads, tuple(range(first, last)))


def placed_on_cpu(call: Any) -> Any:
    """The call with the tensors that say where tokens stand on the CPU, and without what no table
    depends on."""
    given = {name: getattr(call, name) for name in PLACING}
    held = {name: None if x is None else x.cpu() for name, x in given.items()}
    return call._replace(**_UNREAD, **held)


class Computed:
    """All such tables of a call. Those of the numbers that came last are kept."""

    def __init__(self, terms: Sequence[ComputedTerm]) -> None:
        self.terms = terms
        self._read = sorted({n for term in terms for n in term.parameters})
        self._held: tuple[Any, list[Tensor]] = (None, [])

    def tables(self, inputs: Sequence[Tensor], call: Any) -> list[Tensor]:
        """float32 [heads, M], of query, key and value, on their device."""
        if not self.terms:
            return []
        numbers, device = self._numbers(call), inputs[0].device
        bits = (numbers[n].contiguous().view(-1).view(torch.uint8) for n in self._read)
        known = (device, *(x.numpy().tobytes() for x in bits))
        if self._held[0] != known:
            own = placed_on_cpu(call)._replace(parameters=numbers)
            found = _core.computed_tables(*inputs, own)
            made = [
                torch.frombuffer(bytearray(table), dtype=torch.float64).view(term.heads, -1)
                for term, table in zip(self.terms, found, strict=True)
            ]
            self._held = known, [table.float().to(device) for table in made]
        return self._held[1]

    def trains(self, targets: Targets) -> bool:
        return any(targets.wants(n) for n in self._read)

    def pull_back(
        self, inputs: Sequence[Tensor], call: Any, gradients: Sequence[Tensor], targets: Targets
    ) -> None:
        """Writes the gradients of the parameters, from float32 ones of the tables [H, M], all heads
        of a table that they share."""
        numbers = self._numbers(call)
        wanted = [n for n in self._read if targets.wants(n)]
        to = [torch.empty_like(x) if n in wanted else None for n, x in enumerate(numbers)]
        given = [
            (x.double() if term.heads == len(x) else x.sum(0, dtype=torch.float64)).cpu().view(-1)
            for term, x in zip(self.terms, gradients, strict=True)
        ]
        own = placed_on_cpu(call)._replace(parameters=numbers)
        _core.computed_tables_backward(*inputs, own, given, to)
        for n in wanted:
            targets.to(n).copy_(to[n])

    def _numbers(self, call: Any) -> list[Tensor]:
        """The parameters on the CPU, zeros of no memory in place of those that no table reads."""
        return [
            x.detach().cpu() if n in self._read else torch.zeros(1, dtype=x.dtype).expand(x.shape)
            for n, x in enumerate(call.parameters)
        ]
