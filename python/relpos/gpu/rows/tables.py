"""Tables of rows as relpos._core.lower says them."""

from typing import Any, NamedTuple

from torch import Tensor

from relpos.gpu.numbers import Numbers


class Table(NamedTuple):
    """scale <a_i, table[m(delta)]>, of a table [M, r] or [H, M, r], and a_i the query or `factor`
    [B, H, Lq, r], plus `added` [H, r]."""

    map: Any
    table: Numbers
    factor: Numbers | None
    added: Numbers | None
    scale: float

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
