"""The classes of pairs that a score_mod looks up: a byte for each pair."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_MOST = 256  # classes
_CODES = 7  # which fit 63 bits
_WIDE = 2**16  # numbers in a row of which a table is made
_AT_ONCE = 2**18  # pairs

# Codes [rows, queries, keys] of these queries, of all keys.
Codes = Callable[[Tensor], Sequence[Tensor]]


class Classes(NamedTuple):
    """bytes: uint8 [rows, queries, keys]; at: a pair of each class, (row, query, key) of [C]."""

    bytes: Tensor
    at: tuple[Tensor, Tensor, Tensor]


class _Numbers:
    """The values of integers, numbered by their first appearance."""

    def __init__(self) -> None:
        self.values = torch.zeros(0, dtype=torch.int64)

    def of(self, integers: Tensor) -> Tensor | None:
        """uint8 of this shape; None where there are more than a byte holds."""
        flat = integers.flatten().long()
        lo, hi = (int(bound) for bound in flat.aminmax())
        if hi - lo >= _WIDE:
            found, flat = flat.unique(return_inverse=True)
            place = torch.arange(len(found))
        else:
            flat = flat - lo if lo else flat
            place = flat.bincount().nonzero().flatten()
            found = place + lo
        self.values = torch.cat([self.values, found[~torch.isin(found, self.values)]])
        if len(self.values) > _MOST:
            return None
        order = self.values.argsort()
        number = order[torch.searchsorted(self.values[order], found)].to(torch.uint8)
        table = number.new_zeros(int(place[-1]) + 1).index_put_((place,), number)
        return table.index_select(0, flat).view(integers.shape)


def classes_of(codes: Codes, rows: int, queries: int, keys: int) -> Classes | None:
    """The classes of all pairs, which have the same codes; None where there are more than 256, or
    where torch.vmap gives each of its rows other codes."""
    made = torch.empty(rows, queries, keys, dtype=torch.uint8)
    at = torch.zeros(0, dtype=torch.int64)
    together = _Numbers()
    numbers: list[_Numbers] = []
    count = max(1, _AT_ONCE // (rows * keys))
    for first in range(0, queries, count):
        found = codes(torch.arange(first, min(first + count, queries)))
        if any(map(_of_vmap, found)):
            return None
        joint: Tensor | None = found[0]
        if len(found) > 1:
            numbers = numbers or [_Numbers() for _ in found]
            joint = _joined([of.of(code) for of, code in zip(numbers, found, strict=True)])
        number = None if joint is None else together.of(joint)
        if number is None:
            return None
        made[:, first : first + count] = number
        if len(together.values) > len(at):
            pairs, each = torch.arange(number.numel()), number[0].numel()
            of_all = pairs.new_zeros(_MOST).scatter_(0, number.flatten().long(), pairs)
            new = of_all[len(at) : len(together.values)]
            at = torch.cat([at, new // each * queries * keys + first * keys + new % each])
    row, within = at // (queries * keys), at % (queries * keys)
    return Classes(made, (row, within // keys, within % keys))


def _joined(numbers: Sequence[Tensor | None]) -> Tensor | None:
    """One integer for each pair, of bytes."""
    if len(numbers) > _CODES:
        return None
    joint = torch.zeros((), dtype=torch.int64)
    for each in numbers:
        if each is None:
            return None
        joint = joint * _MOST + each.long()
    return joint


def _of_vmap(tensor: Tensor) -> bool:
    """Whether it has other numbers in each row of a torch.vmap."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False
