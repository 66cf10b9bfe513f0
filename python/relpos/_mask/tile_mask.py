"""relpos.TileMask: which keys queries see, where most see few of them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import integer
from relpos._base.errors import kind_of, shape_of, wrong_type, wrong_value
from relpos._base.tensors import check_memory, integers
from relpos._mask import shapes, tiles
from relpos._mask.tiles import Near, Numbered, Sizes, Tiles, Visible


class TileMask:
    """Which pairs of queries and keys attend, for `attn_mask=`: a word of 64 bits for each query of
    a tile of 64 keys that is seen in part, and nothing for a tile that nobody sees.

    The result of a call is that of the same mask as a bool tensor. Its time and its memory are
    those of the tiles that blocks of 96 queries see.

        mask = relpos.TileMask.neighborhood((64, 64), 13)
        out = relpos.attention(query, key, value, attn_mask=mask)

    Made by relpos.from_mask_mod and the class's own functions, and joined by & | ~. It is not
    changed once made, has no gradient, compares with ==, and may be copied and pickled.

    Attributes:
      shape: (batch rows or 1, heads or 1, queries, keys), broadcast to those of a call.
      ranges, entries, words: int64 tensors, what it is made of (relpos::TileMask of
        include/relpos/attention.h).
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: tuple[int, int, int, int], ranges: Tensor, entries: Tensor, words: Tensor
    ) -> None:
        self.shape = shape
        self.ranges = ranges
        self.entries = entries
        self.words = words

    @staticmethod
    def neighborhood(
        grid: Sequence[int], kernel: int | Sequence[int], dilation: int | Sequence[int] = 1
    ) -> "TileMask":
        """Neighbourhood attention: a token sees `kernel` tokens along each axis of a grid.

        The neighbourhood's centre is the token itself, but near an edge it is moved inward, so that
        every token sees equally many.

        Args:
          grid: tokens along each of 1 to 3 axes, in order of rows: (64, 64) is an image of 4096.
          kernel: an odd number for all axes, or one for each.
          dilation: how far the tokens that are seen are apart along an axis: one number, or one for
            each. kernel times dilation is at most the axis.

        Raises ValueError for other sizes. Source: Hassani et al. 2023, Neighborhood Attention
        Transformer (NATTEN); Hassani, Shi 2022, Dilated Neighborhood Attention.
        """
        grid = _grid(grid)
        kernel = _for_axes("kernel", kernel, grid, 1)
        dilation = _for_axes("dilation", dilation, grid, 1)
        for size, width, step in zip(grid, kernel, dilation, strict=True):
            if width % 2 == 0:
                raise wrong_value("kernel", "odd numbers, whose window has a centre", width)
            if width * step > size:
                most = f"at most {size} tokens of its axis, dilated"
                raise wrong_value("kernel", most, width * step)
        visible = shapes.neighborhood(grid, kernel, dilation)
        return _of_grid(grid, visible, shapes.near_neighborhood(grid, kernel, dilation))

    @staticmethod
    def shifted_windows(
        grid: Sequence[int], window: int | Sequence[int], shift: int | Sequence[int]
    ) -> "TileMask":
        """Swin's windows: a token sees those of its window of the grid rolled by -shift along each
        axis, but no token that was rolled over an edge sees one that was not.

        Args:
          grid: tokens along each of 1 to 3 axes, in order of rows.
          window: tokens of a window along all axes, or one number for each; divides the axis.
          shift: one number from 0 to window - 1, or one for each; 0: windows side by side.

        Raises ValueError for other sizes. Source: Liu et al. 2021, Swin Transformer, section 3.2.
        """
        grid = _grid(grid)
        window, shift = _for_axes("window", window, grid, 1), _for_axes("shift", shift, grid, 0)
        for size, width, by in zip(grid, window, shift, strict=True):
            if size % width:
                raise wrong_value("window", f"a divisor of {size}: pad the grid", width)
            if by >= width:
                raise wrong_value("shift", f"less than the window, {width}", by)
        visible = shapes.shifted_windows(grid, window, shift)
        return _of_grid(grid, visible, shapes.near_windows(grid, window, shift))

    @staticmethod
    def documents(ids: Tensor) -> "TileMask":
        """Tokens see those with the same id.

        Args:
          ids: int64 [L] or [B, L], in any order; quick where the tokens of a document are near each
            other.

        Raises TypeError or ValueError for other tensors.
        """
        ids = _rows("ids", ids, "int64 [L] or [B, L]")
        tokens = ids.shape[1]
        return _made(
            Sizes(len(ids), 1, tokens, tokens), shapes.documents(ids), shapes.near_documents(ids)
        )

    @staticmethod
    def prefix(lengths: int | Tensor, tokens: int) -> "TileMask":
        """A prefix language model's: every token sees the prefix, and those up to itself.

        Args:
          lengths: of the prefix, an int or int64 [B].
          tokens: of the whole sequence.

        Raises TypeError or ValueError for others. Source: Raffel et al. 2020, Exploring the Limits
        of Transfer Learning (T5), section 3.2.1.
        """
        tokens = integer("tokens", tokens, 0)
        given = (
            lengths if isinstance(lengths, Tensor) else torch.tensor([integer("lengths", lengths)])
        )
        check_memory("lengths", given)
        given = integers("lengths", given)
        if given.dim() > 1 or given.numel() == 0:
            raise wrong_value("lengths", "an int or int64 [B]", shape_of(given))
        given = given.reshape(-1)
        sizes = Sizes(len(given), 1, tokens, tokens)
        return _made(sizes, shapes.prefix(given), shapes.near_prefix(given, tokens))

    @staticmethod
    def intervals(lo: Tensor, hi: Tensor, keys: int | None = None) -> "TileMask":
        """Each query sees the keys of its intervals, lo <= j < hi.

        Args:
          lo, hi: int64 [n, Lq], n intervals for each query, or [Lq]. They may overlap, reach beyond
            the keys, and be empty (hi <= lo).
          keys: how many there are; None: as many as queries.

        Raises TypeError or ValueError for others.
        """
        lo, hi = (
            _rows(name, given, "int64 [n, Lq] or [Lq]") for name, given in (("lo", lo), ("hi", hi))
        )
        if lo.shape != hi.shape:
            raise wrong_value("hi", f"{list(lo.shape)}, as lo has", shape_of(hi))
        queries = lo.shape[1]
        keys = queries if keys is None else integer("keys", keys, 0)
        near = shapes.near_intervals(lo, hi, keys)
        return _made(Sizes(1, 1, queries, keys), shapes.intervals(lo, hi), near)

    def dense(self) -> Tensor:
        """bool [batch rows or 1, heads or 1, queries, keys], True where a query sees a key."""
        return tiles.dense(self._sizes, self._tiles)

    @property
    def density(self) -> float:
        """The share of the pairs that attend; 0 where there are none."""
        pairs = torch.Size(self.shape).numel()
        return tiles.count(self._sizes, self._tiles) / pairs if pairs else 0.0

    def __and__(self, other: Any) -> "TileMask":
        """What both see; batch rows and heads of 1 broadcast."""
        return self._join(other, tiles.both)

    def __or__(self, other: Any) -> "TileMask":
        """What one of them sees, likewise."""
        return self._join(other, tiles.either)

    def __invert__(self) -> "TileMask":
        """What it does not see."""
        given = tiles.numbered(self._sizes, self._tiles)
        return TileMask(self.shape, *tiles.neither(self._sizes, given))

    def __eq__(self, other: Any) -> bool:
        """Whether shapes and pairs are the same."""
        if not isinstance(other, TileMask):
            return NotImplemented
        return self.shape == other.shape and all(
            torch.equal(a, b) for a, b in zip(self._tiles, other._tiles, strict=True)
        )

    def __repr__(self) -> str:
        return (
            f"TileMask({list(self.shape)}, density {self.density:.3g}, {len(self.entries)} tiles, "
            f"{len(self.words)} of them in part)"
        )

    @property
    def _sizes(self) -> Sizes:
        return Sizes(*self.shape)

    @property
    def _tiles(self) -> Tiles:
        return Tiles(self.ranges, self.entries, self.words)

    def _join(self, other: Any, join: Callable[[Sizes, Numbered, Numbered], Tiles]) -> "TileMask":
        if not isinstance(other, TileMask):
            return NotImplemented
        (batch, heads, *pairs), (other_batch, other_heads, *others) = self.shape, other.shape
        alike = {batch, other_batch} - {1}, {heads, other_heads} - {1}
        if pairs != others or any(len(sizes) > 1 for sizes in alike):
            wanted = f"a shape that broadcasts to {list(self.shape)}"
            raise wrong_value("TileMask", wanted, list(other.shape))
        to = Sizes(max(batch, other_batch), max(heads, other_heads), *pairs)
        given = [
            tiles.expand(each._sizes, tiles.numbered(each._sizes, each._tiles), to)
            for each in (self, other)
        ]
        return TileMask(tuple(to), *join(to, *given))


def from_mask_mod(
    mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    queries: int,
    keys: int,
    *,
    batch: int = 1,
    heads: int = 1,
) -> TileMask:
    """The mask of a function of pairs, as FlexAttention takes it.

    Args:
      mask_mod: mask_mod(b, h, q_idx, kv_idx) -> bool, True where the query sees the key. It gets
        int64 tensors that broadcast to [batch, heads, n, m], of some n queries and m keys: so it is
        to work element by element, with & and | and torch.where, and may index tensors of its own.
      queries, keys: how many there are.
      batch, heads: where the function depends on them; else 1, which holds for all.

    Raises TypeError unless mask_mod returns bools, and ValueError unless they broadcast. Each pair
    is asked for once, now: the time is O(queries keys), the memory that of what is seen.

    Source: Dong et al. 2024, Flex Attention.
    """
    if not callable(mask_mod):
        raise wrong_type("mask_mod", "a function of (b, h, q_idx, kv_idx)", kind_of(mask_mod))
    sizes = Sizes(
        integer("batch", batch, 1),
        integer("heads", heads, 1),
        integer("queries", queries, 0),
        integer("keys", keys, 0),
    )

    def visible(*index: Tensor) -> Tensor:
        seen = mask_mod(*index)
        if isinstance(seen, bool):
            return torch.tensor(seen)
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
            got = seen.dtype if isinstance(seen, Tensor) else kind_of(seen)
            raise wrong_type("mask_mod", "a function that returns bools", got)
        shape = torch.broadcast_shapes(*(i.shape for i in index))
        try:
            return seen.expand(shape)
        except RuntimeError:
            wanted = f"bools that broadcast to {list(shape)}, those of its arguments"
            raise wrong_value("mask_mod", wanted, list(seen.shape)) from None

    return _made(sizes, visible)


def _made(sizes: Sizes, visible: Visible, near: Near | None = None) -> TileMask:
    return TileMask(tuple(sizes), *tiles.from_pairs(sizes, visible, near))


def _of_grid(grid: Sequence[int], visible: Visible, near: Near) -> TileMask:
    tokens = torch.Size(grid).numel()
    return _made(Sizes(1, 1, tokens, tokens), visible, near)


def _grid(grid: Any) -> list[int]:
    if not isinstance(grid, (tuple, list)) or not 1 <= len(grid) <= 3:
        raise wrong_value("grid", "the sizes of 1 to 3 axes, as (64, 64)", repr(grid))
    return [integer("grid", size, 1) for size in grid]


def _for_axes(name: str, value: Any, grid: Sequence[int], least: int) -> list[int]:
    """A number for each axis of the grid."""
    if not isinstance(value, (tuple, list)):
        value = [value] * len(grid)
    if len(value) != len(grid):
        raise wrong_value(name, f"a number, or {len(grid)}, one for each axis", repr(value))
    return [integer(name, each, least) for each in value]


def _rows(name: str, given: Any, layout: str) -> Tensor:
    """int64 [n, L]."""
    check_memory(name, given)
    given = integers(name, given)
    if given.dim() not in (1, 2) or given.shape[0] == 0:
        raise wrong_value(name, layout, shape_of(given))
    return given.reshape(-1, given.shape[-1])
