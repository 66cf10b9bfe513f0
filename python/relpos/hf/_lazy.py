"""Objects that a model passes along in place of Lq x Lk tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relpos._position.sum import Composed


def mapped(change: Callable, tree: Any) -> Any:
    """The arguments of a call with each leaf changed, within tuples, lists and dicts."""
    if isinstance(tree, (tuple, list)) and type(tree) in (tuple, list):
        return type(tree)(mapped(change, each) for each in tree)
    if type(tree) is dict:
        return {key: mapped(change, each) for key, each in tree.items()}
    return change(tree)


class NotATensor:
    """For tensors that a model passes along without reading them; any tensor operation raises."""

    def __init__(self, what: str) -> None:
        self._what = what

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        stand_in = next((arg for arg in args if isinstance(arg, NotATensor)), None)
        what = stand_in._what if stand_in is not None else "a stand-in of relpos.hf"
        raise TypeError(
            f"relpos.hf: this model computes with {what} itself "
            f"({getattr(function, '__name__', function)}), outside the attention interface of "
            "transformers, so relpos cannot serve it: relpos.hf.report(model) says which layers "
            'are concerned; attn_implementation="eager" computes them as before'
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Tensor, name):
            self.__torch_function__(getattr(Tensor, name), (), (self,))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _refuse(self, *_: Any) -> Any:
        return self.__torch_function__(Tensor.add, (), (self,))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __getitem__ = _refuse


class Mask(NotATensor):
    """Which keys each query sees, without an Lq x Lk tensor.

    Query i is at q_start + i, counted from the first key. key_range is (lo, hi), int64 [Lq] or
    [B, Lq], or None for all keys; padding is bool [B, Lk], True = hidden, or None. newest: a cache
    may hold more keys than the mask covers; the mask is then about the last ones.

    A module that computes with its mask gets the matrix of eager attention in its place.
    """

    def __init__(
        self,
        q_length: int,
        kv_length: int,
        q_start: int | Tensor,
        key_range: tuple[Tensor, Tensor] | None,
        padding: Tensor | None,
        *,
        newest: bool = False,
    ) -> None:
        super().__init__("its attention mask")
        self.q_length = q_length
        self.kv_length = kv_length
        self.q_start = q_start
        self.key_range = key_range
        self.padding = padding
        self.newest = newest
        self.rows = 1 if padding is None else padding.shape[0]  # of the batch
        self.dtype = torch.get_default_dtype()  # of the matrix
        self._matrix: Tensor | None = None

    # Models that edit a dense mask ask whether it has 4 axes, and those that make one from another
    # whether it has fewer.
    ndim = 5

    def dim(self) -> int:
        return self.ndim

    @property
    def shape(self) -> torch.Size:
        """That of a dense mask, [B, 1, Lq, Lk]: models ask how many keys a mask has."""
        return torch.Size((self.rows, 1, self.q_length, self.kv_length))

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def to(self, *_: Any, **__: Any) -> "Mask":
        """Returns itself; models convert a mask before they pass it along."""
        return self

    contiguous = to

    def dense(self) -> Tensor:
        """What is added to the scores, [rows, 1, Lq, Lk]: 0 where a query sees a key, else the
        lowest number of its dtype."""
        if self._matrix is None:
            keys = torch.arange(self.kv_length)
            seen = torch.ones(1, self.q_length, self.kv_length, dtype=torch.bool)
            if self.key_range is not None:
                lo, hi = (end.reshape(-1, self.q_length, 1) for end in self.key_range)
                seen = (keys >= lo) & (keys < hi)
            if self.padding is not None:
                seen = seen & ~self.padding[:, None]
            hidden = torch.full((), torch.finfo(self.dtype).min, dtype=self.dtype)
            whole = torch.where(seen, torch.zeros((), dtype=self.dtype), hidden)[:, None]
            self._matrix = whole.expand(self.rows, -1, -1, -1)
        return self._matrix

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        change = _dense
        if function is torch.nn.functional.scaled_dot_product_attention:  # of any dtype
            change = _seen
        args, kwargs = (mapped(change, each) for each in (tuple(args), kwargs or {}))
        return function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dense(), name)

    def __add__(self, other: Any) -> Any:
        return self.dense() + _dense(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self.dense() - _dense(other)

    def __rsub__(self, other: Any) -> Any:
        return _dense(other) - self.dense()

    def __mul__(self, other: Any) -> Any:
        return self.dense() * _dense(other)

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> Any:
        return self if self._is_whole(index) else self.dense()[index]

    def _is_whole(self, index: Any) -> bool:
        """Whether an index leaves nothing out, as [:, :, :, : keys] does."""
        axes = index if isinstance(index, tuple) else (index,)
        return (
            all(each is Ellipsis or isinstance(each, slice) for each in axes)
            and (Ellipsis not in axes or len(axes) == 1)
            and all(
                each.indices(size) == (0, size, 1)
                for each, size in zip(axes, self.shape, strict=False)
                if each is not Ellipsis
            )
        )

    def __lt__(self, other: Any) -> Any:
        return self.dense() < _dense(other)

    def __le__(self, other: Any) -> Any:
        return self.dense() <= _dense(other)

    def __gt__(self, other: Any) -> Any:
        return self.dense() > _dense(other)

    def __ge__(self, other: Any) -> Any:
        return self.dense() >= _dense(other)

    def __eq__(self, other: Any) -> Any:
        return self is other if other is None else self.dense() == _dense(other)

    def __ne__(self, other: Any) -> Any:
        return self is not other if other is None else self.dense() != _dense(other)

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return -self.dense()

    def __bool__(self) -> bool:
        return bool(self.dense())

    def fit(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that the mask is about. Raises an error if the sizes do not fit."""
        queries, keys = query.shape[2], key.shape[2]
        every = self.key_range is None and self.padding is None
        more = self.newest and keys > self.kv_length
        one = self.q_length == 1 and self.key_range is None  # for every query
        if (one or queries == self.q_length) and (every or more or keys == self.kv_length):
            if more:
                key, value = key[:, :, -self.kv_length :], value[:, :, -self.kv_length :]
            return key, value
        raise ValueError(
            f"relpos.hf: the mask was made for {self.q_length} queries and {self.kv_length} "
            f"keys, and attention was called with {queries} and {keys}"
        )


def _dense(value: Any) -> Any:
    return value.dense() if isinstance(value, Mask) else value


def _seen(value: Any) -> Any:
    return value.dense() == 0 if isinstance(value, Mask) else value


class Bias(NotATensor):
    """A position, in place of its dense [1, H, Lq, Lk] tensor.

    make returns the position when attention runs; None means that nothing is added to the scores.
    positions is None where query i is at q_start + i and key j at j; otherwise it is (queries,
    keys), int64 [L] or [B, L].
    """

    def __init__(
        self,
        make: Callable[[], Composed | None] | None = None,
        q_start: int | Tensor = 0,
        positions: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__("its position bias")
        self._make = make
        self.q_start = q_start
        self.positions = positions

    def make(self) -> Composed | None:
        return None if self._make is None else self._make()
