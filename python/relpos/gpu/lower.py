"""A call as the kernels of the GPU take it: what its plan says (lowered/plan.py), with the tensors
themselves, of which no element is read here."""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from relpos.gpu.device import uploaded
from relpos.gpu.lowered.delta import Classes, Delta
from relpos.gpu.lowered.plan import plan_of
from relpos.gpu.lowered.refusals import check_options, refuse
from relpos.gpu.lowered.tables import Table
from relpos.gpu.problem import Places, places_of
from relpos.gpu.sums.targets import Targets

_UNBOUNDED = 2**62 - 2**40  # farther than positions are apart
_WIDEST = 2**22  # distances of a table


def _narrow_enough(lo: int, hi: int) -> tuple[int, int]:
    if hi - lo >= _WIDEST:
        why = f"a map that changes over {_WIDEST} distances or more has no kernel"
        refuse("position", why, hi - lo + 1)
    return lo, hi


class Lowered:
    """A call of query [B, H, Lq, D], key [B, Hk, Lk, D] and value [B, Hk, Lk, Dv], or without value
    that of its weights or scores: what joins values, and sinks, are left out. Raises as
    relpos.attention does on the CPU, and NotImplementedError where no kernel computes it.

    Attributes:
      scale: of the scores.
      terms: distance biases of the position.
      sinks, turns, slopes, key_biases, computed: of the position.
      rows, columns, values: tables whose rows meet the queries, the keys, and join the values.
      rows_apart: tables that coordinates or classes of pairs choose rows of, for the queries.
      device: of the tensors.
      added: vectors [H, D] that join the queries where these meet keys.
      tokens: positions of queries and keys, int64 on the CPU, where a scheme places them.
      parameters: of the position, and tables that are projected (projections); of a part of a
        call, those of its queries.
      parts_of_tables: what launches.parts_of_table keeps for all parts of a call.
      first: of its queries, where they are a part of another call's.
      softcap, dropout_p, seed, padding, mask: those of relpos.attention.
      tiles: ranges, entries and words of a relpos.TileMask, or None.
      left, right: a query sees keys at distances from -left to right.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor | None, call: Any) -> None:
        check_options(query, value, call)
        plan = plan_of(query, key, value, call)
        self.scale, self.terms, self.sinks = plan.scale, plan.terms, plan.sinks
        self.rows = tuple(table for table in plan.rows if table.delta is None)
        self.rows_apart = tuple(table for table in plan.rows if table.delta is not None)
        self.columns, self.values, self.device = plan.columns, plan.values, query.device
        if value is None:
            self.sinks = self.values = ()
        self.added, self.turns, self.tokens = plan.added, plan.turns, plan.tokens
        self.slopes, self.key_biases = plan.slopes, plan.key_biases
        self.computed, self._inputs = plan.computed, (query, key, value)
        self.projections = plan.projections
        tables = (each.table(call.parameters) for each in plan.projections)
        self.parameters = (*call.parameters, *tables)
        self.parts_of_tables: dict[Table, tuple[int, Tensor]] = {}
        self._entire: Lowered | None = None
        self.softcap, self.dropout_p, self.seed = call.softcap, call.dropout_p, call.seed
        self.padding, self.mask = call.key_padding_mask, call.attn_mask
        tiles = call.tile_ranges, call.tile_entries, call.tile_words
        self.tiles = None if call.tile_ranges is None else tiles
        self.left, self.right = call.window or (-1, -1)
        self.left = _UNBOUNDED if self.left < 0 else min(self.left, _UNBOUNDED)
        self.right = _UNBOUNDED if self.right < 0 else min(self.right, _UNBOUNDED)
        if call.is_causal:
            self.right = 0
        self._call, self._query, self._key, self.first = call, query, key, 0

    def part(self, first: int, count: int) -> "Lowered":
        """The call of the queries first, ..., first + count - 1 alone."""
        part = copy(self)
        part._entire = self.entire
        for name in ("shifts", "shift", "places", "positions", "spans", "hides"):
            part.__dict__.pop(name, None)
        part.first, part._query = self.first + first, self._query.narrow(2, first, count)
        axes = self.query_axes
        part.parameters = tuple(
            each.narrow(axes[n], first, count) if n in axes else each
            for n, each in enumerate(self.parameters)
        )
        if self.mask_axis is not None:
            part.mask = self.mask.narrow(self.mask_axis, first, count)
        return part

    @property
    def entire(self) -> "Lowered":
        """The call that this is a part of, or itself."""
        return self._entire or self

    @cached_property
    def query_axes(self) -> dict[int, int]:
        """{parameter: its axis of queries}, of those that have one."""
        sinks = [term.parameter for term in self.sinks]
        found = {n: 2 for n in sinks if self.parameters[n].dim() == 3}
        rows = (*self.rows, *self.rows_apart)
        factors = [table.factor for table in rows if table.factor is not None]
        for term in (*self.terms, *rows):
            found |= {} if term.delta is None else term.delta.query_axes(self.parameters)
        found |= {factor.parameter: factor.axes[2] for factor in factors}
        turns = (numbers for turn in self.turns for numbers in turn.of_queries())
        return found | {numbers.parameter: axis for numbers, axis in turns}

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, H, Lq and Lk."""
        return (*self._query.shape[:3], self._key.shape[2])

    @property
    def hidden(self) -> list[Classes]:
        """Classes of pairs of which some are not seen."""
        deltas = (term.delta for term in (*self.terms, *self.rows_apart))
        return [x for x in deltas if isinstance(x, Classes) and x.hidden >= 0]

    @cached_property
    def mask_axis(self) -> int | None:
        """That of queries, of a mask that has one."""
        has = self.mask is not None and self.mask.dim() > 1 and self.mask.shape[-2] > 1
        return self.mask.dim() - 2 if has else None

    @cached_property
    def tables(self) -> list[Tensor]:
        """float32 [H or 1, M]: those that are computed."""
        return self.computed.tables(self._inputs, self._call)

    def pull_back(self, gradients: Sequence[Tensor], targets: Targets) -> None:
        """Writes what the gradients [H, M] of those tables give."""
        self.computed.pull_back(self._inputs, self._call, gradients, targets)

    @cached_property
    def shifts(self) -> Tensor:
        """int64 [B]: the position of the first key less that of the first query."""
        call, query = self._call, self._query
        if self.shift is not None:
            return torch.full(query.shape[:1], self.shift, dtype=torch.int64, device=query.device)
        k_offset = call.k_offset if call.k_offsets is None else call.k_offsets
        q_offset = (call.q_offset or 0) if call.q_offsets is None else call.q_offsets
        return (k_offset - q_offset - self.first).contiguous()

    @cached_property
    def shift(self) -> int | None:
        """That of all batch rows, or None where a tensor has them."""
        call = self._call
        if call.q_offsets is not None or call.k_offsets is not None:
            return None
        return call.k_offset - (call.q_offset or 0) - self.first

    @cached_property
    def places(self) -> Places | None:
        """Where tokens stand that are not consecutive."""
        call = self._call
        if call.q_positions is not None:
            q, k = call.q_positions, call.k_positions.contiguous()
        elif self.tokens is not None:
            q, k = (uploaded(tokens, self.device) for tokens in self.tokens)
        else:
            return None
        return places_of(self.own(q), k)

    def own(self, numbers: Tensor) -> Tensor:
        """Those of the queries, of numbers [.., Lq] of all queries of the call."""
        return numbers.narrow(-1, self.first, self._query.shape[2]).contiguous()

    @cached_property
    def positions(self) -> tuple[Tensor, Tensor]:
        """int64 [1 or B, Lq] and [1 or B, Lk]; one tensor where both stand at the same."""
        call, sizes = self._call, (self._query.shape[2], self._key.shape[2])
        if self.places is not None:
            q, k = (x.view(-1, x.shape[-1]) for x in (self.places.q, self.places.k))
            return q, k
        if self.shift == 0 and sizes[0] == sizes[1]:
            return (self._run(call.k_offset, None, sizes[0]),) * 2
        q = self._run((call.q_offset or 0) + self.first, call.q_offsets, sizes[0])
        return q, self._run(call.k_offset, call.k_offsets, sizes[1])

    def _run(self, first: int, firsts: Tensor | None, length: int) -> Tensor:
        """Consecutive positions."""
        at = torch.arange(length, device=self._query.device) + first
        return at[None] if firsts is None else at + firsts[:, None]

    @cached_property
    def spans(self) -> Tensor | None:
        """int32 [.., Lq, 2]: the first key that each query sees, and the one after the last, where
        distances of consecutive tokens do not say it; of each batch row, or of all."""
        call, keys = self._call, self._key.shape[2]
        bounded = min(self.left, self.right) < _UNBOUNDED
        if call.key_lo is None and (self.places is None or not bounded):
            return None
        if call.key_lo is None:
            lo, hi = self._within()
        else:
            lo, hi = map(self.own, torch.broadcast_tensors(call.key_lo, call.key_hi))
        if call.key_lo is not None and bounded:
            first, last = self._within()
            lo, hi = torch.maximum(lo, first), torch.minimum(hi, last)
        return torch.stack([lo.clamp(0, keys), hi.clamp(0, keys)], -1).int()

    def _within(self) -> tuple[Tensor, Tensor]:
        """int64 [.., Lq]: the first key at a distance from -left on, and the first beyond right."""
        queries, keys = self._query.shape[2], self._key.shape[2]
        if self.places is None:
            shifts = self.shifts[:, None] if self.shift is None else self.shifts[:1]
            at = torch.arange(queries, device=shifts.device) - shifts
            return at - self.left, at + self.right + 1
        q, k = self.places.q, self.places.k
        if q.shape[:-1] != k.shape[:-1]:
            q, k = (x.expand(self._query.shape[0], -1).contiguous() for x in (q, k))
        lo, hi = torch.zeros_like(q), torch.full_like(q, keys)
        if self.left < _UNBOUNDED:
            lo = torch.searchsorted(k, q - self.left)
        if self.right < _UNBOUNDED:
            hi = torch.searchsorted(k, q + self.right, right=True)
        return lo, hi

    def intervals(self) -> tuple[Tensor, Tensor]:
        """int64 [1 or B, Lq]: the first key that each query sees, masks aside, and the one after
        the last."""
        if self.spans is not None:
            lo, hi = self.spans.view(-1, *self.spans.shape[-2:]).long().unbind(-1)
            return lo, hi
        lo, hi = (x.clamp(0, self._key.shape[2]) for x in self._within())
        return lo.view(-1, lo.shape[-1]), hi.view(-1, hi.shape[-1])

    @cached_property
    def hides(self) -> bool:
        """Whether some pairs may not be seen."""
        call = self._call
        given = (self.spans, call.key_padding_mask, call.attn_mask, self.tiles)
        if self.hidden or any(each is not None for each in given):
            return True
        if self.places is not None:
            return False
        if self.shift is None:
            return min(self.left, self.right) < _UNBOUNDED
        queries, keys = self._query.shape[2], self._key.shape[2]
        return self.shift - queries + 1 < -self.left or self.shift + keys - 1 > self.right

    @cached_property
    def sees_itself(self) -> bool:
        """Whether each query surely sees a key at its own position, masks aside."""
        if self.places is not None or self.spans is not None or self.shift is None:
            return False
        inside = self.shift <= 0 and self._query.shape[2] - self.shift <= self._key.shape[2]
        return inside and self.left >= 0 and self.right >= 0

    def window(self, lo: int, hi: int, delta: Delta = None) -> tuple[int, int]:
        """Distances lo < hi, of positions or `delta`, cut to those that occur, where these are
        known: what is said of lo holds of all before it, what is said of hi of all after it. Raises
        NotImplementedError where they are too many to have a number each."""
        at = self.tokens if delta is None else delta.at
        if at is not None:
            q, k = self.own(at[0]), at[1]
            if not k.numel():
                return lo, hi
            first, last = int(k.min() - q.max()), int(k.max() - q.min())
        elif delta is not None or self.shift is None or self.places is not None:
            return _narrow_enough(lo, hi)
        else:
            first, last = self._apart(self.shift)
        lo = min(max(lo, first), hi - 1)
        return _narrow_enough(lo, max(min(hi, last), lo + 1))

    @cached_property
    def shared(self) -> set[int]:
        """Parameters that several terms read, or terms read a part of, so that gradients are
        summed."""
        whole = [n for term in self.computed.terms for n in term.parameters]
        of_tables = (*self.rows, *self.rows_apart, *self.columns, *self.values)
        tables = [numbers for table in of_tables for numbers in table.numbers()]
        tables += [*self.sinks, *self.added, *(term.table for term in self.terms)]
        tables += [numbers for turn in self.turns for numbers in turn.numbers]
        tables += [numbers for slopes in self.slopes for numbers in slopes.numbers()]
        tables += [term.values for term in self.key_biases]
        counted = Counter([*whole, *(numbers.parameter for numbers in tables)])
        found = {parameter for parameter, count in counted.items() if count > 1}
        return found | {numbers.parameter for numbers in tables if numbers.chosen}

    def _apart(self, shift: int) -> tuple[int, int]:
        """The smallest and the largest distance of a call of consecutive tokens."""
        first = max(shift - self._query.shape[2] + 1, -self.left)
        return first, min(shift + self._key.shape[2] - 1, self.right)
