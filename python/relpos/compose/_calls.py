"""What the compositions share: options, places of tokens, and calls over disjoint keys."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos import _core
from relpos._base.arguments import flag, integer
from relpos._base.errors import wrong_type
from relpos._base.tensors import check_device, check_heads, check_shape
from relpos._call.attention import attention, refuse_elsewhere
from relpos._call.distances import lowered
from relpos._call.merge import merge
from relpos._call.options import offset_fields
from relpos._position.part import places_tokens, text_of
from relpos._position.sum import flatten


class Piece(NamedTuple):
    """One of several calls: the keys lo <= j < hi, int64 [Lq] or [B, Lq], which no other call
    sees, and the options that are its own."""

    lo: Tensor
    hi: Tensor
    options: Mapping[str, Any]


def joined(
    query: Tensor, key: Tensor, value: Tensor, pieces: Sequence[Piece], options: Mapping[str, Any]
) -> Any:
    """One softmax over the keys of all pieces: out, or (out, lse) with return_lse. Sinks join the
    first call alone."""
    with_lse = flag("return_lse", options.get("return_lse", False))
    shared = {name: given for name, given in options.items() if name not in ("sinks", "return_lse")}
    results = [
        attention(
            query,
            key,
            value,
            key_range=(piece.lo, piece.hi),
            sinks=None if n else options.get("sinks"),
            return_lse=True,
            **shared,
            **piece.options,
        )
        for n, piece in enumerate(pieces)
    ]
    out, lse = merge(*zip(*results, strict=True))
    return (out, lse) if with_lse else out


def refuse(name: str, options: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raises ValueError for an option that is given and would be wrong here."""
    for option, reason in reasons.items():
        given = options.get(option)
        if given is not None and given is not False:
            raise ValueError(f"{option}: not with relpos.compose.{name}: {reason}")


def check_call(name: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    refuse_elsewhere(f"compose.{name}", "it counts the tokens of whole sequences")
    check_heads(query=query, key=key, value=value)
    for which, tensor in (("key", key), ("value", value)):
        check_device(which, tensor, query)


def refuse_placing(name: str, parts: Sequence[Any]) -> None:
    """Raises ValueError for a position that places tokens elsewhere than at their numbers."""
    for part in parts:
        if places_tokens(part):
            raise ValueError(
                f"position: {text_of(part)} places tokens where its own rule says, and {name} "
                "counts them one after another: expected a position without such a rule, or "
                "relpos.attention"
            )


def with_gates(position: Any, query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Any:
    """The position, whose gates have read this query and this key, and will not read what a
    composition makes of them."""
    gated = [part for part in flatten(position) if part._lowers and part._has_gates]
    if not gated:
        return position
    found: list[Any] = []
    for part in flatten(position):
        own = part in gated
        found += lowered(query, key, {**options, "position": part}) if own else [part]
    return found


def count(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool):
        raise wrong_type(name, "an int", value)
    return integer(name, value, least)


def offset_of(name: str, offset: Any, query: Tensor) -> Tensor:
    """int64 [] or [B, 1]."""
    (found,) = offset_fields(name, offset, query).values()
    if not isinstance(found, Tensor):
        return torch.tensor(found, device=query.device)
    check_shape(name, found, (len(query),))
    check_device(name, found, query)
    return found.unsqueeze(-1)


def offsets(query: Tensor, key: Tensor, q_offset: Any, k_offset: Any) -> tuple[Tensor, Tensor]:
    """Where queries and keys start, by the rules of relpos.attention: int64 [] or [B, 1]."""
    if q_offset is None:
        if isinstance(k_offset, Tensor) or k_offset != 0:
            raise ValueError(
                "q_offset: not given, and k_offset is given. Say where the queries are: q_offset = "
                "k_offset + Lk - Lq for a KV cache or memory; q_offset = 0 where they start at 0"
            )
        if query.shape[2] != key.shape[2]:
            _core.grid_offset(query.shape[2], key.shape[2], None)  # raises, and names both answers
        q_offset = 0
    return offset_of("q_offset", q_offset, query), offset_of("k_offset", k_offset, query)


def places(start: Tensor, length: int) -> Tensor:
    """Positions start, start + 1, ...: int64 [length] or [B, length]."""
    return start + torch.arange(length, device=start.device)
