"""relpos for NumPy: every scheme and every option of relpos.attention, without PyTorch.

A position is a text, as the command line reads it, and a list of arrays: parameters(position)
names those that it wants. Arrays are NumPy's, or of any library that shows memory of the CPU by
DLPack or the buffer protocol; float32, float64, float16, and bfloat16 of ml_dtypes. Results are
NumPy's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relpos import _core
from relpos._base.arguments import flag, integer
from relpos._base.errors import kind_of, wrong_type, wrong_value
from relpos._call.arrays import (
    FLOATING,
    NUMPY,
    TileMask,
    array_of,
    check_heads,
    given_to,
    memory_of,
)
from relpos._call.call import Call
from relpos._call.options import OfPairs, Options, takes, with_sinks
from relpos._position.registry import ParameterSpec, schemes, show_config
from relpos._position.texts import Read, dealt, read, read_position

__all__ = [
    "Gradients",
    "TileMask",
    "attention",
    "attention_backward",
    "dense",
    "parameters",
    "rotate",
    "schemes",
    "scores",
    "show_config",
]


class Gradients(NamedTuple):
    """Of attention's inputs; None of what was not wanted, and of integers."""

    query: Any
    key: Any
    value: Any
    parameters: list[Any]
    sinks: Any
    attn_mask: Any


class _Bound(NamedTuple):
    """One call, read."""

    call: Call
    found: Read
    arrays: list[np.ndarray]  # those of the caller's parameters
    sinks: np.ndarray | None
    mask: np.ndarray | None

    @classmethod
    def of(cls, function: str, tensors: Mapping[str, Any], options: dict[str, Any]) -> "_Bound":
        query, key = tensors["query"], tensors["key"]
        seed = options.pop("seed", None)
        given = [
            array_of(f"parameters[{n}]", value)
            for n, value in enumerate(_sequence(options.pop("parameters", ())))
        ]
        found = read_position(options.pop("position", None))
        wide = query.dtype == np.float64
        held = _values(found, given, np.float64 if wide else np.float32)
        text, sinks = found.text, options.get("sinks")
        if sinks is not None and function == "attention":
            sinks = array_of("sinks", sinks)
            text = with_sinks(text, sinks, query)
            held.append(memory_of("sinks", sinks, FLOATING))
        call = Call.of(function, query, key, {**options, "position": (text, tuple(held))})
        if seed is None and call.dropout_p > 0.0:
            raise wrong_type("seed", "an int where dropout_p is above 0", None)
        if seed is not None:
            number = np.asarray(integer("seed", seed), np.int64)
            call = call._replace(seed=memory_of("seed", number, ("int64",)))
        mask = None if call.attn_mask is None else array_of("attn_mask", options["attn_mask"])
        return cls(call, found, given, sinks, mask)


def _sequence(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise wrong_type("parameters", "a list of arrays", kind_of(value))
    return value


def _values(found: Read, given: Sequence[np.ndarray], fixed: Any) -> list[Any]:
    """The memory of all tensors of a position."""
    held = []
    for slot, array in zip(found.slots, dealt(found, given), strict=True):
        array = slot.filled(fixed) if array is None else array
        dtypes = (slot.spec.integer,) if slot.spec.integer else FLOATING
        held.append(memory_of(f"position: {slot.name}", array, dtypes))
    return held


def _heads(**tensors: Any) -> dict[str, np.ndarray]:
    found = {name: array_of(name, value) for name, value in tensors.items()}
    check_heads(found)
    return found


def _forward(tensors: Mapping[str, np.ndarray], bound: _Bound) -> tuple[np.ndarray, ...]:
    """(out, lse, softmax)"""
    query, value = tensors["query"], tensors["value"]
    wide = np.float64 if query.dtype == np.float64 else np.float32
    out = np.empty((*query.shape[:3], value.shape[3]), query.dtype)
    lse, softmax = np.empty(query.shape[:3], wide), np.empty((*query.shape[:3], 2), wide)
    held = [memory_of(name, array, FLOATING) for name, array in tensors.items()]
    _core.attention(*held, bound.call, given_to(out), given_to(lse), given_to(softmax))
    return out, lse, softmax


@takes(Options)
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    parameters: Sequence[Any] = (),
    seed: int | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    return_softmax: bool = False,
    **options: Any,
) -> Any:
    """relpos.attention on arrays. The options are those of relpos.attention, but for:

    Args:
      position: None or a text: "t5(heads=8)", "rope(layout=half)+alibi(heads=8)".
      parameters: the arrays that parameters(position) names, in this order.
      attn_mask: also a relpos.numpy.TileMask.
      seed: of dropout; an int must be given where dropout_p is above 0.
      return_softmax: also returns what attention_backward takes to save it the forward pass.

    Returns:
      out, or a tuple of out, lse, weights, softmax, those that are asked for.
    """
    bound, tensors = _read("attention", query, key, value, parameters, seed, options)
    wanted = {"return_lse": return_lse, "return_weights": return_weights}
    wanted["return_softmax"] = return_softmax
    lse_too, weights_too, softmax_too = (flag(name, held) for name, held in wanted.items())
    out, lse, softmax = _forward(tensors, bound)
    results = [out]
    if lse_too:
        results.append(lse)
    if weights_too:
        of_query, of_key = (memory_of(n, tensors[n], FLOATING) for n in ("query", "key"))
        dense = np.empty((*out.shape[:3], tensors["key"].shape[2]), out.dtype)
        _core.attention_weights(of_query, of_key, given_to(softmax), bound.call, given_to(dense))
        results.append(dense)
    if softmax_too:
        results.append(softmax)
    return tuple(results) if len(results) > 1 else out


def _read(
    function: str,
    query: Any,
    key: Any,
    value: Any,
    parameters: Any,
    seed: Any,
    options: dict[str, Any],
) -> tuple[_Bound, dict[str, np.ndarray]]:
    tensors = _heads(query=query, key=key, value=value)
    given = {**options, "parameters": parameters, "seed": seed}
    return _Bound.of(function, tensors, given), tensors


_WANTED = ("query", "key", "value", "parameters", "sinks")


@takes(Options)
def attention_backward(
    dout: Any,
    query: Any,
    key: Any,
    value: Any,
    *,
    out: Any = None,
    softmax: Any = None,
    dlse: Any = None,
    wanted: Sequence[str] = _WANTED,
    parameters: Sequence[Any] = (),
    seed: int | None = None,
    **options: Any,
) -> Gradients:
    """The gradients of attention(query, key, value, ...) with the same options and seed.

    Args:
      dout: of out. dlse: of lse, or None.
      out, softmax: what attention(return_softmax=True) returned; computed again where not given.
      wanted: the fields of Gradients to compute. "attn_mask", of a floating mask, is not among
        them unless it is named, since its gradient is dense.
    """
    unknown = [name for name in wanted if name not in Gradients._fields]
    if unknown:
        raise wrong_value("wanted", f"some of {', '.join(Gradients._fields)}", repr(unknown[0]))
    bound, tensors = _read("attention", query, key, value, parameters, seed, options)
    if out is None or softmax is None:
        out, _, softmax = _forward(tensors, bound)

    def empty(name: str, array: np.ndarray | None) -> np.ndarray | None:
        fits = array is not None and array.dtype.name in FLOATING
        return np.empty(array.shape, array.dtype) if fits and name in wanted else None

    of = [empty(name, array) for name, array in tensors.items()]
    following = iter([empty("parameters", array) for array in bound.arrays])
    own = [next(following) if slot.given else None for slot in bound.found.slots]
    sinks, mask = empty("sinks", bound.sinks), empty("attn_mask", bound.mask)
    flat = [*of, mask, *own, *([] if bound.sinks is None else [sinks])]
    results = {"out": out, "softmax": softmax, "dout": dout, "dlse": dlse}
    held = {**tensors, **{n: x if x is None else array_of(n, x) for n, x in results.items()}}
    views = [x if x is None else memory_of(name, x, FLOATING) for name, x in held.items()]
    _core.attention_backward(views, bound.call, [given_to(array) for array in flat])
    shown = [array for slot, array in zip(bound.found.slots, own, strict=True) if slot.given]
    return Gradients(*of, shown, sinks, mask)


@takes(OfPairs)
def scores(query: Any, key: Any, *, parameters: Sequence[Any] = (), **options: Any) -> np.ndarray:
    """The dense scores [B, H, Lq, Lk] before the softmax, -inf where hidden."""
    tensors = _heads(query=query, key=key)
    bound = _Bound.of("scores", tensors, {**options, "parameters": parameters})
    query, key = tensors.values()
    out = np.empty((*query.shape[:3], key.shape[2]), query.dtype)
    held = [memory_of(name, array, FLOATING) for name, array in tensors.items()]
    _core.scores(*held, bound.call, given_to(out))
    return out


def parameters(position: str | None) -> tuple[ParameterSpec, ...]:
    """What a position wants in parameters=[...]: the names, shapes and first values of its
    parameters and of its inputs of a call."""
    return tuple(slot.spec for slot in read_position(position).slots if slot.given)


def dense(
    position: str,
    queries: int,
    keys: int,
    q_offset: int | None = None,
    which: str = "key",
    *,
    parameters: Sequence[Any] = (),
) -> Any:
    """The position written out for all pairs of queries at q_offset + i and keys at j: its bias or
    its rows; of a rotation (cos, sin) of the queries and of the keys; of a sum a list."""
    found = read_position(position)
    grid = integer("queries", queries, 0), integer("keys", keys, 0)
    offset = q_offset if q_offset is None else integer("q_offset", q_offset)
    if offset is None:
        offset = 0 if grid[0] == grid[1] else _core.grid_offset(*grid, None)
    given = [array_of(f"parameters[{n}]", x) for n, x in enumerate(_sequence(parameters))]
    following = iter(dealt(found, given))
    results = []
    for part in found.parts:
        own = [next(following) for _ in part.parameters]
        results.append(_dense(part, [x for x in own if x is not None], (*grid, offset), which))
    return results[0] if len(results) == 1 else results


def _dense(part: Any, given: Sequence[np.ndarray], grid: tuple[int, int, int], which: str) -> Any:
    found = read(part.text)
    floating = [x.dtype for x in given if x.dtype.name in FLOATING]
    fixed = np.dtype(np.float64 if np.dtype(np.float64) in floating else np.float32)
    fills = any(not slot.given for slot in found.slots)
    dtypes = [*floating, *([fixed] if fills or not floating else [])]
    dtype = dtypes[0]
    for other in dtypes[1:]:
        dtype = np.promote_types(dtype, other)
    held = _values(found, given, fixed)
    if part.rotary_dims:
        if which != "key":
            raise wrong_value("which", "'key' for a rotation", repr(which))
        queries, keys, offset = grid
        heads = (part.rotary_heads,) if part.rotary_heads else ()
        wide = np.float64 if dtype == np.float64 else np.float32
        tables = []
        for length, first in ((queries, offset), (keys, 0)):
            cos, sin = (np.empty((*heads, length, part.rotary_dims), wide) for _ in range(2))
            _core.rotary_tables(part.text, first, held, given_to(cos), given_to(sin))
            tables.append((cos, sin))
        return tuple(tables)
    fixed_or_given = [
        slot.spec.shape if array is None else array.shape
        for slot, array in zip(found.slots, dealt(found, given), strict=True)
    ]
    out = np.empty(_core.dense_shape(part.text, *grid, which, fixed_or_given), dtype)
    _core.dense(part.text, *grid, which, held, given_to(out))
    return out


def rotate(
    x: Any,
    position: str,
    offset: int = 0,
    positions: Any = None,
    *,
    inverse: bool = False,
    parameters: Sequence[Any] = (),
) -> np.ndarray:
    """x [..., L, D] rotated; row n is at position offset + n, or at positions[n], int64 [L].
    Where heads learn their own frequencies, x is [..., heads, L, D]. inverse: turned back, which
    is also the gradient."""
    array, found = array_of("x", x), read_position(position)
    if array.ndim < 2:
        raise wrong_value("x", "rank 2 or more, [..., L, D]", str([*array.shape]))
    given = [array_of(f"parameters[{n}]", each) for n, each in enumerate(_sequence(parameters))]
    held = _values(found, given, np.float64 if array.dtype == np.float64 else np.float32)
    folded = array.reshape(-1, *array.shape[-3:]) if array.ndim > 4 else array
    places = None if positions is None else NUMPY.integers("positions", positions)
    out = np.empty(folded.shape, array.dtype)
    source = memory_of("x", folded, FLOATING)
    offset, back = integer("offset", offset), flag("inverse", inverse)
    _core.rotate(source, found.text, offset, places, back, held, given_to(out))
    return out.reshape(array.shape)
