"""Distances that stop growing, or grow slower, beyond a window: Self-Extend, ReRoPE, dual chunk."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos._base.arguments import flag, two_of
from relpos._base.errors import wrong_value
from relpos._base.tensors import check_device, integers
from relpos._call.distances import lowered
from relpos._call.packing import bounds_of
from relpos._position.classes import CLASSES
from relpos._position.part import reads_positions, refuse_length, text_of, turns_by_inputs
from relpos._position.sum import Composed, flatten, lowers
from relpos.compose._calls import (
    Piece,
    check_call,
    count,
    joined,
    offsets,
    places,
    refuse,
    refuse_placing,
)

_REFUSED = {
    "return_weights": "each of its calls would return the weights of its own keys",
    "q_positions": "it computes positions from offsets: give q_offset and k_offset",
    "k_positions": "it computes positions from offsets: give q_offset and k_offset",
}


class _Regime(NamedTuple):
    """Where queries and keys count as standing for the keys at positions first <= p < end."""

    first: Tensor | None
    end: Tensor | None
    q_positions: Tensor
    k_positions: Tensor
    position: Any = None  # instead of the caller's


def self_extend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    position: Composed | Sequence[Composed],
    group_size: int,
    window_size: int,
    **options: Any,
) -> Any:
    """Causal attention in which keys beyond a window share positions in groups.

    A key n = pos_q - pos_k tokens back counts as n back for n < window_size, and beyond that as
    floor(pos_q / group_size) + window_size - window_size / group_size - floor(pos_k / group_size):
    a model trained at T positions reads about (T - window_size) group_size + window_size.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], as for relpos.attention.
      position: what reads these distances: a rotation, a bias, or a sum.
      group_size: tokens that share a position.
      window_size: tokens with distances of their own, the query among them; a multiple of
        group_size.
      options: those of relpos.attention. Queries never see later keys. Raises ValueError for
        return_weights, q_positions and k_positions. Sinks are given by sinks=.

    Returns:
      out [B, H, Lq, Dv], or (out, lse [B, H, Lq]) with return_lse. Two calls over disjoint keys.

    Source: Jin et al. 2024, LLM Maybe LongLM, section 3.2, as its authors' code computes it.
    """
    group_size = count("group_size", group_size)
    window_size = count("window_size", window_size)
    if window_size % group_size:
        why = f"a multiple of group_size {group_size}, since their ratio is added to positions"
        raise wrong_value("window_size", why, window_size)

    def regimes(pos_q: Tensor, pos_k: Tensor) -> list[_Regime]:
        def grouped(positions: Tensor) -> Tensor:
            return positions.div(group_size, rounding_mode="floor")

        near = pos_q - (window_size - 1)
        far = grouped(pos_q) + (window_size - window_size // group_size)
        return [
            _Regime(near, None, pos_q, pos_k),
            _Regime(None, near, far, grouped(pos_k)),
        ]

    return _past("self_extend", query, key, value, position, regimes, options)


def rerope(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    position: Composed | Sequence[Composed],
    window_size: int,
    leak: float | None = None,
    **options: Any,
) -> Any:
    """Causal attention in which distances stop at window_size, or grow `leak` times slower there.

    A key n tokens back counts as n back for n < window_size, and beyond that as window_size, or as
    window_size + (n - window_size) / leak.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], as for relpos.attention.
      position: what reads these distances: a rotation, a bias, or a sum. With leak, whose
        distances are fractions, a relpos.RoPE.
      window_size: tokens with distances of their own, the query among them.
      leak: None, or from 1 on, with window_size (leak - 1) a whole number.
      options: those of relpos.attention. Queries never see later keys. Raises ValueError for
        return_weights, q_positions and k_positions. Sinks are given by sinks=.

    Returns:
      out [B, H, Lq, Dv], or (out, lse [B, H, Lq]) with return_lse. Two calls over disjoint keys.

    Source: Su 2023, Rectified Rotary Position Embeddings (github.com/bojone/rerope).
    """
    window_size = count("window_size", window_size)
    slower, ahead = (None, 0) if leak is None else _slower(position, window_size, leak)

    def regimes(pos_q: Tensor, pos_k: Tensor) -> list[_Regime]:
        near = pos_q - (window_size - 1)
        if slower is None:
            at = (torch.full_like(pos_q, window_size), torch.zeros_like(pos_k))
        else:
            at = (pos_q + ahead, pos_k)
        return [_Regime(near, None, pos_q, pos_k), _Regime(None, near, *at, slower)]

    return _past("rerope", query, key, value, position, regimes, options)


def dual_chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    position: Composed | Sequence[Composed],
    chunk_size: int,
    local_size: int,
    **options: Any,
) -> Any:
    """Causal attention in which positions start again in each chunk of s = chunk_size - local_size.

    A key at p counts as at p mod s. A query at p counts as at p mod s for the keys of its own
    chunk, at min(p mod s + s, chunk_size - 1) for those of the chunk before, and at chunk_size - 1
    for all earlier ones. So no distance reaches chunk_size, and the nearest local_size ones are
    right across the border of two chunks.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], as for relpos.attention.
      position: what reads these distances: a rotation, a bias, or a sum.
      chunk_size: more than the largest distance, at most the positions that the model was trained
        on.
      local_size: from 1 to chunk_size - 1.
      options: those of relpos.attention. Queries never see later keys. Raises ValueError for
        return_weights, q_positions and k_positions. Sinks are given by sinks=.

    Returns:
      out [B, H, Lq, Dv], or (out, lse [B, H, Lq]) with return_lse. Three calls over disjoint keys.

    Source: An et al. 2024, Training-Free Long-Context Scaling of Large Language Models, section 3.
    """
    chunk_size = count("chunk_size", chunk_size, 2)
    local_size = count("local_size", local_size)
    if local_size >= chunk_size:
        raise wrong_value("local_size", f"at most {chunk_size - 1}", local_size)
    length = chunk_size - local_size

    def regimes(pos_q: Tensor, pos_k: Tensor) -> list[_Regime]:
        at_q, at_k = pos_q.remainder(length), pos_k.remainder(length)
        chunk = pos_q - at_q
        last = torch.full_like(at_q, chunk_size - 1)
        return [
            _Regime(chunk, None, at_q, at_k),
            _Regime(chunk - length, chunk, torch.minimum(at_q + length, last), at_k),
            _Regime(None, chunk - length, last, at_k),
        ]

    return _past("dual_chunk", query, key, value, position, regimes, options)


def _past(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Any,
    regimes: Callable[[Tensor, Tensor], list[_Regime]],
    options: dict[str, Any],
) -> Any:
    """Attention to past keys, each by its regime."""
    check_call(name, query, key, value)
    refuse(name, options, _REFUSED)
    _check_position(name, position)
    options = dict(options)
    if not flag("is_causal", options.pop("is_causal", True)):
        why = f"True, since {name} says only where past keys count as standing"
        raise wrong_value("is_causal", why, False)
    left, _ = bounds_of(options.pop("window", None), True)
    start_q, start_k = offsets(
        query, key, options.pop("q_offset", None), options.pop("k_offset", 0)
    )
    pos_q, pos_k = places(start_q, query.shape[2]), places(start_k, key.shape[2])
    lo, hi = torch.zeros_like(pos_q), pos_q - start_k + 1
    key_range = options.pop("key_range", None)
    if key_range is not None:
        lo, end = (integers("key_range", x) for x in two_of("key_range", key_range, "(lo, hi)"))
        for bound in (lo, end):
            check_device("key_range", bound, query)
        hi = torch.minimum(hi, end)
    if left is not None:
        lo = torch.maximum(lo, pos_q - start_k - left)
    found = regimes(pos_q, pos_k)
    if lowers(position):  # once for all of them, whose keys are past
        at = {
            f"{side}_positions": torch.cat(
                [getattr(r, f"{side}_positions").flatten() for r in found]
            )
            for side in "qk"
        }
        position = lowered(query, key, {"position": position, "is_causal": True, **at})
        _check_position(name, position)
    pieces = []
    for regime in found:
        own = {
            "position": position if regime.position is None else regime.position,
            "q_positions": regime.q_positions,
            "k_positions": regime.k_positions,
        }
        first = lo if regime.first is None else torch.maximum(lo, regime.first - start_k)
        end = hi if regime.end is None else torch.minimum(hi, regime.end - start_k)
        pieces.append(Piece(first, end, own))
    return joined(query, key, value, pieces, options)


def _check_position(name: str, position: Any) -> None:
    parts = flatten(position)
    refuse_placing(name, parts)
    refuse_length(parts, f"and the calls of {name} have lengths of their own")
    for part in parts:
        text = text_of(part)
        if not reads_positions(part):
            raise ValueError(
                f"position: {text} would join each of the calls of {name}: expected sinks=, "
                "which joins one"
            )
        if turns_by_inputs(part):
            raise ValueError(
                f"position: {text} turns by given coordinates, and {name} changes positions: "
                "expected a rotation by position"
            )
    if not parts:
        raise wrong_value("position", f"one, whose distances {name} changes", "none")


def _slower(position: Any, window_size: int, leak: Any) -> tuple[Composed, int]:
    """The rotation `leak` times slower, and how much further queries stand, so that their distance
    is window_size at window_size."""
    if isinstance(leak, bool) or not isinstance(leak, (int, float)) or not leak >= 1:
        raise wrong_value("leak", "None or a number from 1 on", repr(leak))
    parts = flatten(position)
    if len(parts) != 1 or not isinstance(parts[0], CLASSES["RoPE"]):
        wanted = "position a relpos.RoPE alone, since distances beyond window_size are fractions"
        then = "leave leak out to keep them at window_size"
        raise wrong_value("leak", wanted, text_of(parts) or "none", then)
    ahead = window_size * (leak - 1)
    if ahead != int(ahead):
        wanted = f"window_size (leak - 1) to be a whole number for window_size {window_size}"
        raise wrong_value("leak", wanted, ahead)
    options = {option.name: getattr(parts[0], option.name) for option in parts[0].scheme.options}
    return CLASSES["LinearRoPE"](**options, factor=float(leak)), int(ahead)
