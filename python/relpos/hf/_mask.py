"""The mask function of attn_implementation="relpos": intervals of keys instead of a matrix."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relpos.hf._lazy import Mask
from relpos.hf._traced import bounds


@dataclass
class _Rules:
    """What a mask function of transformers allows, as rules that all apply.

    left, right: bounds of key - query, None for no bound. chunks: (size, left padding [B]).
    packed: the number of each token's sequence [B, L], not decreasing. unions: other rules, and the
    number of each token's block [B, L], -1 for none; the tokens of a block see each other, too.
    asked: functions of a model's own file, which are asked for every pair.
    """

    left: int | None = None
    right: int | None = None
    chunks: list[tuple[int, Tensor]] = field(default_factory=list)
    packed: list[Tensor] = field(default_factory=list)
    unions: list[tuple["_Rules", Tensor]] = field(default_factory=list)
    asked: list[Callable] = field(default_factory=list)


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | Mask | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Mask | Tensor:
    """The function that transformers calls to build a mask, with the arguments of its sdpa_mask.

    Where the keys that a query sees are no interval, as in a prefix beside a window, it is the
    tensor [B, 1, Lq, Lk] of transformers, True = attend.
    """
    if isinstance(attention_mask, Mask):  # generate() prepares it for a static cache
        return attention_mask
    try:
        if not torch.compiler.is_compiling() and _asks_the_matrix(mask_function):
            _refuse("a mask that its model reads")
        rules = _rules(mask_function)
        made = _lazy(rules, q_length, kv_length, q_offset, kv_offset, attention_mask, device)
        made.rows, made.dtype = batch_size, others.get("dtype") or made.dtype
        return made
    except _NoInterval:
        from transformers import masking_utils

        return masking_utils.sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            device=device,
            **others | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )


def _lazy(
    rules: "_Rules",
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    attention_mask: Tensor | None,
    device: torch.device | str,
) -> Mask:
    q_start = q_offset - kv_offset
    padding = None
    if attention_mask is not None:
        padding = _padding(attention_mask, kv_length, kv_offset)
    key_range = _key_range(rules, q_length, kv_length, q_start, kv_offset, device, attention_mask)
    own_key = rules.left == 0 and rules.right == 0
    return Mask(q_length, kv_length, q_start, key_range, padding, newest=own_key)


def window_mask(
    length: int, reach: int, attention_mask: Tensor | None, device: torch.device | str
) -> Mask:
    """Keys within `reach` of the query on both sides, in one sequence of queries and keys."""
    key_range = _key_range(_Rules(reach, reach), length, length, 0, 0, device)
    padding = None if attention_mask is None else _padding(attention_mask, length, 0)
    return Mask(length, length, 0, key_range, padding)


def _padding(attention_mask: Tensor, keys: int, first: int) -> Tensor | None:
    """A [B, seen] mask, True = attend, as [B, keys], True = hidden; None if no key is hidden."""
    seen = attention_mask[:, first : first + keys].to(torch.bool)
    if seen.shape[1] < keys:  # a static cache has room for tokens to come
        seen = torch.nn.functional.pad(seen, (0, keys - seen.shape[1]))
    if not torch.compiler.is_compiling() and bool(seen.all()):
        return None
    return ~seen


def _key_range(
    rules: _Rules,
    queries: int,
    keys: int,
    start: int | Tensor,
    dropped: int,
    device: torch.device | str,
    seen: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Bounds, counted from the first key in the cache. The cache has dropped `dropped` keys before
    it; chunks are counted from the first of those. seen: [B, tokens], False or 0 for padding."""
    if rules == _Rules():
        return None
    at = torch.arange(queries, dtype=torch.int64, device=device) + start
    lo, hi = _bounds(rules, at, keys, dropped, seen)
    return lo.clamp(0, keys), hi.clamp(0, keys)


def _bounds(
    rules: _Rules, at: Tensor, keys: int, dropped: int, seen: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As _key_range, for queries at `at`; bounds may be outside of the keys."""
    lo = torch.zeros_like(at) if rules.left is None else at - rules.left
    hi = torch.full_like(at, keys) if rules.right is None else at + rules.right + 1
    for size, pads in rules.chunks:
        first = pads[:, None].to(torch.int64) - dropped
        first = first + (at - first).div(size, rounding_mode="floor") * size
        lo, hi = torch.maximum(lo, first), torch.minimum(hi, first + size)
    for numbers in rules.packed:
        numbers = numbers.contiguous()
        lo = torch.maximum(lo, torch.searchsorted(numbers, numbers))
        hi = torch.minimum(hi, torch.searchsorted(numbers, numbers, right=True))
    for function in rules.asked:
        first, stop = _asked_bounds(function, at + dropped, keys, dropped)
        lo, hi = torch.maximum(lo, first), torch.minimum(hi, stop)
    for inner, blocks in rules.unions:  # a query is in its block: the union is an interval, too
        ends = _block_ends(blocks, seen)
        first, last = (end.index_select(1, at + dropped) - dropped for end in ends)
        before, after = _bounds(inner, at, keys, dropped, seen)
        lo = torch.maximum(lo, torch.minimum(before, first))
        hi = torch.minimum(hi, torch.maximum(after, last + 1))
    return lo, hi


def _asked_bounds(function: Callable, at: Tensor, keys: int, dropped: int) -> tuple[Tensor, Tensor]:
    """Bounds of the keys that a function of batch row, head, query and key shows. Raises
    _NoInterval where some query sees no interval of them."""
    key = torch.arange(keys, device=at.device)
    zero = torch.zeros((), dtype=torch.int64, device=at.device)
    lo, hi = [], []
    for queries in at.split(64):  # never all pairs at once
        seen = function(zero, zero, queries[:, None], key + dropped).expand(len(queries), keys)
        first = torch.where(seen, key, keys).amin(-1) if keys else torch.zeros_like(queries)
        stop = torch.where(seen, key + 1, 0).amax(-1) if keys else torch.zeros_like(queries)
        if not torch.equal((stop - first).clamp(min=0), seen.sum(-1)):
            _refuse(getattr(function, "__qualname__", repr(function)))
        lo.append(first)
        hi.append(stop)
    return torch.cat(lo), torch.cat(hi)


def _block_ends(blocks: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """The first and the last token of each token's block [B, L]; itself, of padding and of a token
    in no block. Raises _NoInterval for a block whose tokens do not follow one another."""
    first = torch.arange(blocks.shape[1], device=blocks.device).repeat(len(blocks), 1)
    last = first.clone()
    for row, numbers in enumerate(blocks):
        shown = torch.ones_like(numbers, dtype=torch.bool)
        if seen is not None:  # tokens to come are in no block
            shown[: seen.shape[1]] = seen[row, : len(shown)]
        at = shown.nonzero().flatten()
        found, counts = numbers[at].unique_consecutive(return_counts=True)
        inside = found >= 0
        if len(found[inside].unique()) < int(inside.sum()):
            _refuse("blocks of tokens that do not follow one another")
        stops = counts.cumsum(0)
        inside = inside.repeat_interleave(counts)
        for end, place in ((first, stops - counts), (last, stops - 1)):
            end[row, at] = torch.where(inside, at[place].repeat_interleave(counts), at)
    return first, last


def _rules(function: Callable | None) -> _Rules:
    if function is None:
        return _Rules(right=0)
    if torch.compiler.is_compiling():
        found = bounds(function)
        if found is not None:
            return _Rules(found.left, found.right)
    rules = _Rules()
    _read(function, rules)
    return rules


def _kind(function: Callable) -> str | None:
    """The name of the function of transformers that made a mask function."""
    from transformers import masking_utils as masking

    if getattr(function, "__module__", None) != masking.__name__:
        return None
    return getattr(function, "__qualname__", "").partition(".")[0]


def _held(function: Callable) -> dict[str, Any]:
    """The numbers in a closure, by their names."""
    cells = function.__closure__ if hasattr(function, "__closure__") else None
    names = function.__code__.co_freevars if cells else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells or (), strict=True)}


def _read(function: Callable, rules: _Rules) -> None:
    """Adds what a mask function of transformers allows. These functions are closures: the name of
    the enclosing function says the kind, and the cells hold its numbers."""
    from transformers import masking_utils as masking

    if function is masking.causal_mask_function:
        _narrow(rules, None, 0)
        return
    if function is masking.bidirectional_mask_function:
        return
    kind, held = _kind(function), _held(function)
    reader = _READERS.get(kind)
    if reader is None and _of_a_model(function) and not _reads_tensors(held):
        rules.asked.append(function)
        return
    if reader is None:
        _refuse(kind or getattr(function, "__qualname__", repr(function)))
    try:
        reader(rules, **held)
    except TypeError as error:
        _refuse(f"{kind}, which holds {sorted(held)} ({error})")


def _asks_the_matrix(function: Callable | None) -> bool:
    """Whether a model asks its mask which queries see no key: Nemotron's does, of a bool tensor."""
    parts = _held(function).get("mask_functions", ()) if function is not None else ()
    names = (getattr(each, "__qualname__", "") for each in (function, *parts))
    return any(name.startswith("chunked_limited_mask_function.") for name in names)


def _of_a_model(function: Callable) -> bool:
    return str(getattr(function, "__module__", "")).startswith("transformers.models.")


def _reads_tensors(held: Any) -> bool:
    """Whether what a function holds may differ between batch rows: anything but plain numbers."""
    plain = (bool, int, float, type(None))
    flat = [x for each in held.values() for x in (each if isinstance(each, tuple) else (each,))]
    return not all(isinstance(each, plain) for each in flat)


class _NoInterval(Exception):
    """The keys that some query sees are no interval."""


def _refuse(kind: str) -> None:
    raise _NoInterval(kind)


def _narrow(rules: _Rules, left: int | None, right: int | None) -> None:
    for name, bound in (("left", left), ("right", right)):
        if bound is not None:
            before = getattr(rules, name)
            setattr(rules, name, bound if before is None else min(before, bound))


def _read_all(rules: _Rules, mask_functions: tuple[Callable, ...]) -> None:
    for function in mask_functions:
        _read(function, rules)


def _read_union(rules: _Rules, mask_functions: tuple[Callable, ...]) -> None:
    function, *others = mask_functions
    if [_kind(other) for other in others] != ["blockwise_overlay"]:
        _refuse("or_masks")
    inner = _Rules()
    _read(function, inner)
    rules.unions.append((inner, *_held(others[0]).values()))


def _read_window(rules: _Rules, sliding_window: int) -> None:
    _narrow(rules, sliding_window - 1, None)


def _read_two_sided_window(rules: _Rules, sliding_window: int) -> None:
    _narrow(rules, sliding_window, sliding_window)


def _read_chunks(rules: _Rules, chunk_size: int, left_padding: Tensor) -> None:
    rules.chunks.append((chunk_size, left_padding))


def _read_packed(rules: _Rules, packed_sequence_mask: Tensor) -> None:
    rules.packed.append(packed_sequence_mask)


def _read_remapped(rules: _Rules, mask_function: Callable, position_ids: Tensor) -> None:
    """A rule on positions that start again with each sequence. Inside a sequence, differences of
    positions are those of the indices, so that a bound on the distance stays the same rule. For
    chunks this is not so."""
    inner = _Rules()
    _read(mask_function, inner)
    if inner.chunks or inner.packed or inner.unions or inner.asked:
        _refuse("chunks or blocks in packed sequences")
    _narrow(rules, inner.left, inner.right)


_READERS = {
    "and_masks": _read_all,
    "or_masks": _read_union,
    "sliding_window_overlay": _read_window,
    "sliding_window_bidirectional_overlay": _read_two_sided_window,
    "chunked_overlay": _read_chunks,
    "packed_sequence_mask_function": _read_packed,
    "remap_positions_for_packed_sequence": _read_remapped,
}
