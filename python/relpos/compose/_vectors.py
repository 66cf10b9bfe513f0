"""Queries, keys and values that change before the call: temperature, rotated values, PoPE, TUPE."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import flag, number, one_of, two_of
from relpos._base.errors import shape_of, wrong_value
from relpos._base.tensors import check_device, check_rank, check_shape, integers
from relpos._call.attention import attention
from relpos._call.distances import lowered
from relpos._call.packing import placing_text
from relpos._position import operators
from relpos._position.classes import Rotary
from relpos._position.part import Given, refuse_length, text_of, values_of
from relpos._position.sum import Composed, flatten
from relpos.compose._calls import (
    Piece,
    check_call,
    count,
    joined,
    offsets,
    places,
    refuse,
    with_gates,
)

_RULES = ("llama4", "ministral3", "log_n", "ssmax", "inkling")


def log_temperature(
    positions: Tensor,
    rule: str = "llama4",
    *,
    length: int = 8192,
    beta: float = 0.1,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """What a query is multiplied with, so that its softmax stays sharp over many keys.

    Args:
      positions: of the queries, int64, of any shape; those below 0 count as 0.
      rule, for a query at p:
        "llama4": 1 + beta ln(1 + floor((p + 1) / length)), in layers without a rotation
        (attn_scale is beta, floor_scale is length).
        "ministral3": 1 + beta ln(1 + floor(p / length)), beside a rotation (llama_4_scaling_beta,
        original_max_position_embeddings).
        "log_n": max(1, ln(p + 1) / ln(length)), as Qwen 1 and Self-Extend do beyond the trained
        length.
        "ssmax": ln(p + 1), times a learned number for each head, which is the caller's.
        "inkling": 1 + beta ln(max(1, (p + 1) / length)), in layers without a window, where it
        multiplies the bias, too (log_scaling_alpha is beta, log_scaling_n_floor is length).
      length: tokens, at least 1 ("log_n": 2).
      dtype: of the result, by default torch.get_default_dtype(). Computed in double.

    Returns:
      as positions: query * log_temperature(torch.arange(Lq))[:, None] for [Lq].

    Source: Nakanishi 2025, Scalable-Softmax Is Superior for Attention, section 2 ("ssmax"), which
    the models named by the rules follow; Su 2021, scaling by log n ("log_n").
    """
    rule = one_of("rule", rule, _RULES)
    length = count("length", length, 2 if rule == "log_n" else 1)
    at = integers("positions", positions).clamp(min=0).double()
    if rule in ("llama4", "ministral3"):
        steps = ((at + (rule == "llama4")) / length).floor()
        factor = 1 + beta * torch.log1p(steps)
    elif rule == "inkling":
        factor = 1 + beta * ((at + 1) / length).clamp(min=1.0).log()
    else:
        factor = torch.log1p(at)
        if rule == "log_n":
            factor = (factor / math.log(length)).clamp(min=1.0)
    return factor.to(dtype or torch.get_default_dtype())


def rotate_values(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    position: Composed | Sequence[Composed],
    undo: bool,
    **options: Any,
) -> Any:
    """Attention whose values turn by the rotation, as queries and keys do.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv]; Dv is the rotation's
        head_dim.
      position: a rotation, alone or in a sum. Its options start and rotary_dim choose the turned
        dimensions of values, too.
      undo: True turns the output back by the query's position, so that each value counts by its
        distance (DeepSeek-V4). False leaves it turned by the key's position, and the result
        changes when all tokens are shifted (RoFormer's rotary_value). What a value table adds
        (relpos.Shaw) turns back, too.
      options: those of relpos.attention.

    Returns:
      what relpos.attention returns. One call. A rotation with a magnitude A, such as relpos.YaRN,
      multiplies turned dimensions of the output by A, with undo by A^2.

    Source: Su et al. 2021, RoFormer (rotary_value of its code); DeepSeek-AI 2026, DeepSeek-V4.
    """
    check_call("rotate_values", query, key, value)
    undo = flag("undo", undo)
    rotation = _rotation_of(position)
    position = lowered(query, key, {**options, "position": position})
    if value.shape[3] != rotation.head_dim:
        wanted = f"{rotation.head_dim} columns, since its rows turn by {text_of(rotation)}"
        raise wrong_value("value", wanted, value.shape[3])
    given = options.get("q_positions"), options.get("k_positions")
    if given[0] is None and given[1] is None:
        starts = offsets(query, key, options.get("q_offset"), options.get("k_offset", 0))
        placed_by = placing_text(position)
        given = tuple(
            _tokens_at(start, x.shape[2], placed_by, x is key)
            for start, x in zip(starts, (query, key), strict=True)
        )
    turned = _turn(rotation, value, given[1], False)
    results = attention(query, key, turned, position=position, **options)
    if not undo:
        return results
    if not isinstance(results, tuple):
        return _turn(rotation, results, given[0], True)
    return (_turn(rotation, results[0], given[0], True), *results[1:])


def polar(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    phase: Tensor | None = None,
    base: float = 10000.0,
    position: Composed | Sequence[Composed] | None = None,
    **options: Any,
) -> Any:
    """Attention by PoPE: every dimension is a pair of its own, of a length and an angle.

    score = scale sum over c of softplus(q_c) softplus(k_c) cos((pos_q - pos_k) base^(-c / D)
    - phase_c). It is relpos.RoPE(2 D, layout="half", base=base) on softplus(q), 0 and
    softplus(k) cos(phase), softplus(k) sin(phase).

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv].
      phase: None for 0, or [Hk, D], of each key head, learned; numbers outside -2 pi to 0 count
        as the nearer of the two, and get no gradient.
      position: further terms, if any; not a rotation.
      options: those of relpos.attention. scale=None means 1 / sqrt(2 D), as in x-transformers.

    Returns:
      what relpos.attention returns. One call.

    Source: Gopalakrishnan et al. 2025, Decoupling the "What" and "Where" With Polar Coordinate
    Positional Embeddings, section 3.
    """
    for name, tensor in (("query", query), ("key", key)):
        check_rank(name, tensor, 4, "[B, H, L, D]")
    heads, dims = key.shape[1], key.shape[3]
    length_q, length_k = (torch.nn.functional.softplus(_wide(x)) for x in (query, key))
    if phase is None:
        k_pairs = [length_k, torch.zeros_like(length_k)]
    else:
        check_shape("phase", phase, (heads, dims))
        check_device("phase", phase, key, "key")
        angle = phase.clamp(-2 * math.pi, 0.0).to(length_k.dtype).unsqueeze(1)
        k_pairs = [length_k * angle.cos(), length_k * angle.sin()]
    q_pairs = [length_q, torch.zeros_like(length_q)]
    base = number("base", base)
    pairs = Given(f"rope(head_dim={2 * dims}, layout=half, base={base!r})", [])
    position = with_gates(position, query, key, options)
    return attention(
        torch.cat(q_pairs, -1).to(query.dtype),
        torch.cat(k_pairs, -1).to(key.dtype),
        value,
        position=[pairs, *flatten(position)],
        **options,
    )


def tupe(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_position: Tensor,
    key_position: Tensor,
    position: Composed | Sequence[Composed] | None = None,
    cls: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> Any:
    """Attention whose scores add a product of words and a product of positions.

    score = scale (<q_i, k_j> + <query_position_i, key_position_j>) + the terms of position: the
    second pair of vectors is appended to the heads. With cls, pairs with token 0 ([CLS]) have the
    product of words and one number of each head alone.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv].
      query_position: [H, Lq, E] or [B, H, Lq, E], the projected positions of the queries; all
        layers of the paper's models share them.
      key_position: [Hk, Lk, E] or [B, Hk, Lk, E].
      position: None (TUPE-A), or further terms, such as relpos.T5Bias(H) (TUPE-R). A rotation
        would have to be made for heads of D + E, with cls of D + E + 2.
      cls: None, or (from_cls, to_cls), two [H]: what token 0 adds to its scores of all keys, and
        all other queries to theirs of token 0. Needs Lq = Lk and no offsets.
      options: those of relpos.attention. scale=None means 1 / sqrt(D + E), 1 / sqrt(2 D) in the
        paper. With cls, raises ValueError for return_weights, positions and offsets.

    Returns:
      what relpos.attention returns. One call; two over disjoint keys with cls.

    Source: Ke, He, Liu 2021, Rethinking Positional Encoding in Language Pre-training, section 3.
    """
    check_call("tupe", query, key, value)
    options = dict(options)
    of_query = _expanded("query_position", query_position, query)
    of_key = _expanded("key_position", key_position, key)
    if of_query.shape[-1] != of_key.shape[-1]:
        wanted = f"{of_query.shape[-1]} columns, as query_position has"
        raise wrong_value("key_position", wanted, of_key.shape[-1])
    scale = options.pop("scale", None)
    if scale is None:
        scale = (query.shape[-1] + of_query.shape[-1]) ** -0.5
    options["scale"] = number("scale", scale)
    position = with_gates(position, query, key, options)
    if cls is None:
        q, k = torch.cat([query, of_query], -1), torch.cat([key, of_key], -1)
        return attention(q, k, value, position=position, **options)
    return _untied(query, key, value, of_query, of_key, position, cls, options)


_REFUSED_UNTIED = {
    "return_weights": "each of its calls would return the weights of its own keys",
    "key_range": "its calls have ranges of their own: give attn_mask or key_padding_mask",
    "q_offset": "with cls, token 0 of both sides is [CLS]",
    "k_offset": "with cls, token 0 of both sides is [CLS]",
    "q_positions": "with cls, token 0 of both sides is [CLS]",
    "k_positions": "with cls, token 0 of both sides is [CLS]",
}


def _untied(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    of_query: Tensor,
    of_key: Tensor,
    position: Any,
    cls: Any,
    options: dict[str, Any],
) -> Any:
    """The call in which pairs with token 0 see neither positions nor `position`: two appended
    dimensions hold their numbers, and `position` is in a call over the other pairs."""
    given = {name: x for name, x in options.items() if not (name == "k_offset" and x == 0)}
    refuse("tupe", given, _REFUSED_UNTIED)
    heads, length = query.shape[1:3]
    if key.shape[2] != length:
        raise wrong_value("cls", "Lq = Lk", f"{length} and {key.shape[2]}")
    for number_of_head in two_of("cls", cls, "(from_cls, to_cls)"):
        check_shape("cls", number_of_head, (heads,))
        check_device("cls", number_of_head, query)
    first = (torch.arange(length, device=query.device) == 0).to(query.dtype)
    added = [
        (given.to(query.dtype) / options["scale"])[:, None] * rows
        for given, rows in zip(cls, (first, 1 - first), strict=True)
    ]
    tokens = first.to(torch.bool)[:, None]
    q = [query, of_query.masked_fill(tokens, 0.0), _columns(added, query)]
    k = [key, of_key.masked_fill(tokens, 0.0), _columns([torch.ones_like(first), first], key)]
    rows = torch.arange(length, device=query.device)
    others, one = (rows > 0).to(torch.int64), torch.ones_like(rows)
    pieces = [
        Piece(one, one + others * (length - 1), {"position": position}),
        Piece(torch.zeros_like(rows), torch.where(rows > 0, one, length), {}),
    ]
    return joined(torch.cat(q, -1), torch.cat(k, -1), value, pieces, options)


def _columns(numbers: list[Tensor], like: Tensor) -> Tensor:
    """[H, L] or [L] each, side by side as columns of `like` [B, H, L, D]."""
    shape = like.shape[:3]
    return torch.stack([number.expand(shape) for number in numbers], -1)


def _expanded(name: str, vectors: Any, like: Tensor) -> Tensor:
    shape = tuple(like.shape[:3])
    if not isinstance(vectors, Tensor) or tuple(vectors.shape[:-1]) not in (shape, shape[1:]):
        wanted = f"{[*shape[1:], 'E']} or {[*shape, 'E']}".replace("'", "")
        raise wrong_value(name, wanted, shape_of(vectors))
    check_device(name, vectors, like)
    return vectors.to(like.dtype).expand(*shape, -1)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _rotation_of(position: Any) -> Any:
    found = [part for part in flatten(position) if isinstance(part, Rotary)]
    if len(found) != 1:
        wanted = "one rotation by position, alone or in a sum, such as relpos.RoPE"
        raise wrong_value("position", wanted, text_of(position) or "none")
    refuse_length(found, "which values alone do not show")
    return found[0]


def _tokens_at(start: Tensor, length: int, placed_by: str, keys: bool) -> int | Tensor:
    """The positions of tokens from `start` on, or the first where they follow each other."""
    if not placed_by:
        return places(start, length) if start.dim() else int(start)
    return operators.place_tokens(placed_by, keys, places(start, length))


def _turn(rotation: Any, x: Tensor, at: int | Tensor, inverse: bool) -> Tensor:
    """x [B, H, L, D] turned, row n by position at + n, or by at[n] or at[b, n]."""

    text, values = text_of(rotation), values_of(rotation)

    def turn(rows: Tensor, offset: int, positions: Tensor | None) -> Tensor:
        return operators.rotate(rows, text, offset, positions, inverse, values)

    if not isinstance(at, Tensor):
        return turn(x, at, None)
    if at.dim() == 1:
        return turn(x, 0, at)
    batch, heads, length, dims = x.shape
    folded = x.transpose(0, 1).reshape(1, heads, batch * length, dims)
    turned = turn(folded, 0, at.expand(batch, length).reshape(-1))
    return turned.view(heads, batch, length, dims).transpose(0, 1)
