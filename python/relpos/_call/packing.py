"""Where the tokens of packed sequences stand, and which keys each query may see."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import two_of
from relpos._base.errors import kind_of, shape_of, wrong_type, wrong_value
from relpos._base.tensors import INTEGERS, check_device
from relpos._position.operators import place_tokens
from relpos._position.part import (
    Given,
    Part,
    cumulative,
    places_tokens,
    reads_positions,
    refuse_length,
    text_of,
    values_of,
    with_values,
)
from relpos._position.sum import flatten

_FAR = 2**61  # beyond every distance, and its sums stay below 2^63


@dataclass(frozen=True)
class Packing:
    """Sequences one after another. Positions start again in each."""

    starts_q: Tensor  # int64 [S + 1], where each sequence starts in query, then Tq
    starts_k: Tensor  # in key
    offsets: Tensor  # int64 [S], the number of each sequence's first query; its first key is 0
    placed_by: str = ""  # the text of a position that places tokens; empty: they stand at numbers

    def queries(self, rows: Tensor) -> Tensor:
        """Positions of queries by their rows, int64 [n]."""
        sequence = _sequence_of(self.starts_q, rows)
        return self._place(rows - self.starts_q[sequence] + self.offsets[sequence], False)

    def keys(self, columns: Tensor) -> Tensor:
        """Positions of keys by their columns, int64 [n]."""
        return self._place(columns - self.starts_k[_sequence_of(self.starts_k, columns)], True)

    def key_range(
        self, rows: Tensor, columns: Tensor, left: int | None, right: int | None
    ) -> tuple[Tensor, Tensor]:
        """(lo, hi): queries of `rows` see the columns lo <= j < hi, which are of their sequence and
        from `left` before to `right` behind their position; None is no bound. columns: all."""
        sequence = _sequence_of(self.starts_q, rows)
        lo, hi = self.starts_k[sequence], self.starts_k[sequence + 1]
        if left is None and right is None:
            return lo, hi
        at = self.queries(rows)
        first = self._first_key(sequence, columns)
        if left is not None:
            lo = torch.maximum(lo, first(at - left))
        if right is not None:
            hi = torch.minimum(hi, first(at + (right + 1)))
        return lo, hi

    def restarted(self, position: Any) -> Any:
        """The position with tensors whose sums along the keys start again in each sequence."""
        parts = flatten(position)
        if not any(cumulative(part) for part in parts):
            return position
        return [self._restarted(part) if cumulative(part) else part for part in parts]

    def _restarted(self, part: Part) -> Given:
        values = values_of(part)
        for n in cumulative(part):
            sums = sums_within(values[n], self.starts_k)
            values[n] = sums.diff(dim=-1, prepend=torch.zeros_like(sums[..., :1]))
        return with_values(part, values)

    def _place(self, numbers: Tensor, keys: bool) -> Tensor:
        return place_tokens(self.placed_by, keys, numbers) if self.placed_by else numbers

    def _first_key(self, sequence: Tensor, columns: Tensor) -> Any:
        """f(bounds): of each of the sequences, the first column whose position is at or above its
        bound, or would be."""
        if not self.placed_by:
            return lambda bounds: self.starts_k[sequence] + bounds
        # Both are compared as (sequence, rank among all positions), in one number.
        positions, many = self.keys(columns), columns.shape[0] + 1
        ranked = positions.sort().values
        of_key = _sequence_of(self.starts_k, columns) * many
        of_key = of_key + torch.searchsorted(ranked, positions)
        _check_ascending(of_key, self.placed_by)

        def first(bounds: Tensor) -> Tensor:
            wanted = sequence * many + torch.searchsorted(ranked, bounds.contiguous())
            return torch.searchsorted(of_key, wanted)

        return first


def sums_within(x: Tensor, starts: Tensor) -> Tensor:
    """[..., T] in double: the sums so far of each of the sequences that start there."""
    sums = x.double().cumsum(-1)
    before = torch.cat([torch.zeros_like(sums[..., :1]), sums], -1)
    columns = torch.arange(x.shape[-1], device=x.device)
    return sums - before[..., starts[_sequence_of(starts, columns)]]


def placing_text(position: Any) -> str:
    """The text of a position that places tokens, and else nothing."""
    return text_of(position) if places_tokens(position) else ""


def _sequence_of(starts: Tensor, tokens: Tensor) -> Tensor:
    return torch.searchsorted(starts[1:], tokens, right=True)


def _check_ascending(keys: Tensor, text: str) -> None:
    sound = (keys.diff() >= 0).all()
    message = (
        f"position: {text} places the keys of a sequence in another order than their own, in which "
        "is_causal and window have no first key: expected neither"
    )
    if torch.compiler.is_compiling():
        torch._assert_async(sound, message)
    elif not keys.is_meta and not sound:
        raise ValueError(message)


def _starts_of(name: str, starts: Any, rows: int, of: str) -> Tensor:
    if not isinstance(starts, Tensor):
        raise wrong_type(name, "a tensor", kind_of(starts))
    if starts.dtype not in INTEGERS:
        raise wrong_type(name, "int32 or int64", starts.dtype)
    if starts.dim() != 1 or starts.shape[0] < 1:
        raise wrong_value(name, "[S + 1]", shape_of(starts))
    sound = (starts[0] == 0) & (starts[-1] == rows) & (starts.diff() >= 0).all()
    if torch.compiler.is_compiling():
        torch._assert_async(sound, f"{name}: expected 0, ..., rows of {of}, never decreasing")
    elif not starts.is_meta and not sound:
        shown = starts.tolist() if starts.shape[0] <= 8 else [*starts[:4].tolist(), "..."]
        wanted = f"to start at 0, never decrease and end at {rows}, the rows of {of}"
        raise wrong_value(name, wanted, shown)
    return starts.to(torch.int64)


def pack(
    starts: Mapping[str, Any],
    rows: Mapping[str, int],
    position: Any,
    q_offset: Any,
    bounds: tuple[int | None, int | None],
) -> Packing:
    """The packing that a call asks for, checked.

    starts: by their names, where the sequences start in queries and in keys, None where keys are as
    queries. rows: how many there are of each, by what they are rows of. bounds: the distances that
    a query sees."""
    (q_name, given_q), (k_name, given_k) = starts.items()
    (query, q_rows), (key, k_rows) = rows.items()
    starts_q = starts_k = _starts_of(q_name, given_q, q_rows, query)
    if given_k is not None and given_k is not given_q:
        starts_k = _starts_of(k_name, given_k, k_rows, key)
        if starts_k.shape != starts_q.shape:
            wanted = f"{starts_q.shape[0]} entries, as {q_name} has"
            raise wrong_value(k_name, wanted, starts_k.shape[0])
    elif k_rows != q_rows:
        wanted = f"it where {key} has other rows than {query}, {q_rows}"
        raise wrong_value(k_name, wanted, f"none for {k_rows} rows")
    if starts_q.shape[0] > 2:
        refuse_length(
            position,
            "and packed sequences have lengths of their own",
            "; or call relpos.attention for each sequence",
        )
    offsets = torch.zeros_like(starts_q[1:])
    if reads_positions(position) or bounds != (None, None):
        offsets = _offsets_of(q_offset, starts_q, starts_k)
    return Packing(starts_q, starts_k, offsets, placing_text(position))


def bounds_of(window: Any, is_causal: bool) -> tuple[int | None, int | None]:
    """(left, right) distances that a query sees; None is no bound."""
    left, right = -1, -1
    if window is not None:
        left, right = two_of("window", window, "(left, right)")
        if not all(isinstance(bound, (int, torch.SymInt)) for bound in window):
            raise wrong_type("window", "two ints", repr(window))
        if left < -1 or right < -1:
            raise wrong_value("window", "bounds from -1 (none) on", repr(window))
    if is_causal:
        right = 0
    return (
        None if left == -1 else min(left, _FAR),
        None if right == -1 else min(right, _FAR),
    )


def _offsets_of(q_offset: Any, starts_q: Tensor, starts_k: Tensor) -> Tensor:
    count = starts_q.shape[0] - 1
    wanted = f"an int or int64 [{count}]"
    if q_offset is None:
        compiled = torch.compiler.is_compiling() or starts_q.is_meta
        if starts_k is not starts_q and (compiled or not torch.equal(starts_q, starts_k)):
            raise ValueError(
                "q_offset: not given, and cu_seqlens_k differs from cu_seqlens_q while a position, "
                "is_causal or window is in play. Say where each sequence's queries are: q_offset = "
                "cu_seqlens_k.diff() - cu_seqlens_q.diff() where they end with the keys; "
                "q_offset = 0 where both start at 0"
            )
        q_offset = 0
    if isinstance(q_offset, Tensor):
        if q_offset.dtype not in INTEGERS:
            raise wrong_type("q_offset", wanted, q_offset.dtype)
        if q_offset.dim() > 1 or (q_offset.dim() == 1 and q_offset.shape[0] != count):
            raise wrong_value("q_offset", f"{wanted}, one for each sequence", shape_of(q_offset))
        check_device("q_offset", q_offset, starts_q, "cu_seqlens_q")
        offsets = q_offset.to(torch.int64).expand(count)
    elif isinstance(q_offset, (int, torch.SymInt)) and not isinstance(q_offset, bool):
        offsets = torch.full((count,), q_offset, dtype=torch.int64, device=starts_q.device)
    else:
        raise wrong_type("q_offset", wanted, repr(q_offset))
    # Sums with window bounds must stay inside 64 bits; the core refuses positions this far out.
    return offsets.clamp(-_FAR, _FAR)
