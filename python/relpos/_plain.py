"""The equation for a position of one's own, in plain torch and at every pair: the twin of
relpos.testing. It computes [B, H, Lq, Lk] numbers."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import kind_of, wrong_type
from relpos._position.buckets import Buckets
from relpos._position.pairs import PairBias, PairRows
from relpos._position.sum import flatten
from relpos._position.terms import (
    ColumnTable,
    DistanceBias,
    KeyBias,
    OfCall,
    QueryAdded,
    RotaryTables,
    Rotation,
    RowTable,
    Sink,
    Slopes,
    ValueTable,
)


class _Pairs:
    """Scores and what joins the values, before the softmax."""

    def __init__(self, query: Tensor, key: Tensor, scale: float, offset: int) -> None:
        group = query.shape[1] // key.shape[1]
        self.query, self.own_key = query, key
        self.key = key.repeat_interleave(group, 1)
        self.added = torch.zeros(())  # to the query, for its product with the key
        self.turns: list[Any] = []
        self.hidden: list[Tensor] = []
        self.scale, self.group = scale, group
        self.q_at = offset + torch.arange(query.shape[2])
        self.k_at = torch.arange(key.shape[2])
        self.distance = self.k_at - self.q_at[:, None]
        self.biases: list[Tensor] = []
        self.values: list[Tensor] = []
        self.sinks: list[Tensor] = []

    def scores(self) -> Tensor:
        """[B, H, Lq, Lk]."""
        query, key = self.turned()
        return self.scale * query @ key.mT + sum(self.biases)

    def magnitude(self) -> Tensor:
        query, key = self.turned()
        return self.scale * query.abs() @ key.abs().mT + sum(bias.abs() for bias in self.biases)

    def turned(self) -> tuple[Tensor, Tensor]:
        query, key = self.query + self.added, self.key
        for turn in self.turns:
            query, key = turn(query, False), turn(key, True)
        return query, key

    def classes(self, at: Any, rows: int, along: Any = None) -> Tensor:
        """The row of each pair, -1 for none."""
        distance = self.distance if along is None else along[1][..., None, :] - along[0][..., None]
        if isinstance(at, Buckets):
            return at(distance)
        first = int(at.first if isinstance(at, OfCall) else at)
        inside = distance.clamp(first, first + rows - 1)
        found = inside - first
        ends = isinstance(at, OfCall) and at.ends
        return found.where(inside == distance, -1) if ends else found

    def bias(self, table: Tensor, classes: Tensor) -> None:
        """table [H, M] at [Lq, Lk], or at [B, Lq, Lk]."""
        numbers = table[:, classes.clamp(min=0)].masked_fill(classes < 0, 0.0)
        self.biases.append(numbers if classes.dim() == 2 else numbers.transpose(0, 1))

    def key_products(
        self, factor: Tensor, table: Tensor, classes: Tensor, scale: float | None
    ) -> None:
        """<factor, row> of each key."""
        rows = table[..., classes.clamp(min=0), :] * (classes >= 0)[..., None]
        found = (factor.repeat_interleave(self.group, 1)[:, :, None] * rows).sum(-1)
        self.biases.append((self.scale if scale is None else scale) * found)

    def products(self, factor: Tensor, table: Tensor, classes: Tensor, scale: float | None) -> None:
        """<factor, row> of each query."""
        rows = table[..., classes.clamp(min=0), :] * (classes >= 0)[..., None]
        if rows.dim() == 5:  # [H, B, Lq, Lk, r]
            rows = rows.transpose(0, 1)
        elif classes.dim() == 3:
            rows = rows.unsqueeze(1)
        found = (factor[..., None, :] * rows).sum(-1)
        self.biases.append((self.scale if scale is None else scale) * found)


def _distance_bias(pairs: _Pairs, term: DistanceBias) -> None:
    pairs.bias(term.table, pairs.classes(term.at, term.table.shape[1], term.along))


def _slopes(pairs: _Pairs, term: Slopes) -> None:
    distance = pairs.distance.to(term.past.dtype)
    future = -term.past if term.future is None else term.future
    pairs.biases.append(
        term.past[:, None, None] * distance.clamp(max=0)
        + future[:, None, None] * distance.clamp(min=0)
    )


def _row_table(pairs: _Pairs, term: RowTable) -> None:
    factor = pairs.query if term.factor is None else term.factor
    if term.added is not None:
        factor = factor + term.added[:, None]
    classes = pairs.classes(term.at, term.table.shape[-2], term.along)
    pairs.products(factor, term.table, classes, term.scale)


def _column_table(pairs: _Pairs, term: ColumnTable) -> None:
    factor = pairs.own_key if term.factor is None else term.factor
    classes = pairs.classes(term.at, term.table.shape[-2])
    pairs.key_products(factor, term.table, classes, term.scale)


def _value_table(pairs: _Pairs, term: ValueTable) -> None:
    classes = pairs.classes(term.at, term.table.shape[-2])
    pairs.values.append(term.table[..., classes.clamp(min=0), :] * (classes >= 0)[..., None])


def _key_bias(pairs: _Pairs, term: KeyBias) -> None:
    pairs.biases.append(term.values.unsqueeze(-2))


def _query_added(pairs: _Pairs, term: QueryAdded) -> None:
    pairs.added = pairs.added + term.added[:, None]


def _sink(pairs: _Pairs, term: Sink) -> None:
    logit = term.logit
    pairs.sinks.append(logit[:, None] if logit.dim() == 1 else logit)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, start: int, layout: str) -> Tensor:
    """x [B, H, L, D] whose pairs from `start` on turn by cosines and sines [..., L, pairs]."""
    end = start + 2 * cos.shape[-1]
    part, half = x[..., start:end], layout == "half"
    a, b = part.chunk(2, -1) if half else (part[..., ::2], part[..., 1::2])
    both = (a * cos - b * sin, b * cos + a * sin)
    made = torch.cat(both, -1) if half else torch.stack(both, -1).flatten(-2)
    return torch.cat([x[..., :start], made, x[..., end:]], -1)


def _rotation(pairs: _Pairs, term: Rotation) -> None:
    frequency = term.frequency.reshape(-1, term.frequency.shape[-1])
    frequency = frequency.repeat_interleave(pairs.group if len(frequency) > 1 else 1, 0)

    def turn(x: Tensor, keys: bool) -> Tensor:
        at = pairs.k_at if keys else pairs.q_at
        angle = at.to(frequency.dtype)[:, None] * frequency[:, None]
        cos, sin = term.magnitude * angle.cos(), term.magnitude * angle.sin()
        return _turned(x, cos, sin, term.start, term.layout)

    pairs.turns.append(turn)


def _rotary_tables(pairs: _Pairs, term: RotaryTables) -> None:
    def turn(x: Tensor, keys: bool) -> Tensor:
        both = term._values()[2:] if keys else term._values()[:2]
        cos, sin = (
            t.unsqueeze(1) if t.dim() == 3 else t.repeat_interleave(x.shape[1] // t.shape[1], 1)
            for t in both
        )
        return _turned(x, cos, sin, term.start, term.layout)

    pairs.turns.append(turn)


def _hide(pairs: _Pairs, term: PairBias | PairRows) -> Tensor:
    """The classes [Lq, Lk] or [B, Lq, Lk] of a term; pairs of its hidden class are not seen."""
    classes = term.classes.classes.long()
    if term.classes.hidden is not None:
        hidden = classes == term.classes.hidden
        pairs.hidden.append(hidden if classes.dim() == 2 else hidden.unsqueeze(1))
        classes = classes.masked_fill(hidden, 0)
    return classes


def _pair_bias(pairs: _Pairs, term: PairBias) -> None:
    pairs.bias(term.table, _hide(pairs, term))


def _pair_rows(pairs: _Pairs, term: PairRows) -> None:
    factor = pairs.query if term.factor is None else term.factor
    pairs.products(factor, term.table, _hide(pairs, term), term.scale)


_FORMULAS: dict[type, Any] = {
    DistanceBias: _distance_bias,
    Slopes: _slopes,
    RowTable: _row_table,
    ColumnTable: _column_table,
    ValueTable: _value_table,
    KeyBias: _key_bias,
    QueryAdded: _query_added,
    Sink: _sink,
    Rotation: _rotation,
    RotaryTables: _rotary_tables,
    PairBias: _pair_bias,
    PairRows: _pair_rows,
}


def _join(pairs: _Pairs, terms: Any) -> None:
    for term in flatten(terms):
        if type(term) not in _FORMULAS:
            known = ", ".join(kind.__name__ for kind in _FORMULAS)
            raise wrong_type("position", f"terms that relpos.testing knows: {known}", kind_of(term))
        _FORMULAS[type(term)](pairs, term)


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Any,
    inputs: Mapping[str, Any],
    options: Mapping[str, Any],
    with_magnitude: bool = False,
) -> Any:
    """Attention with a position of one's own, or with one or more terms; options: q_offset,
    is_causal, window and key_padding_mask. with_magnitude: also the largest magnitude of the parts
    of a score, and of a value."""
    pairs = _Pairs(query, key, query.shape[3] ** -0.5, options.get("q_offset", 0))
    if hasattr(position, "_methods"):
        _apply(pairs, position, inputs)
    else:
        _join(pairs, position)
    hidden = torch.zeros(pairs.distance.shape, dtype=torch.bool)
    left, right = options.get("window", (-1, -1))
    if options.get("is_causal", False):
        hidden |= pairs.distance > 0
    if left >= 0:
        hidden |= pairs.distance < -left
    if right >= 0:
        hidden |= pairs.distance > right
    for more in pairs.hidden:
        hidden = hidden | more
    padding = options.get("key_padding_mask")
    if padding is not None:
        hidden = hidden | padding[:, None, None]
    scores = pairs.scores().masked_fill(hidden, -math.inf)
    sinks = sum(x.exp() for x in pairs.sinks)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    if pairs.sinks:
        total = total + torch.as_tensor(sinks)[..., None] * (-top).exp()
    weights = weights / total.where(total > 0, 1.0)
    group = query.shape[1] // value.shape[1]
    out = weights @ value.repeat_interleave(group, 1)
    for rows in pairs.values:
        out = out + (weights[..., None] * rows).sum(-2)
    if not with_magnitude:
        return out
    largest = float(pairs.magnitude().max())
    values = float(value.abs().max()) + sum(float(rows.abs().max()) for rows in pairs.values)
    return out, (largest, values)


def _apply(pairs: _Pairs, position: Any, inputs: Mapping[str, Any]) -> None:
    """The methods of a position, each at every distance."""
    methods = position._methods

    own = next((p.dtype for p in position.parameters()), pairs.query.dtype)

    def run(name: str, *given: Tensor) -> Any:
        """In the dtype of the position; a result that is a table joins the others in theirs."""
        cast = [x.to(own) if x.is_floating_point() else x for x in given]
        found = getattr(position, name)(*cast, **{n: inputs[n] for n in methods.takes[name]})
        return found.to(pairs.query.dtype) if isinstance(found, Tensor) else found

    if position.grid is not None:
        _of_grid(pairs, position, run)
        return
    first, last = int(pairs.distance.min()), int(pairs.distance.max())
    lo, hi = (first, last) if position.reach is None else position.reach
    distance = torch.arange(lo, hi + 1)
    inside = pairs.distance.clamp(lo, hi)
    classes = inside - lo
    if position.outside == "none":
        classes = classes.where(inside == pairs.distance, -1)
    for name in methods.names:
        if name == "bias":
            pairs.bias(run(name, distance), classes)
        elif name == "rows":
            gated = "gate" in methods.names
            factor = run("gate", pairs.query) if gated else pairs.query
            scale = position.rows_scale if position.rows_scale is not None or not gated else 1.0
            pairs.products(factor, run(name, distance), classes, scale)
        elif name == "columns":
            gated = "key_gate" in methods.names
            factor = run("key_gate", pairs.own_key) if gated else pairs.own_key
            scale = position.columns_scale
            scale = scale if scale is not None or not gated else 1.0
            pairs.key_products(factor, run(name, distance), classes, scale)
        elif name == "values":
            table = run(name, distance)
            pairs.values.append(table[..., classes.clamp(min=0), :] * (classes >= 0)[..., None])
        elif name == "terms":
            _join(pairs, run(name, distance))


def _of_grid(pairs: _Pairs, position: Any, run: Any) -> None:
    sides = [int(side) for side in position.grid]
    places = torch.meshgrid(*(torch.arange(side) for side in sides), indexing="ij")
    places = [place.flatten() for place in places]
    offsets = [place - place[:, None] for place in places]
    given = [
        torch.arange(1 - side, side).view([-1 if n == axis else 1 for n in range(len(sides))])
        for axis, side in enumerate(sides)
    ]
    table = run("bias", *given)
    index = tuple(offset + side - 1 for offset, side in zip(offsets, sides, strict=True))
    pairs.biases.append(table[(slice(None), *index)])
