"""A mask by tiles of 64 keys: relpos.TileMask as attn_mask.

`cells` has of each block of queries and each tile what is seen of it, which a kernel looks up
before the passes: the entries of a block are in the order of their tiles."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

KEYS = tl.constexpr(64)  # of a tile
_ALL = tl.constexpr(-1)  # in entries as in cells
_NONE = tl.constexpr(0)


class Tiles(NamedTuple):
    """cells int32 [B, H, blocks, tiles], with the elements between two batch rows and heads, 0
    where all share theirs: 0 where nobody sees the tile, -1 where all see all of it, else 1 more
    than the row of words int64 [m, rows], a bit for each key that a query of the block sees. first:
    the number of the first query."""

    cells: Any
    words: Any
    batch: Any
    head: Any
    tiles: Any
    rows: Any
    first: Any


def index_in(masks: tuple[Any, ...]) -> int:
    """Of a call's functions of masks, Config.tiles."""
    return masks.index(hide_by_tiles) if hide_by_tiles in masks else -1


@triton.jit
def hide_by_tiles(s, visible, mask, at):
    b, h, q0, k0, a, c, queries, keys, _ = at
    i, j = mask.first + q0 + a, k0 + c
    inside = (a < queries - q0) & (c < keys - k0)
    cells = mask.cells + tl.cast(b, tl.int64) * mask.batch + tl.cast(h, tl.int64) * mask.head
    cells += tl.cast(i // mask.rows, tl.int64) * mask.tiles
    found = tl.load(cells + j // KEYS, inside, _NONE)
    word = tl.cast(found - 1, tl.int64) * mask.rows + i % mask.rows
    bits = tl.load(mask.words + word, found > 0, 0)
    seen = (found == _ALL) | (((bits >> tl.cast(j % KEYS, tl.int64)) & 1) != 0)
    return s, visible & seen


@triton.jit
def sees_tile(mask, block, k0, CONFIG: tl.constexpr):
    """Whether one of a block of queries may see one of the block of keys at k0; block: (b, h, q0,
    queries, keys, ...)."""
    b, h, q0, queries, keys = block[0], block[1], block[2], block[3], block[4]
    n = tl.arange(0, CONFIG.queries)[:, None]
    i = mask.first + q0 + n
    # The first key of each tile that the block touches, and its last that there is.
    count: tl.constexpr = 2 if CONFIG.keys <= KEYS else 2 * CONFIG.keys // KEYS
    j = k0 + tl.minimum(tl.arange(0, count)[None, :] * KEYS, CONFIG.keys - 1)
    j = tl.minimum(j, keys - 1)
    cells = mask.cells + tl.cast(b, tl.int64) * mask.batch + tl.cast(h, tl.int64) * mask.head
    cells += tl.cast(i // mask.rows, tl.int64) * mask.tiles
    found = tl.load(cells + j // KEYS, (n < queries - q0) & (j >= 0), _NONE)
    return tl.max(tl.max(tl.where(found != _NONE, 1, 0), 1), 0) > 0


@triton.jit(do_not_specialize=["rows", "tiles", "steps"])
def write_cells_of_tiles(cells, ranges, entries, rows, tiles, steps, BLOCK: tl.constexpr):
    """cells int32 [rows, tiles] from ranges int64 [rows, 2] and entries int64 [n, 2], (tile, row of
    words or -1), n below 2 ** steps. A program for each row and block of tiles."""
    row = tl.program_id(0)
    tile = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, end = tl.load(ranges + 2 * row), tl.load(ranges + 2 * row + 1)
    before = first + tl.zeros((BLOCK,), tl.int64)  # entries of tiles before these
    for step in range(steps):
        further = before + (tl.cast(1, tl.int64) << (steps - 1 - step))
        known = tl.load(entries + 2 * (further - 1), further <= end, 0)
        before = tl.where((further <= end) & (known < tile), further, before)
    there = before < end
    there &= tl.load(entries + 2 * before, there, -1) == tile
    which = tl.load(entries + 2 * before + 1, there, 0)
    found = tl.where(there, tl.where(which < 0, which, which + 1), 0)
    tl.store(cells + tl.cast(row, tl.int64) * tiles + tile, found.to(tl.int32), tile < tiles)
