"""relpos.attention and relpos.scores: arguments checked and laid out for the operators."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _autograd, _core, _ops
from relpos._position import Position, flat
from relpos._rank import check_rank

_FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "meta")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    position: Position | Sequence[Position] | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: tuple[int, int] | None = None,
    q_offset: int | Tensor | None = None,
    k_offset: int | Tensor = 0,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    key_range: tuple[Tensor, Tensor] | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
) -> Any:
    """Attention with relative positions: exact, trainable, linear in memory.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], of one dtype: float32,
        float64, bfloat16 or float16; any strides.
      position: None, a relpos position, or a list of them.
      attn_mask: bool, True = attend, or floating, added after scale and bias; broadcastable to
        [B, H, Lq, Lk]. One that requires grad gets its dense gradient.
      key_padding_mask: bool [B, Lk], True = padding.
      dropout_p: applies whenever it is above 0; the seed comes from torch's default generator.
      is_causal: keys with pos_k <= pos_q only.
      scale: None is 1 / sqrt(D).
      enable_gqa: allows Hk to divide H.
      window: (left, right), -left <= pos_k - pos_q <= right; -1 is no bound.
      q_offset, k_offset: position of the first query and key, an int or int64 [B]. q_offset must
        be said where Lq != Lk and positions matter: Lk - Lq for a cache or memory.
      q_positions, k_positions: int64 [L] or [B, L], both or neither, instead of offsets.
      key_range: (lo, hi), int64 [Lq] or [B, Lq]: keys lo <= j < hi. All masks are ANDed.
      return_lse: appends the natural log of each row's sum [B, H, Lq], differentiable.
      return_weights: appends the weights after dropout [B, H, Lq, Lk], detached and dense.

    Returns:
      out [B, H, Lq, Dv], or (out, lse), (out, weights), (out, lse, weights). A row without a key
      is 0, its lse -inf, its gradients 0.
    """
    query, key, value = _same_kind(query=query, key=key, value=value)
    dropout_p = _number("dropout_p", dropout_p)
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p: expected 0 <= dropout_p <= 1, got {dropout_p}")
    seed = torch.randint(2**63 - 1, (), device="cpu") if dropout_p > 0 else None
    options, parameters = _shared(
        query,
        position,
        attn_mask,
        key_padding_mask,
        seed,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
        window,
        q_offset,
        k_offset,
        q_positions,
        k_positions,
        key_range,
    )
    wanted = return_lse, return_weights
    results = _autograd.attention(query, key, value, *wanted, options, parameters)
    if return_lse:
        return results
    return (results[0], results[2]) if return_weights else results[0]


def scores(
    query: Tensor,
    key: Tensor,
    *,
    position: Position | Sequence[Position] | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: tuple[int, int] | None = None,
    q_offset: int | Tensor | None = None,
    k_offset: int | Tensor = 0,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    key_range: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The dense scores [B, H, Lq, Lk] before the softmax, -inf where hidden; differentiable.

    The arguments are those of relpos.attention.
    """
    query, key = _same_kind(query=query, key=key)
    options, parameters = _shared(
        query,
        position,
        attn_mask,
        key_padding_mask,
        None,
        0.0,
        is_causal,
        scale,
        enable_gqa,
        window,
        q_offset,
        k_offset,
        q_positions,
        k_positions,
        key_range,
    )
    return _autograd.scores(query, key, options, parameters)


def workspace_bytes(
    query: Tensor, key: Tensor, value: Tensor, *, backward: bool = False, **options: Any
) -> int:
    """Peak bytes of one call beyond inputs and outputs, by the documented formula; the options
    are those of relpos.attention."""
    names = ("position", "attn_mask", "key_padding_mask", "seed", "dropout_p", "is_causal")
    names += ("scale", "enable_gqa", "window", "q_offset", "k_offset", "q_positions")
    names += ("k_positions", "key_range")
    defaults = {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False, "k_offset": 0}
    given = [options.pop(name, defaults.get(name)) for name in names]
    if options:
        raise TypeError(f"workspace_bytes: unexpected {', '.join(options)}")
    shared, parameters = _shared(query, *given)
    return _core.workspace_bytes(
        *_ops.views((query, key, value)),
        _ops.option_views(shared),
        _ops.views(parameters),
        backward,
    )


def check_fits(position: Any, heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises ValueError where every call with these heads would refuse the position."""
    text, parameters = flat(position)
    said = {"position": text, "dropout_p": 0.0, "is_causal": False, "enable_gqa": True}
    options = [{**said, "k_offset": 0}.get(name) for name, _ in _ops.OPTIONS]
    _core.workspace_bytes(
        _ops.zeros(1, heads, 1, head_dim),
        _ops.zeros(1, kv_heads, 1, head_dim),
        _ops.zeros(1, kv_heads, 1, head_dim),
        _ops.option_views(options),
        [_ops.zeros(*parameter.shape) for parameter in parameters],
        False,
    )


def _same_kind(**tensors: Tensor) -> list[Tensor]:
    """Checks type, rank, device and dtype; casts as autocast asks."""
    dtype = None
    for name, tensor in tensors.items():
        check_rank(name, tensor, 4, "[B, H, Lq, D]" if name == "query" else "[B, Hk, Lk, D]")
        if not tensor.is_cpu and tensor.device.type not in _DEVICES:
            raise ValueError(
                f"{name}: expected a tensor on the CPU, got {tensor.device}; relpos computes on "
                "the CPU: move it with .cpu()"
            )
        if tensor.dtype not in _FLOATING:
            raise TypeError(
                f"{name}: expected float32, float64, bfloat16 or float16, got {tensor.dtype}"
            )
        dtype = dtype or tensor.dtype
    given = list(tensors.values())
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        given = [t if t.dtype == torch.float64 else t.to(low) for t in given]
        dtype = given[0].dtype
    for name, tensor in zip(tensors, given, strict=True):
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: expected {dtype}, as query has, got {tensor.dtype}")
    return given


def _shared(
    query: Tensor,
    position: Any,
    attn_mask: Any,
    key_padding_mask: Any,
    seed: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    window: Any,
    q_offset: Any,
    k_offset: Any,
    q_positions: Any,
    k_positions: Any,
    key_range: Any,
) -> tuple[tuple, list[Tensor]]:
    """The shared options in the order of _ops.OPTIONS, and the position's parameters."""
    text, parameters = flat(position)
    for parameter in parameters:
        if not parameter.is_cpu and parameter.device.type not in _DEVICES:
            raise ValueError(f"position: expected its tensors on the CPU, got {parameter.device}")
    if attn_mask is not None:
        _check_tensor("attn_mask", attn_mask, (torch.bool, *_FLOATING))
    if key_padding_mask is not None:
        _check_tensor("key_padding_mask", key_padding_mask, (torch.bool,))
    q_offsets, q_start = _offset("q_offset", q_offset, query)
    k_offsets, k_start = _offset("k_offset", k_offset, query)
    lo = hi = None
    if key_range is not None:
        if not isinstance(key_range, (tuple, list)) or len(key_range) != 2:
            raise TypeError(f"key_range: expected a pair (lo, hi), got {key_range!r}")
        lo, hi = (_integers("key_range", bound) for bound in key_range)
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise TypeError(f"window: expected a pair (left, right), got {window!r}")
        window = [_integer("window", bound) for bound in window]
    options = (
        attn_mask,
        key_padding_mask,
        q_offsets,
        k_offsets,
        None if q_positions is None else _integers("q_positions", q_positions),
        None if k_positions is None else _integers("k_positions", k_positions),
        lo,
        hi,
        seed,
        text,
        float(dropout_p),
        bool(is_causal),
        None if scale is None else _number("scale", scale),
        bool(enable_gqa),
        window,
        q_start,
        k_start,
    )
    return options, parameters


def _check_tensor(name: str, tensor: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a {expected} tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name}: expected {expected}, got {tensor.dtype}")
    if tensor.device.type not in _DEVICES:
        raise ValueError(f"{name}: expected a tensor on the CPU, got {tensor.device}")


def _integers(name: str, tensor: Any) -> Tensor:
    _check_tensor(name, tensor, (torch.int64, torch.int32))
    return tensor.to(torch.int64)


def _integer(name: str, value: Any) -> Any:
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"{name}: expected an int, got {value!r}") from None
    if not torch.compiler.is_compiling() and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: expected an int of 64 bits, got {value}")
    return value


def _number(name: str, value: Any) -> float:
    if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and (
        isinstance(value, (str, bytes)) or not hasattr(value, "__float__")
    ):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    return float(value)


def _offset(name: str, offset: Any, query: Tensor) -> tuple[Tensor | None, Any]:
    """One offset for each batch row, or one number."""
    if not isinstance(offset, Tensor):
        if offset is None and name == "k_offset":
            raise TypeError("k_offset: expected an int or an int64 tensor, got None")
        return None, None if offset is None else _integer(name, offset)
    rows = _integers(name, offset)
    return (rows if rows.dim() else rows.expand(query.shape[0])), None if name == "q_offset" else 0
