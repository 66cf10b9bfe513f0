"""relpos.PairClasses, and the terms that read a table by them."""

from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import integer
from relpos._base.errors import dtype_of, kind_of, shape_of, wrong_type, wrong_value
from relpos._base.tensors import check_memory
from relpos._position.terms import Term, said, scale_of

_MOST = 256


class PairClasses:
    """The class of each pair of a query and a key, a byte for all heads: the length of a path of a
    graph, an edge's kind, a bucket of the time between two tokens.

    classes: uint8 [Lq, Lk] or [B, Lq, Lk], by rows and columns of the call: no position matters.
    hidden: pairs of this class are not seen, as those that a mask hides.
    """

    def __init__(self, classes: Tensor, *, hidden: int | None = None) -> None:
        if not isinstance(classes, Tensor) or classes.dtype != torch.uint8:
            then = "convert classes from 0 to 255 with .to(torch.uint8)"
            raise wrong_type("PairClasses: classes", "a uint8 tensor", dtype_of(classes), then)
        check_memory("PairClasses: classes", classes)
        if classes.dim() not in (2, 3):
            wanted = "[Lq, Lk] or [B, Lq, Lk]"
            raise wrong_value("PairClasses: classes", wanted, shape_of(classes))
        if hidden is not None:
            hidden = integer("PairClasses: hidden", hidden, 0)
            if hidden >= _MOST:
                raise wrong_value("PairClasses: hidden", "a class from 0 to 255", hidden)
        self.classes, self.hidden = classes, hidden

    def __repr__(self) -> str:
        hidden = "" if self.hidden is None else f", hidden={self.hidden}"
        return f"PairClasses({shape_of(self.classes)}{hidden})"


class _PairTerm(Term):
    _reads_positions = False

    def _classes(self, table: Tensor, classes: Any, axis: int) -> list[str]:
        """The options by which a text says the classes."""
        name = type(self).__name__
        if not isinstance(classes, PairClasses):
            raise wrong_type(f"{name}: classes", "relpos.PairClasses", kind_of(classes))
        if not 1 <= table.shape[axis] <= _MOST:
            raise wrong_value(f"{name}: table", "1 to 256 classes", shape_of(table))
        hidden = [] if classes.hidden is None else [f"hidden={classes.hidden}"]
        return [*said({"by_row": classes.classes.dim() == 3}), *hidden]


class PairBias(_PairTerm):
    """A number of each head and class of pairs, added to the scores after the scale.

    table: [H, C], or [1, C] for all heads, C up to 256 and above every class. classes:
    relpos.PairClasses. As in Graphormer (Ying et al. 2021, 3.1.2).
    """

    def __init__(self, table: Tensor, classes: PairClasses) -> None:
        self.table, self.classes = table, classes
        table = self._tensor("table", table, "[H, C]")
        options = self._classes(table, classes, 1)
        super().__init__("pair_bias", options, [table, classes.classes])


class PairRows(_PairTerm):
    """scale <query, r> for the row r of a pair's class: Shaw's keys on a graph (RAT-SQL, Wang et
    al. 2020, 3.2).

    table: [C, r] or [H, C, r], C up to 256 and above every class. factor: [B, H, Lq, r], which
    meets the rows instead of the query, whose r is D. scale: None is that of the scores.
    """

    def __init__(
        self,
        table: Tensor,
        classes: PairClasses,
        *,
        factor: Tensor | None = None,
        scale: float | None = None,
    ) -> None:
        self.table, self.classes, self.factor, self.scale = table, classes, factor, scale
        table = self._tensor("table", table, "[C, r]", "[H, C, r]")
        flags = {"by_head": table.dim() == 3, "factor": factor}
        options = [*self._classes(table, classes, -2), *said(flags), *scale_of("PairRows", scale)]
        tensors = [table, classes.classes, *self._factor(factor, "Lq", table.shape[-1])]
        super().__init__("pair_rows", options, tensors)
