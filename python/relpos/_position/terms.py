"""The terms of the equation, each as a position of its own. relpos.terms shows them.

A term is a scheme of the registry whose tensors are all inputs: no number of its map stands in its
text, so a new length needs no new text and no new graph.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos._base.arguments import integer, number, one_of
from relpos._base.errors import dtype_of, kind_of, shape_of, wrong_type, wrong_value
from relpos._base.tensors import FLOATING, check_memory, check_shape
from relpos._position.buckets import Buckets
from relpos._position.part import Given


class OfCall(NamedTuple):
    """Rows for the distances of a call."""

    first: int
    ends: bool = False  # other distances have no row
    grid: Sequence[int] | None = None  # tokens stand in it row by row


Rows = int | Tensor | Buckets | OfCall


class Term(Given):
    """One term of a call, with the caller's tensors."""

    buckets: Buckets | None = None  # by which its table is read; None: a row for each distance
    _reads_positions = True

    def __init__(self, scheme: str, options: Sequence[str], tensors: Sequence[Tensor]) -> None:
        super().__init__(f"{scheme}({', '.join(options)})", tensors)
        self._reads_positions = type(self)._reads_positions

    def __repr__(self) -> str:
        shapes = ", ".join(shape_of(tensor) for tensor in self._tensors)
        return f"{type(self).__name__}({shapes})"

    def _tensor(self, name: str, tensor: Any, *ranks: str) -> Tensor:
        """A floating-point tensor of one of these shapes, as text."""
        name = f"{type(self).__name__}: {name}"
        if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATING:
            kinds = "a tensor of float32, float64, bfloat16 or float16"
            raise wrong_type(name, kinds, dtype_of(tensor))
        check_memory(name, tensor)
        if tensor.dim() not in [text.count(",") + 1 for text in ranks]:
            raise wrong_value(name, " or ".join(ranks), shape_of(tensor))
        return tensor

    def _rows(self, table: Tensor, axis: int, at: Rows) -> tuple[Tensor, str, list[Tensor]]:
        """The table that the term reads, and its map as an option and as inputs."""
        name, rows = type(self).__name__, table.shape[axis]
        if isinstance(at, Buckets):
            self.buckets = at
            if rows < at.classes:
                wanted = f"a table of {at.classes} rows or more for {at}"
                raise wrong_value(f"{name}: table", wanted, shape_of(table))
            text, numbers = at._map()
            given = [tensor.to(table.device) for tensor in numbers.values()]
            return (table if rows == at.classes else table.narrow(axis, 0, at.classes)), text, given
        text = "map=clamp"
        if isinstance(at, OfCall):
            text = "map=window" if at.ends else text
            if at.grid is not None:
                text += f", grid={[int(side) for side in at.grid]}"
            at = at.first
        if rows == 0:
            raise wrong_value(f"{name}: table", "a row or more", shape_of(table))
        if isinstance(at, Tensor) and at.dtype == torch.int64 and at.numel() == 1:
            return table, text, [at.reshape(1)]
        if isinstance(at, Tensor):
            raise wrong_type(f"{name}: at", "one int64 number", f"{at.dtype} {shape_of(at)}")
        first = integer(f"{name}: at", at)
        return table, text, [torch.full((1,), first, dtype=torch.int64, device=table.device)]

    def _along(self, along: Any) -> list[Tensor]:
        if along is None:
            return []
        name = f"{type(self).__name__}: along"
        if not isinstance(along, (tuple, list)) or len(along) != 2:
            raise wrong_type(name, "(coordinates of queries, of keys)", kind_of(along))
        for tensor in along:
            if not isinstance(tensor, Tensor) or tensor.dtype != torch.int64:
                raise wrong_type(name, "two int64 tensors", dtype_of(tensor))
            if tensor.dim() not in (1, 2):
                raise wrong_value(name, "[L] or [B, L]", shape_of(tensor))
        return [tensor if tensor.dim() == 2 else tensor.unsqueeze(0) for tensor in along]

    def _factor(self, factor: Any, tokens: str, rank: int) -> list[Tensor]:
        if factor is None:
            return []
        found = self._tensor("factor", factor, f"[B, H, {tokens}, r]")
        if found.shape[3] != rank:
            wanted = f"{rank} columns, as the table has"
            raise wrong_value(f"{type(self).__name__}: factor", wanted, shape_of(found))
        return [found]


class DistanceBias(Term):
    """A number of each head and distance, added to the scores after the scale.

    table: [H, M], or [1, M] for all heads; -inf hides a pair. at: the distance (key - query) of its
    first number, an int; the others follow, and the ends reach on; or relpos.Buckets. along:
    (of queries, of keys), int64 [L] or [B, L] below 2^29: distances are those of this coordinate.
    """

    def __init__(
        self, table: Tensor, at: Rows, *, along: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.table, self.at, self.along = table, at, along
        table = self._tensor("table", table, "[H, M]")
        table, text, numbers = self._rows(table, 1, at)
        both = self._along(along)
        options = [text, "along=true"] if both else [text]
        super().__init__("distance_bias", options, [table, *numbers, *both])
        self._places_tokens = isinstance(at, OfCall) and at.grid is not None


class Slopes(Term):
    """past min(delta, 0) + future max(delta, 0) for the distance delta of key and query.

    past, future: [H]. future=None: symmetric, -past.
    """

    def __init__(self, past: Tensor, future: Tensor | None = None) -> None:
        self.past, self.future = past, future
        past = self._tensor("past", past, "[H]")
        if future is None:
            super().__init__("slopes", ["future=symmetric"], [past])
            return
        future = self._tensor("future", future, "[H]")
        check_shape("Slopes: future", future, past.shape)
        super().__init__("slopes", [], [past, future])


class RowTable(Term):
    """scale <query, r> for the row r of a distance.

    table: [M, r] or [H, M, r]. at, along: as in DistanceBias. factor: [B, H, Lq, r], which meets
    the rows instead of the query, whose r is D. added: [H, r], added to the query or the factor.
    scale: None is that of the scores.
    """

    def __init__(
        self,
        table: Tensor,
        at: Rows,
        *,
        factor: Tensor | None = None,
        added: Tensor | None = None,
        scale: float | None = None,
        along: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.table, self.at, self.factor, self.added = table, at, factor, added
        self.scale, self.along = scale, along
        table = self._tensor("table", table, "[M, r]", "[H, M, r]")
        table, text, numbers = self._rows(table, -2, at)
        both = self._along(along)
        tensors = [table, *self._factor(factor, "Lq", table.shape[-1])]
        if added is not None:
            tensors.append(self._tensor("added", added, "[H, r]"))
        given = {"by_head": table.dim() == 3, "factor": factor, "added": added, "along": along}
        super().__init__(
            "row_table",
            [text, *said(given), *scale_of("RowTable", scale)],
            [*tensors, *numbers, *both],
        )


class ColumnTable(Term):
    """scale <key, r> for the row r of a distance.

    table: [M, r] or [H, M, r]. at: as in DistanceBias. factor: [B, Hk, Lk, r], which meets the rows
    instead of the key, whose r is D. scale: None is that of the scores.
    """

    def __init__(
        self,
        table: Tensor,
        at: Rows,
        *,
        factor: Tensor | None = None,
        scale: float | None = None,
    ) -> None:
        self.table, self.at, self.factor, self.scale = table, at, factor, scale
        table = self._tensor("table", table, "[M, r]", "[H, M, r]")
        table, text, numbers = self._rows(table, -2, at)
        tensors = [table, *self._factor(factor, "Lk", table.shape[-1])]
        given = {"by_head": table.dim() == 3, "factor": factor}
        super().__init__(
            "column_table",
            [text, *said(given), *scale_of("ColumnTable", scale)],
            [*tensors, *numbers],
        )


class ValueTable(Term):
    """The row of a distance, added to the value. table: [M, Dv] or [H, M, Dv]; at: as in
    DistanceBias."""

    def __init__(self, table: Tensor, at: Rows) -> None:
        self.table, self.at = table, at
        table = self._tensor("table", table, "[M, Dv]", "[H, M, Dv]")
        table, text, numbers = self._rows(table, -2, at)
        options = [text, *said({"by_head": table.dim() == 3})]
        super().__init__("value_table", options, [table, *numbers])


# Those that say something of each distance.
BY_DISTANCE = (DistanceBias, Slopes, RowTable, ColumnTable, ValueTable)


class KeyBias(Term):
    """A number of each key, added to its scores after the scale. values: [H, Lk] or [B, H, Lk]."""

    _reads_positions = False

    def __init__(self, values: Tensor) -> None:
        self.values = self._tensor("values", values, "[H, Lk]", "[B, H, Lk]")
        super().__init__("key_bias", said({"by_row": values.dim() == 3}), [values])


class QueryAdded(Term):
    """A vector of each head, added to the query for its product with the key. added: [H, D]."""

    _reads_positions = False

    def __init__(self, added: Tensor) -> None:
        self.added = self._tensor("added", added, "[H, D]")
        super().__init__("query_added", [], [added])


class Sink(Term):
    """A score without a value, which joins the softmax. logit: [H] or [B, H, Lq]."""

    _reads_positions = False

    def __init__(self, logit: Tensor) -> None:
        self.logit = self._tensor("logit", logit, "[H]", "[B, H, Lq]")
        heads = logit.shape[0] if logit.dim() == 1 else logit.shape[1]
        options = [f"heads={heads}", *said({"per_query": logit.dim() == 3})]
        super().__init__("attention_sink", options, [logit])


class Rotation(Term):
    """Queries and keys turn by the position times frequencies, which may be trained.

    frequency: [pairs], or [Hk, pairs] of each key head, in radians a position. layout: "half" turns
    the pairs (p, p + pairs), "interleaved" (2p, 2p + 1). start: the first dimension that turns.
    magnitude: multiplies cosines and sines of queries and of keys.
    """

    def __init__(
        self, frequency: Tensor, *, layout: str, start: int = 0, magnitude: float = 1.0
    ) -> None:
        self.frequency = self._tensor("frequency", frequency, "[pairs]", "[Hk, pairs]")
        self.layout, self.start, self.magnitude = layout, start, magnitude
        one_of("Rotation: layout", layout, ("half", "interleaved"))
        options = [
            f"dims={2 * frequency.shape[-1]}",
            f"layout={layout}",
            f"start={integer('Rotation: start', start, 0)}",
            f"magnitude={number('Rotation: magnitude', magnitude)!r}",
        ]
        heads = frequency if frequency.dim() == 2 else frequency.unsqueeze(0)
        super().__init__("turn", options, [heads.unsqueeze(0)])


class RotaryTables(Term):
    """Queries and keys turn by cosines and sines, as a model's own code has computed them.

    q_cos, q_sin: [B, Lq, pairs], or [B, Hk, Lq, pairs] for each key head; k_cos, k_sin: the same of
    the Lk keys. layout, start: as in Rotation.
    """

    _lowers = True  # the text says the head size of the call

    def __init__(
        self,
        q_cos: Tensor,
        q_sin: Tensor,
        k_cos: Tensor,
        k_sin: Tensor,
        *,
        layout: str,
        start: int = 0,
    ) -> None:
        one_of("RotaryTables: layout", layout, ("half", "interleaved"))
        self.layout, self.start = layout, integer("RotaryTables: start", start, 0)
        given = {"q_cos": q_cos, "q_sin": q_sin, "k_cos": k_cos, "k_sin": k_sin}
        tables = [
            self._tensor(name, table, "[B, L, pairs]", "[B, Hk, L, pairs]")
            for name, table in given.items()
        ]
        for name, table in given.items():
            if (*table.shape[:-2], table.shape[-1]) != (*q_cos.shape[:-2], q_cos.shape[-1]):
                wanted = "the batch, heads and pairs of q_cos"
                raise wrong_value(f"RotaryTables: {name}", wanted, shape_of(table))
        self._dims = 2 * q_cos.shape[-1]
        self._heads = q_cos.shape[1] if q_cos.dim() == 4 else 0
        super().__init__("rotary_tables", self._options(self.start + self._dims), tables)
        self._turns_by_inputs = True

    def _options(self, head_dim: int) -> list[str]:
        heads = [f"kv_heads={self._heads}"] if self._heads else []
        return [
            f"head_dim={head_dim}",
            f"layout={self.layout}",
            f"start={self.start}",
            f"rotary_dim={self._dims}",
            *heads,
        ]

    def _lowered(self, of: Any, query: Tensor | None, key: Tensor | None) -> list[Given]:
        if query is None:
            return [self]
        options = ", ".join(self._options(query.shape[3]))
        return [Given(f"rotary_tables({options})", self._tensors, self)]


def said(given: dict[str, Any]) -> list[str]:
    """The flags of a text that are set."""
    return [
        f"{name}=true" for name, value in given.items() if value is not None and value is not False
    ]


def scale_of(term: str, scale: float | None) -> list[str]:
    return [] if scale is None else [f"scale={number(f'{term}: scale', scale)!r}"]
