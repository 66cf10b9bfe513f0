"""relpos.KVCache: keys and values of earlier tokens, for decoding and for memories."""

import torch
from torch import Tensor
from typing_extensions import Unpack

from relpos._base.errors import shape_of, wrong_type, wrong_value
from relpos._base.tensors import check_device, check_rank
from relpos._call.attention import attention, refuse_elsewhere
from relpos._call.options import PLACES, Options
from relpos._call.typed import Results, attending

_SMALLEST = 64  # positions of a first buffer


class KVCache:
    """The keys and values of one attention layer so far. Decoding with it gives the same results
    as the full forward pass.

        cache = relpos.KVCache()
        for query, key, value in chunks:  # any lengths; one token at a time as well
            out = cache.attend(query, key, value, position=position)

    Keys are stored as they are given, before any rotation, so that every position works with the
    cache; they may have grouped heads [B, Hk, L, D]. Without gradients (torch.no_grad,
    torch.inference_mode) they are copied into a buffer that doubles its size when it is full. With
    gradients each append makes new tensors; backward reaches the earlier chunks, unless detach_
    was called after them.

    Args:
      max_length: how many of the newest keys stay when others are appended; None keeps all. This
        is the memory of Transformer-XL, or the keys that a window of (max_length, 0) can see.
    """

    def __init__(self, max_length: int | None = None) -> None:
        if max_length is not None and (
            isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 0
        ):
            raise wrong_value("max_length", "None or an int from 0 on", repr(max_length))
        self.max_length = max_length
        self.clear()

    def clear(self) -> None:
        """Removes everything; the next key is at position 0 again."""
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._own = False  # whether no caller has the buffers, so that they may be written to
        self._from = self._to = 0  # what is held, in the buffers
        self._start = 0

    def __len__(self) -> int:
        """How many keys are held."""
        return self._to - self._from

    @property
    def start(self) -> int:
        """The position of the first key held: above 0 once max_length let some go."""
        return self._start

    @property
    def end(self) -> int:
        """The position of the next key."""
        return self._start + len(self)

    @property
    def key(self) -> Tensor | None:
        """[B, Hk, len(self), D], or None before the first append."""
        return None if self._buffers is None else self._buffers[0][:, :, self._from : self._to]

    @property
    def value(self) -> Tensor | None:
        """[B, Hk, len(self), Dv], or None before the first append."""
        return None if self._buffers is None else self._buffers[1][:, :, self._from : self._to]

    def __repr__(self) -> str:
        held = "empty" if self._buffers is None else f"positions {self.start} to {self.end}"
        return f"KVCache(max_length={self.max_length}): {held}"

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds key [B, Hk, n, D] and value [B, Hk, n, Dv]; returns all that is held, in order.

        Before that it removes what max_length does not keep. Afterwards the keys start at
        k_offset = cache.start, and the queries of these n tokens at q_offset = cache.end - n. The
        returned tensors may change after truncate.
        """
        self._check(key, value)
        if self.max_length is not None and len(self) > self.max_length:
            dropped = len(self) - self.max_length
            self._from += dropped
            self._start += dropped
        if torch.is_grad_enabled():
            held = (self.key, self.value) if len(self) else (None, None)
            self._buffers = tuple(
                new if old is None else torch.cat([old, new], 2)
                for old, new in zip(held, (key, value), strict=True)
            )
            self._from, self._to, self._own = 0, self._buffers[0].shape[2], False
        else:
            self._reserve(key, value)
            end = self._to + key.shape[2]
            for buffer, new in zip(self._buffers, (key, value), strict=True):
                buffer[:, :, self._to : end] = new
            self._to = end
        return self.key, self.value

    @attending(without=PLACES, is_causal=True)
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: bool = False,
        return_weights: bool = False,
        **options: Unpack[Options],
    ) -> Results:
        """Appends key and value, then returns relpos.attention of query over all keys in the cache.

        Args:
          query: [B, H, Lq, D]: its last position is that of the last key.
          key: [B, Hk, n, D], value [B, Hk, n, Dv].
          options: those of relpos.attention except offsets and explicit positions, which the cache
            knows. Masks and key_padding_mask cover all keys in the cache: the earlier ones, then
            these.

        If it raises an error, the cache is unchanged.
        """
        refuse_elsewhere("KVCache.attend", "a cache holds whole sequences")
        for name in PLACES:
            if name in options:
                raise TypeError(f"{name}: the cache says where queries and keys are; leave it out")
        options.setdefault("is_causal", True)
        before = self._buffers, self._own, self._from, self._to, self._start
        keys, values = self.append(key, value)
        try:
            return attention(
                query,
                keys,
                values,
                q_offset=self.end - query.shape[2],
                k_offset=self.start,
                return_lse=return_lse,
                return_weights=return_weights,
                **options,
            )
        except BaseException:
            self._buffers, self._own, self._from, self._to, self._start = before
            raise

    def truncate(self, end: int) -> None:
        """Removes every position from `end` on, as after rejected tokens."""
        if not self.start <= end <= self.end:
            held = f"a position from {self.start} to {self.end}, which are held"
            raise wrong_value("end", held, end)
        self._to -= self.end - end

    def reorder(self, rows: Tensor) -> None:
        """Replaces batch row n by the former row rows[n]: int64 [B'], as beam search gives them."""
        if self._buffers is not None:
            held = (self.key, self.value)
            self._buffers = tuple(x.index_select(0, rows) for x in held)
            self._from, self._to, self._own = 0, len(self), False

    def detach_(self) -> None:
        """Detaches the cached keys and values from the autograd graph."""
        if self._buffers is not None:
            self._buffers = tuple(x.detach() for x in self._buffers)

    def _check(self, key: Tensor, value: Tensor) -> None:
        held = (self.key, self.value)
        for name, new, old in zip(("key", "value"), (key, value), held, strict=True):
            check_rank(name, new, 4, "[B, Hk, n, D]")
            if old is None:
                check_device(name, new, key, "key")
                continue
            check_device(name, new, old, "what is held")
            if new.dtype != old.dtype:
                raise wrong_type(name, f"{old.dtype}, as held", new.dtype)
            batch, heads, _, columns = old.shape
            if (*new.shape[:2], new.shape[3]) != (batch, heads, columns):
                raise ValueError(
                    f"{name}: expected [{batch}, {heads}, n, {columns}], as held, got "
                    f"{list(new.shape)}; clear() starts anew"
                )
        if key.shape[:3] != value.shape[:3]:
            wanted = f"{list(key.shape[:3])} before its last axis, as key has"
            raise wrong_value("value", wanted, shape_of(value))

    def _reserve(self, key: Tensor, value: Tensor) -> None:
        """Makes sure that the buffers may be written to and have room for key and value."""
        needed = len(self) + key.shape[2]
        if self._own:
            buffer = self._buffers[0]
            writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
            if writable and self._to + key.shape[2] <= buffer.shape[2]:
                return
        capacity = max(_SMALLEST, 2 * needed)
        grown = []
        for held, new in zip((self.key, self.value), (key, value), strict=True):
            buffer = new.new_empty((*new.shape[:2], capacity, new.shape[3]))
            if held is not None:
                buffer[:, :, : len(self)] = held
            grown.append(buffer)
        self._buffers, self._own = tuple(grown), True
        self._from, self._to = 0, len(self)
