"""relpos for JAX: every scheme and every option of relpos.attention on the CPU, under jit, grad and
vmap, without PyTorch.

A position is a text and a list of arrays, as relpos.numpy takes them. float32, float64, float16 and
bfloat16.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

try:
    import jax
except ModuleNotFoundError as _error:
    if _error.name != "jax":
        raise
    raise ImportError(
        "relpos.jax needs JAX, which is not installed: pip install 'relpos[jax]'"
    ) from _error

import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from relpos import _core
from relpos._base.arguments import flag, integer
from relpos._base.errors import kind_of, wrong_type
from relpos._call.arrays import (
    FLOATING,
    KINDS,
    NumPyTensors,
    TileMask,
    array_of,
    check_heads,
    memory_of,
)
from relpos._call.call import RANKS, TENSORS, Call
from relpos._call.options import LIBRARIES, Options, takes, with_sinks
from relpos._position.texts import dealt, read_position
from relpos.numpy import parameters

__all__ = ["TileMask", "attention", "parameters"]

for _name, _handler in _core.xla_handlers().items():
    jax.ffi.register_ffi_target(_name, _handler, platform="cpu")


def _array(name: str, value: Any) -> jax.Array:
    known = isinstance(value, (jax.Array, np.ndarray, np.generic))
    if not known and not hasattr(value, "__jax_array__"):
        raise wrong_type(name, "an array of JAX or NumPy", kind_of(value))
    return jnp.asarray(value)


def _typed(name: str, value: Any, dtypes: Sequence[str]) -> jax.Array:
    array = _array(name, value)
    if array.dtype.name not in dtypes:
        raise wrong_type(name, " or ".join(dtypes), array.dtype.name)
    return array


_INTEGERS = ("int64", "int32")  # which JAX makes of int64 without jax_enable_x64


def _in_halves(values: np.ndarray) -> np.ndarray:
    """int64 as pairs of int32: JAX has the one with jax_enable_x64 alone."""
    return np.ascontiguousarray(values, np.int64)[..., None].view(np.int32)


class _JaxTensors(NumPyTensors):
    library: Any = jnp

    def array(self, name: str, value: Any) -> Any:
        return _array(name, value)

    def tensor(self, name: str, value: Any, kinds: Sequence[str]) -> Any:
        return _typed(name, value, [dtype for kind in kinds for dtype in KINDS[kind]])

    def integers(self, name: str, value: Any) -> Any:
        return _typed(name, value, _INTEGERS)

    def tiles(self, name: str, value: Any, query: Any) -> tuple[Any, ...] | None:
        if not all(hasattr(value, field) for field in TileMask._fields):
            return None

        def part(held: Any) -> Any:
            return held if isinstance(held, jax.Array) else array_of(name, held)

        words = part(value.words)
        words = _in_halves(words) if isinstance(words, np.ndarray) else words
        parts = (self.integers(name, x) for x in (part(value.ranges), part(value.entries), words))
        return *parts, [integer(name, size) for size in value.shape[2:]]


LIBRARIES[jax.Array] = _JaxTensors()


def _seed_of(seed: Any) -> Any:
    if isinstance(seed, (jax.Array, np.ndarray)):
        if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and not seed.ndim:
            return jax.random.bits(seed, (2,), jnp.uint32)
        if seed.dtype.name in ("int32", "uint32", "int64") and seed.size == 1:
            return jnp.asarray(seed).reshape(1)
        wanted = "an int, an array of one int32, uint32 or int64, or a key of jax.random"
        raise wrong_type("seed", wanted, f"{seed.dtype} {[*seed.shape]}")
    return _in_halves(np.asarray(integer("seed", seed)))


def _values(position: Any, given: Any, wide: bool) -> tuple[str, list[Any]]:
    """The text of a position and all of its tensors."""
    found = read_position(position)
    held = []
    for slot, array in zip(found.slots, dealt(found, given), strict=True):
        if array is None:
            held.append(slot.filled(np.float64 if wide else np.float32))
            continue
        dtypes: Sequence[str] = (slot.spec.integer,) if slot.spec.integer else FLOATING
        dtypes = _INTEGERS if dtypes == ("int64",) else dtypes
        held.append(_typed(f"position: {slot.name}", array, dtypes))
    return found.text, held


class _Static(NamedTuple):
    """What a call is besides its arrays."""

    position: str
    options: tuple[tuple[str, Any], ...]
    operands: tuple[str, ...]  # the fields of Call of those that follow query, key and value
    results: tuple[str, ...]

    @classmethod
    def of(cls, call: Call, results: Sequence[str]) -> tuple["_Static", tuple[Any, ...]]:
        """It, and the arrays that follow query, key and value."""
        arrays = [(name, x) for name in TENSORS if (x := getattr(call, name)) is not None]
        arrays += [("parameters", x) for x in call.parameters]
        plain = [name for name in Call._fields if name not in (*TENSORS, "position", "parameters")]
        options = []
        for name in plain:
            value = getattr(call, name)
            if value != Call._field_defaults[name]:
                options.append((name, tuple(value) if isinstance(value, list) else value))
        names = tuple(name for name, _ in arrays)
        static = cls(call.position, tuple(options), names, tuple(results))
        return static, tuple(x for _, x in arrays)


_OF_HEADS = ("query", "key", "value")
_BATCHED = {**RANKS, **dict.fromkeys(_OF_HEADS, 4), "out": 4, "softmax": 4, "dout": 4, "dlse": 3}


def _attribute(value: Any) -> Any:
    if isinstance(value, tuple):
        return np.asarray(value, np.int64)
    if isinstance(value, bool):
        return value
    return np.int64(value) if isinstance(value, int) else np.float64(value)


def _call(
    target: str, of: _Static, arrays: Mapping[str, Any], rest: Sequence[Any], shapes: Any, **to: Any
) -> Any:
    """A call of XLA's. python/xla_call.h says how the core reads it."""
    names = [*arrays, *of.operands]
    call = jax.ffi.ffi_call(target, tuple(shapes), vmap_method="expand_dims")
    return call(
        *arrays.values(),
        *rest,
        operands=",".join(names),
        ranks=np.asarray([_BATCHED.get(name, 0) for name in names], np.int64),
        position=of.position,
        **{name: _attribute(value) for name, value in of.options},
        **to,
    )


def _forward(of: _Static, operands: Sequence[Any], results: Sequence[str]) -> Any:
    query, key, value = operands[:3]
    wide = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
    rows = query.shape[:3]
    shapes = {
        "out": jax.ShapeDtypeStruct((*rows, value.shape[3]), query.dtype),
        "lse": jax.ShapeDtypeStruct(rows, wide),
        "softmax": jax.ShapeDtypeStruct((*rows, 2), wide),
    }
    shown = {name: shape for name, shape in shapes.items() if name in results}
    tensors = dict(zip(_OF_HEADS, operands, strict=False))
    made = _call(
        "relpos_attention", of, tensors, operands[3:], shown.values(), results=",".join(shown)
    )
    found = dict(zip(shown, made, strict=True))
    if "weights" in results:
        tensors = {"query": query, "key": key, "softmax": found["softmax"]}
        dense = jax.ShapeDtypeStruct((*rows, key.shape[2]), query.dtype)
        (found["weights"],) = _call(
            "relpos_attention_weights", of, tensors, operands[3:], [dense], results="weights"
        )
    return found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(of: _Static, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    needed = ("softmax",) if "weights" in of.results else ()
    found = _forward(of, operands, (*of.results, *needed))
    return tuple(found[name] for name in of.results)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Wanted:
    """The operands of which there are gradients, by their places."""

    places: tuple[int, ...]


def _attention_forward(of: _Static, primals: Any) -> Any:
    operands = tuple(primal.value for primal in primals)
    names = (*_OF_HEADS, *of.operands)
    trained = (*_OF_HEADS, "attn_mask", "parameters")
    wanted = tuple(
        n
        for n, (name, primal) in enumerate(zip(names, primals, strict=True))
        if name in trained and primal.perturbed and jnp.issubdtype(primal.value.dtype, jnp.floating)
    )
    found = _forward(of, operands, (*of.results, "softmax"))
    shown = tuple(found[name] for name in of.results)
    return shown, (operands, found["out"], found["softmax"], _Wanted(wanted))


def _attention_backward(of: _Static, kept: Any, cotangents: Any) -> Any:
    operands, out, softmax, trained = kept
    wanted = trained.places
    gradients: list[Any] = [None] * len(operands)
    given = {
        name: cotangent
        for name, cotangent in zip(of.results, cotangents, strict=True)
        if not isinstance(cotangent, SymbolicZero)
    }
    if not wanted or not given.keys() & {"out", "lse"}:
        return (tuple(gradients),)
    tensors = dict(zip(_OF_HEADS, operands, strict=False))
    tensors |= {"out": out, "softmax": softmax}
    tensors["dout"] = given["out"] if "out" in given else jnp.zeros_like(out)
    if "lse" in given:
        tensors["dlse"] = given["lse"]
    after = len(tensors) - len(_OF_HEADS)
    shapes = [jax.ShapeDtypeStruct(operands[n].shape, operands[n].dtype) for n in wanted]
    places = np.asarray([n if n < len(_OF_HEADS) else n + after for n in wanted], np.int64)
    found = _call("relpos_attention_backward", of, tensors, operands[3:], shapes, gradients=places)
    for n, gradient in zip(wanted, found, strict=True):
        gradients[n] = gradient
    return (tuple(gradients),)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)
# For calls outside of JAX's transformations alone: JAX 0.7 and 0.8 fail where they differentiate a
# function that was compiled before.
_compiled = jax.jit(_attention, static_argnums=0)
# What stands for a number, by its dtype: of learned ones those that reach as far as any can.
_NUMBERS = {"bool": np.zeros(1, np.bool_), "int64": np.zeros(1, np.int64)}
_NUMBERS |= {"uint8": np.zeros(1, np.uint8)}
_NUMBERS |= {name: np.full(1, 6e4 if name == "float16" else 1e30, name) for name in FLOATING}


@lru_cache(maxsize=1024)
def _check(of: _Static, shown: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    """Raises what a call of arrays with these dtypes and shapes raises, but for their numbers."""

    def stand_in(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        if dtype in ("int32", "uint32"):
            in_halves = (name == "tile_words" and len(shape) == 3) or (
                name == "seed" and shape[-1:] == (2,)
            )
            dtype, shape = "int64", shape[:-1] if in_halves else shape
        if name.startswith("tile_"):  # must have no gaps
            return memory_of(name, np.zeros(shape, np.int64), ("int64",))
        address = _NUMBERS[dtype].__array_interface__["data"][0]
        return _core.Memory(address, dtype, shape, [0] * len(shape), None)

    names = (*_OF_HEADS, *of.operands)
    held = [stand_in(name, *each) for name, each in zip(names, shown, strict=True)]
    query, key, value, *rest = held
    named = {name: x for name, x in zip(of.operands, rest, strict=True) if name != "parameters"}
    own = tuple(x for name, x in zip(of.operands, rest, strict=True) if name == "parameters")
    options = {n: [*x] if isinstance(x, tuple) else x for n, x in of.options}
    call = Call(**named, **options, position=of.position, parameters=own)
    _core.workspace_bytes(query, key, value, call, False)


@takes(Options)
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    parameters: Sequence[Any] = (),
    seed: Any = None,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Any,
) -> Any:
    """relpos.attention on arrays of JAX. Gradients flow to query, key, value, parameters, sinks and
    a floating attn_mask. The options are those of relpos.attention, but for:

    Args:
      position: None or a text: "t5(heads=8)", "rope(layout=half)+alibi(heads=8)".
      parameters: the arrays that parameters(position) names, in this order.
      attn_mask: also a TileMask.
      seed: of dropout, which must be given where dropout_p is above 0: an int, an array of one
        integer, or a key of jax.random.

    Returns:
      out, or a tuple of out, lse, weights, those that are asked for. No gradient flows through
      weights.
    """
    arrays = {"query": query, "key": key, "value": value}
    arrays = {name: _array(name, x) for name, x in arrays.items()}
    check_heads(arrays)
    query = arrays["query"]
    text, held = _values(options.pop("position", None), parameters, query.dtype == jnp.float64)
    sinks = options.get("sinks")
    if sinks is not None:
        sinks = _typed("sinks", sinks, FLOATING)
        text = with_sinks(text, sinks, query)
        held.append(sinks)
    call = Call.of("attention", query, arrays["key"], {**options, "position": (text, held)})
    if seed is None and call.dropout_p > 0.0:
        raise wrong_type("seed", "an int where dropout_p is above 0", None)
    if call.dropout_p > 0.0:
        call = call._replace(seed=_seed_of(seed))
    wanted = {"lse": flag("return_lse", return_lse)}
    wanted["weights"] = flag("return_weights", return_weights)
    results = ["out", *(name for name, asked in wanted.items() if asked)]
    static, rest = _Static.of(call, results)
    operands = (*arrays.values(), *rest)
    _check(static, tuple((x.dtype.name, tuple(x.shape)) for x in operands))
    traced = any(isinstance(x, jax.core.Tracer) for x in operands)
    found = (_attention if traced else _compiled)(static, operands)
    return found if len(found) > 1 else found[0]
