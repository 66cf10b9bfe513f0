"""Masks that have a name: what a query sees, and the tiles near a block of queries."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relpos._mask.tiles import KEYS, Near, Visible


def neighborhood(grid: Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> Visible:
    """Along each axis a query sees `kernel` tokens, `dilation` apart, around itself; at the edges
    they are moved inward."""
    sees = []
    for size, width, step in zip(grid, kernel, dilation, strict=True):
        away = torch.arange(size) - _first_neighbors(size, width, step)[:, None]
        sees.append((away >= 0) & (away < width * step) & (away % step == 0))

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        seen = torch.ones((), dtype=torch.bool)
        for along, q, k in zip(sees, places(q_idx, grid), places(kv_idx, grid), strict=True):
            seen = seen & along[q, k]
        return seen

    return visible


def near_neighborhood(grid: Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> Near:
    first = _first_neighbors(grid[0], kernel[0], dilation[0])

    def near(q: Tensor) -> tuple[Tensor, Tensor]:
        return first[q].min(), first[q].max() + (kernel[0] - 1) * dilation[0] + 1

    return _near_rows(grid, near)


def shifted_windows(grid: Sequence[int], window: Sequence[int], shift: Sequence[int]) -> Visible:
    """Two tokens see each other in the same window, after the image has been rolled by -shift, and
    unless one of them has been rolled over the edge."""
    labels = [_windows(*each) for each in zip(grid, window, shift, strict=True)]

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        seen = torch.ones((), dtype=torch.bool)
        for label, q, k in zip(labels, places(q_idx, grid), places(kv_idx, grid), strict=True):
            seen = seen & (label[q] == label[k])
        return seen

    return visible


def near_windows(grid: Sequence[int], window: Sequence[int], shift: Sequence[int]) -> Near:
    label = _windows(grid[0], window[0], shift[0])

    def near(q: Tensor) -> tuple[Tensor, Tensor]:
        same = torch.isin(label, label[q]).nonzero().flatten()
        return same.min(), same.max() + 1

    return _near_rows(grid, near)


def documents(ids: Tensor) -> Visible:
    """[B, L]: tokens of one document see each other."""
    return lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx]


def near_documents(ids: Tensor) -> Near:
    tiles = -(-ids.shape[1] // KEYS)
    last = torch.arange(1, tiles + 1) * KEYS - 1
    places_of = (torch.arange(tiles)[:, None] * KEYS + torch.arange(KEYS)).clamp(
        max=torch.minimum(last, torch.tensor(ids.shape[1] - 1))[:, None]
    )
    low, high = ids[:, places_of].aminmax(dim=2)

    def near(first: int, end: int) -> Tensor:
        least, most = ids[:, first:end].aminmax(dim=1, keepdim=True)
        return ((low <= most) & (least <= high)).any(0).nonzero().flatten()

    return near


def prefix(lengths: Tensor) -> Visible:
    """[B]: a query sees the prefix, and the keys up to its own."""
    return lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx) | (kv_idx < lengths[b])


def near_prefix(lengths: Tensor, tokens: int) -> Near:
    longest = min(int(lengths.max()), tokens)
    return lambda first, end: tiles_of(torch.tensor(0), torch.tensor(max(longest, end)))


def intervals(lo: Tensor, hi: Tensor) -> Visible:
    """[n, Lq]: a query sees the keys lo <= j < hi of each of its intervals."""

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        seen = torch.zeros((), dtype=torch.bool)
        for start, end in zip(lo, hi, strict=True):
            seen = seen | ((start[q_idx] <= kv_idx) & (kv_idx < end[q_idx]))
        return seen

    return visible


def near_intervals(lo: Tensor, hi: Tensor, keys: int) -> Near:
    lo, hi = lo.clamp(0, keys), hi.clamp(0, keys)

    def near(first: int, end: int) -> Tensor:
        seen = torch.zeros(-(-keys // KEYS), dtype=torch.bool)
        for start, stop in zip(lo[:, first:end], hi[:, first:end], strict=True):
            some = start < stop
            if some.any():
                seen[tiles_of(start[some].min(), stop[some].max())] = True
        return seen.nonzero().flatten()

    return near


def places(index: Tensor, grid: Sequence[int]) -> list[Tensor]:
    """Of tokens that are in order of rows: the coordinate along each axis."""
    found = []
    for size in reversed(grid):
        found.append(index % size)
        index = index // size
    return found[::-1]


def tiles_of(first: Tensor, end: Tensor) -> Tensor:
    """Those of the keys [first, end), which are some."""
    return torch.arange(int(first) // KEYS, -(-int(end) // KEYS))


def _near_rows(grid: Sequence[int], near: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Near:
    """From what near(coordinates along the first axis) gives: the first that is seen, and past the
    last."""
    inner = torch.tensor(grid[1:]).prod().long()

    def near_tiles(first: int, end: int) -> Tensor:
        low, high = near(torch.arange(first // int(inner), -(-end // int(inner))))
        return tiles_of(low * inner, high * inner)

    return near_tiles


def _first_neighbors(size: int, kernel: int, dilation: int) -> Tensor:
    """[size]: of each place, the first that it sees. Places `dilation` apart are an axis of their
    own."""
    place = torch.arange(size)
    along, start = place // dilation, place % dilation
    sizes = (size - start + dilation - 1) // dilation
    first = torch.minimum((along - kernel // 2).clamp(min=0), sizes - kernel)
    return first * dilation + start


def _windows(size: int, window: int, shift: int) -> Tensor:
    """[size]: which window a place is in, those that are rolled over the edge apart."""
    place = torch.arange(size)
    return (place - shift) % size // window * 2 + (place < shift)
