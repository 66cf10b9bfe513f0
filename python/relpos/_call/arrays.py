"""What options ask of NumPy's arrays, and how relpos._core reads them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relpos import _core
from relpos._base.arguments import integer
from relpos._base.errors import kind_of, wrong_type, wrong_value
from relpos._call.options import LIBRARIES, Tensors

FLOATING = ("float32", "float64", "bfloat16", "float16")
KINDS = {"bool": ("bool",), "floating": FLOATING}


class TileMask(NamedTuple):
    """attn_mask by tiles of 64 keys, as relpos::TileMask in include/relpos/attention.h says."""

    ranges: Any  # int64 [B or 1, H or 1, ceil(Lq / R), 2]
    entries: Any  # int64 [n, 2]
    words: Any  # int64 [m, R]
    shape: Sequence[int]  # [B or 1, H or 1, Lq, Lk]


def array_of(name: str, value: Any) -> np.ndarray:
    """The same memory as an array of NumPy."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            try:
                return np.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError):
                if not hasattr(value, "__array__"):
                    raise
                return np.asarray(value)  # bfloat16, of which NumPy's DLPack knows nothing
        return np.asarray(memoryview(value))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        wanted = "an array of the CPU, by DLPack or the buffer protocol"
        raise wrong_type(name, wanted, f"{kind_of(value)} ({error})") from None


def memory_of(name: str, array: np.ndarray, dtypes: Sequence[str]) -> Any:
    if array.dtype.name not in dtypes or not array.dtype.isnative:
        got = (
            array.dtype.name if array.dtype.isnative else f"{array.dtype.str}, of other byte order"
        )
        raise wrong_type(name, " or ".join(dtypes), got)
    size = array.itemsize
    if any(stride % size for stride in array.strides):
        array = np.ascontiguousarray(array)
    address = array.__array_interface__["data"][0]
    strides = [stride // size for stride in array.strides]
    return _core.Memory(address, array.dtype.name, array.shape, strides, array)


def given_to(array: np.ndarray | None) -> Any:
    """The memory of an array that is made here, or None."""
    return None if array is None else memory_of("out", array, FLOATING)


def check_heads(tensors: Mapping[str, Any]) -> None:
    """Raises where query, key and value, arrays of any library, have not the rank and dtype that
    relpos.attention asks."""
    first = next(iter(tensors.values()))
    for name, array in tensors.items():
        if array.ndim != 4:
            layout = "[B, H, Lq, D]" if name == "query" else "[B, Hk, Lk, D]"
            raise wrong_value(name, f"rank 4, {layout}", str([*array.shape]))
        if array.dtype.name not in FLOATING:
            raise wrong_type(name, "float32, float64, bfloat16 or float16", array.dtype.name)
        if array.dtype != first.dtype:
            raise wrong_type(name, f"{first.dtype.name}, as query has", array.dtype.name)


class NumPyTensors(Tensors):
    """Also what relpos.jax keeps of it, whose `library` and `array` are others."""

    library: Any = np

    def array(self, name: str, value: Any) -> Any:
        return array_of(name, value)

    def tensor(self, name: str, value: Any, kinds: Sequence[str]) -> Any:
        dtypes = [dtype for kind in kinds for dtype in KINDS[kind]]
        return memory_of(name, array_of(name, value), dtypes)

    def integers(self, name: str, value: Any) -> Any:
        array = array_of(name, value)
        if array.dtype.name == "int32":
            array = array.astype(np.int64)
        return memory_of(name, array, ("int64",))

    def rows(self, name: str, value: Any, query: Any) -> Any:
        if isinstance(value, (int, np.integer)) or not hasattr(value, "shape"):
            return None
        array = self.array(name, value)
        if not array.ndim:
            array = self.library.broadcast_to(array, query.shape[:1])
        return self.integers(name, array)

    def tiles(self, name: str, value: Any, query: Any) -> tuple[Any, ...] | None:
        if not all(hasattr(value, field) for field in TileMask._fields):
            return None
        parts = (self.integers(name, each) for each in (value.ranges, value.entries, value.words))
        return *parts, [integer(name, size) for size in value.shape[2:]]

    def seed(self) -> Any:
        return None

    def position(self, value: Any) -> tuple[str, Sequence[Any]]:
        return value

    def prepared(self, query: Any, key: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return options


NUMPY = NumPyTensors()
LIBRARIES[np.ndarray] = NUMPY
