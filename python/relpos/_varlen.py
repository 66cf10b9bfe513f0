"""relpos.attention_varlen: sequences of different lengths, packed one after another."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._attention import attention, refuse_elsewhere
from relpos._call import flatten
from relpos._position import Composed
from relpos._rank import check_rank

_FAR = 2**61  # beyond every distance, and its sums stay below 2^63


def attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    position: Composed | Sequence[Composed] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    float32_products: bool = False,
    enable_gqa: bool = False,
    window: tuple[int, int] | None = None,
    q_offset: int | Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention within each of S packed sequences, in one call. Positions start again in each.

    Equal to relpos.attention on each sequence by itself. No Lq x Lk tensor is built, and keys of
    other sequences are read only where two sequences share a group of 64 keys. A position that
    depends on the length of a call must fix it by its option length=.

    Args:
      query: [Tq, H, D], key [Tk, Hk, D], value [Tk, Hk, Dv]: the sequences one after another.
      cu_seqlens_q, cu_seqlens_k: int32 or int64 [S + 1]: where each sequence starts, then Tq (Tk):
        0, l_0, l_0 + l_1, ... Sequences may be empty. cu_seqlens_k=None: the same as for queries.
      is_causal, window: as in relpos.attention, between positions within a sequence.
      q_offset: position of each sequence's first query, an int or int64 [S]; its first key is at
        0. It must be given where positions matter and a sequence has more or fewer keys than
        queries (under torch.compile: where cu_seqlens_k is given).
      sinks: [H] or [H, Tq].
      The others are those of relpos.attention.

    Returns:
      out [Tq, H, Dv], or (out, lse [H, Tq]).
    """
    refuse_elsewhere("attention_varlen", "give ring_attention cu_seqlens")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_rank(name, tensor, 3, "[Tq, H, D]" if name == "query" else "[Tk, Hk, D]")
    starts_q, starts_k = _both_starts(query, key, cu_seqlens_q, cu_seqlens_k)
    left, right = bounds_of(window, is_causal)
    if position is not None and starts_q.shape[0] > 2:
        check_one_length(position)
    read = any(part._reads_positions for part in flatten(position))
    rows = torch.arange(query.shape[0], device=query.device)
    sequence = torch.searchsorted(starts_q[1:], rows, right=True)
    first, last = starts_k[sequence], starts_k[sequence + 1]
    lo, hi = first, last
    positions = {}
    if read or left is not None or right is not None:
        at = rows - starts_q[sequence] + offsets_of(q_offset, starts_q, starts_k)[sequence]
        if left is not None:
            lo = torch.maximum(lo, first + (at - left))
        if right is not None:
            hi = torch.minimum(hi, first + (at + (right + 1)))
    if read:
        columns = torch.arange(key.shape[0], device=key.device)
        of_key = torch.searchsorted(starts_k[1:], columns, right=True)
        positions = {"q_positions": at, "k_positions": columns - starts_k[of_key]}
    results = attention(
        query.transpose(0, 1).unsqueeze(0),
        key.transpose(0, 1).unsqueeze(0),
        value.transpose(0, 1).unsqueeze(0),
        position=position,
        dropout_p=dropout_p,
        scale=scale,
        softcap=softcap,
        sinks=_of_batch(sinks, query),
        float32_products=float32_products,
        enable_gqa=enable_gqa,
        key_range=(lo, hi),
        return_lse=return_lse,
        **positions,
    )
    out, lse = results if return_lse else (results, None)
    out = out.squeeze(0).transpose(0, 1).contiguous()
    return out if lse is None else (out, lse.squeeze(0))


def _of_batch(sinks: Any, query: Tensor) -> Any:
    """[H] or [H, Tq] as relpos.attention takes them."""
    if not isinstance(sinks, Tensor) or sinks.dim() == 1:
        return sinks
    tokens, heads = query.shape[:2]
    if sinks.shape != (heads, tokens):
        raise ValueError(
            f"sinks: expected [{heads}] or [{heads}, {tokens}], got {list(sinks.shape)}"
        )
    return sinks.unsqueeze(0)


def _both_starts(
    query: Tensor, key: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Where each sequence starts in query and in key, checked."""
    starts_q = starts_of("cu_seqlens_q", cu_seqlens_q, query.shape[0], "query")
    if cu_seqlens_k is not None and cu_seqlens_k is not cu_seqlens_q:
        starts_k = starts_of("cu_seqlens_k", cu_seqlens_k, key.shape[0], "key")
        if starts_k.shape != starts_q.shape:
            raise ValueError(
                f"cu_seqlens_k: expected {starts_q.shape[0]} entries, as cu_seqlens_q has, got "
                f"{starts_k.shape[0]}"
            )
        return starts_q, starts_k
    if key.shape[0] != query.shape[0]:
        raise ValueError(
            f"cu_seqlens_k: expected it where key has other rows than query, {query.shape[0]}, "
            f"got none for key {list(key.shape)}"
        )
    return starts_q, starts_q


def starts_of(name: str, starts: Any, rows: int, of: str) -> Tensor:
    if not isinstance(starts, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(starts).__name__}")
    if starts.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: expected int32 or int64, got {starts.dtype}")
    if starts.dim() != 1 or starts.shape[0] < 1:
        raise ValueError(f"{name}: expected [S + 1], got {list(starts.shape)}")
    sound = (starts[0] == 0) & (starts[-1] == rows) & (starts.diff() >= 0).all()
    if torch.compiler.is_compiling():
        torch._assert_async(sound, f"{name}: expected 0, ..., rows of {of}, never decreasing")
    elif not starts.is_meta and not sound:
        shown = starts.tolist() if starts.shape[0] <= 8 else [*starts[:4].tolist(), "..."]
        raise ValueError(
            f"{name}: expected to start at 0, never decrease and end at {rows}, the rows of {of}, "
            f"got {shown}"
        )
    return starts.to(torch.int64)


def check_one_length(position: Composed | Sequence[Composed]) -> None:
    for part in flatten(position):
        if part._reads_length:
            raise ValueError(
                f"position: {part._text} depends on the length of the call, and packed sequences "
                "have lengths of their own: expected its option length=, got None; or call "
                "relpos.attention for each sequence"
            )


def bounds_of(window: Any, is_causal: bool) -> tuple[int | None, int | None]:
    """(left, right) distances that a query sees; None is no bound."""
    left, right = -1, -1
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise TypeError(f"window: expected a pair (left, right), got {window!r}")
        left, right = window
        if not all(isinstance(bound, (int, torch.SymInt)) for bound in window):
            raise TypeError(f"window: expected two ints, got {window!r}")
        if left < -1 or right < -1:
            raise ValueError(f"window: expected bounds from -1 (none) on, got {window!r}")
    if is_causal:
        right = 0
    return (
        None if left == -1 else min(left, _FAR),
        None if right == -1 else min(right, _FAR),
    )


def offsets_of(q_offset: Any, starts_q: Tensor, starts_k: Tensor) -> Tensor:
    count = starts_q.shape[0] - 1
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
        if q_offset.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"q_offset: expected an int or int64 [{count}], got {q_offset.dtype}")
        if q_offset.dim() > 1 or (q_offset.dim() == 1 and q_offset.shape[0] != count):
            raise ValueError(
                f"q_offset: expected an int or int64 [{count}], one for each sequence, got "
                f"{list(q_offset.shape)}"
            )
        offsets = q_offset.to(torch.int64).expand(count)
    elif isinstance(q_offset, (int, torch.SymInt)) and not isinstance(q_offset, bool):
        offsets = torch.full((count,), q_offset, dtype=torch.int64, device=starts_q.device)
    else:
        raise TypeError(f"q_offset: expected an int or int64 [{count}], got {q_offset!r}")
    # Sums with window bounds must stay inside 64 bits; the core refuses positions this far out.
    return offsets.clamp(-_FAR, _FAR)
