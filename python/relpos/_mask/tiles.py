"""The tiles of a mask, made of the pairs of a block of rows at a time, or of other tiles."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

KEYS = 64  # of a tile: kTile of src/kernels/problem.h
_ROWS = 96  # of a block, where there are as many: kRows of the kernels, whose blocks then are these
_PAIRS = 1 << 21  # that are looked at at a time
_ALL = -1  # in place of the number of a row of words: the block sees the whole tile

# From b, h, q_idx and kv_idx, int64 that broadcast to [B, H, rows, keys], which pairs attend.
Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# The tiles, ascending, that queries [first, end) may see.
Near = Callable[[int, int], Tensor]


class Sizes(NamedTuple):
    """What a mask is of."""

    batch: int  # or 1: all batch rows have the same
    heads: int  # or 1
    queries: int
    keys: int

    @property
    def rows(self) -> int:
        """Of a block."""
        return max(1, min(_ROWS, self.queries))

    @property
    def blocks(self) -> int:
        return -(-self.queries // self.rows)

    @property
    def tiles(self) -> int:
        return -(-self.keys // KEYS)


class Tiles(NamedTuple):
    """The tiles that are seen, in the order of batch rows, heads, blocks and keys.

    ranges: int64 [batch, heads, blocks, 2]: of each block, its first entry and past its last.
    entries: int64 [n, 2]: a tile, and the row of its words; -1: every row sees all its keys.
    words: int64 [m, rows]: bit c of word r is set where row r of the block sees key c of the tile.
      Rows past the last query, and keys past the last key, are 0.
    """

    ranges: Tensor
    entries: Tensor
    words: Tensor


class Numbered(NamedTuple):
    """Tiles by their numbers, those of a block times the tiles of all keys plus the tile, which
    ascend; `at` [n] says which row of `words` is of each, or is -1, as above."""

    numbers: Tensor
    at: Tensor
    words: Tensor


def from_pairs(of: Sizes, visible: Visible, near: Near | None = None) -> Tiles:
    """The tiles of the pairs that are visible: each pair near a block is asked for once."""
    numbers, words = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, of.rows).long()]
    heads = torch.arange(of.batch * of.heads).view(of.batch, of.heads, 1) * of.blocks
    with torch.no_grad():
        for block in range(of.blocks):
            first, end = block * of.rows, min(of.queries, (block + 1) * of.rows)
            tiles = torch.arange(of.tiles) if near is None else near(first, end)
            width = max(1, _PAIRS // (of.batch * of.heads * of.rows * KEYS))
            for some in tiles.split(width) if len(tiles) else ():
                found = _words(of, visible, first, end, some)
                seen = (found != 0).any(-1)
                numbers.append(((heads + block) * of.tiles + some)[seen])
                words.append(found[seen])
    order = torch.cat(numbers).sort(stable=True)
    return assemble(of, Numbered(order.values, order.indices, torch.cat(words)))


def assemble(of: Sizes, given: Numbered) -> Tiles:
    """The tiles in their one form: none that nobody sees, no words where all is seen."""
    at = given.at.clone()
    kept = torch.ones(len(at), dtype=torch.bool)
    for part, rows in _partial(given):
        words = given.words[rows]
        kept[part] = (words != 0).any(-1)
        whole = (words == whole_words(of, given.numbers[part])).all(-1)
        at[part] = torch.where(whole, _ALL, rows)
    at, numbers = at[kept], given.numbers[kept]
    has_words = at != _ALL
    words = given.words[at[has_words]]
    at[has_words] = torch.arange(len(words))
    counts = torch.bincount(numbers // max(1, of.tiles), minlength=of.batch * of.heads * of.blocks)
    ends = counts.cumsum(0)
    ranges = torch.stack([ends - counts, ends], -1)
    entries = torch.stack([numbers % max(1, of.tiles), at], -1)
    return Tiles(ranges.view(of.batch, of.heads, of.blocks, 2), entries, words)


def numbered(of: Sizes, tiles: Tiles) -> Numbered:
    """The inverse of assemble."""
    counts = (tiles.ranges[..., 1] - tiles.ranges[..., 0]).flatten()
    blocks = torch.arange(len(counts)).repeat_interleave(counts)
    tile, at = tiles.entries.unbind(-1)
    return Numbered(blocks * of.tiles + tile, at, tiles.words)


def expand(of: Sizes, given: Numbered, to: Sizes) -> Numbered:
    """The same for more batch rows or heads, which have those of the one."""
    per_head = of.blocks * of.tiles
    heads = torch.arange(of.batch * of.heads).view(of.batch, of.heads)
    source = heads.expand(to.batch, to.heads).flatten()
    starts = torch.searchsorted(given.numbers, torch.arange(len(heads.flatten()) + 1) * per_head)
    taken = [torch.arange(int(starts[n]), int(starts[n + 1])) for n in source.tolist()]
    counts = torch.tensor([len(t) for t in taken], dtype=torch.int64)
    target = torch.arange(len(taken)).repeat_interleave(counts)
    index = torch.cat([torch.empty(0, dtype=torch.int64), *taken])
    return Numbered(
        given.numbers[index] % per_head + target * per_head, given.at[index], given.words
    )


def both(of: Sizes, a: Numbered, b: Numbered) -> Tiles:
    """The pairs that a and b both have."""
    common = a.numbers[torch.isin(a.numbers, b.numbers)]
    return _joined(of, common, a, b, torch.bitwise_and, whole=False)


def either(of: Sizes, a: Numbered, b: Numbered) -> Tiles:
    """The pairs that a or b has."""
    common = torch.cat([a.numbers, b.numbers]).unique()
    return _joined(of, common, a, b, torch.bitwise_or, whole=True)


def neither(of: Sizes, a: Numbered) -> Tiles:
    """The pairs that a does not have."""
    every = torch.arange(of.batch * of.heads * of.blocks * of.tiles)
    seen = torch.zeros(len(every), dtype=torch.bool)
    seen[a.numbers] = True
    at = torch.full(every.shape, _ALL)
    words = [torch.empty(0, of.rows).long()]
    for part, rows in _partial(a):
        at[a.numbers[part]] = rows
        seen[a.numbers[part]] = False
    for some in torch.arange(len(a.words)).split(_PAIRS // of.rows):
        words.append(~a.words[some])
    kept = ~seen
    held = torch.cat(words)
    for part, rows in _partial(Numbered(every[kept], at[kept], held)):
        held[rows] &= whole_words(of, every[kept][part])
    return assemble(of, Numbered(every[kept], at[kept], held))


def whole_words(of: Sizes, numbers: Tensor) -> Tensor:
    """[n, rows]: the words of tiles whose pairs all attend."""
    left = (of.keys - numbers % of.tiles * KEYS).clamp(max=KEYS)
    word = torch.where(left == KEYS, -1, (1 << left.clamp(max=KEYS - 1)) - 1)
    rows = of.queries - numbers // of.tiles % of.blocks * of.rows
    return torch.where(torch.arange(of.rows) < rows[:, None], word[:, None], 0)


def dense(of: Sizes, tiles: Tiles) -> Tensor:
    """bool [batch, heads, queries, keys]."""
    given = numbered(of, tiles)
    shape = (of.batch, of.heads, of.blocks, of.tiles, of.rows, KEYS)
    pairs = torch.zeros(shape, dtype=torch.bool)
    flat = pairs.view(-1, of.rows, KEYS)
    flat[given.numbers[given.at == _ALL]] = True
    for part, rows in _partial(given):
        bits = tiles.words[rows][..., None] >> torch.arange(KEYS) & 1
        flat[given.numbers[part]] = bits.bool()
    side_by_side = pairs.transpose(3, 4).reshape(
        of.batch, of.heads, of.blocks * of.rows, of.tiles * KEYS
    )
    return side_by_side[:, :, : of.queries, : of.keys].contiguous()


def count(of: Sizes, tiles: Tiles) -> int:
    """How many pairs attend."""
    given = numbered(of, tiles)
    whole = given.numbers[given.at == _ALL]
    words = [tiles.words, *(whole_words(of, some) for some in whole.split(_PAIRS // of.rows))]
    return sum(int(_ones(some).sum()) for some in words)


def _words(of: Sizes, visible: Visible, first: int, end: int, tiles: Tensor) -> Tensor:
    """Words [batch, heads, tiles, rows] of the pairs of queries [first, end)."""
    shape = (of.batch, of.heads, end - first, len(tiles) * KEYS)
    key = (tiles[:, None] * KEYS + torch.arange(KEYS)).flatten()
    b, h = torch.arange(of.batch).view(-1, 1, 1, 1), torch.arange(of.heads).view(-1, 1, 1)
    seen = visible(b, h, torch.arange(first, end).view(-1, 1), key.clamp(max=of.keys - 1))
    pairs = (seen & (key < of.keys)).expand(shape)
    words = _packed(pairs.reshape(*shape[:3], len(tiles), KEYS)).transpose(2, 3)
    return torch.nn.functional.pad(words, (0, of.rows - (end - first)))


def _packed(bits: Tensor) -> Tensor:
    """int64 [...] of bool [..., 64]: bit c is element c. Eight bytes of 0 or 1 times the magic
    number have their bits in the highest byte, and nothing is carried."""
    eights = bits.contiguous().view(torch.int64) * 0x0102040810204080
    return (eights >> 56).to(torch.uint8).contiguous().view(torch.int64).squeeze(-1)


def _ones(words: Tensor) -> Tensor:
    """The bits that are set in each word."""
    twos = words - (words >> 1 & 0x5555555555555555)
    fours = (twos & 0x3333333333333333) + (twos >> 2 & 0x3333333333333333)
    bytes_of = fours + (fours >> 4) & 0x0F0F0F0F0F0F0F0F
    return bytes_of * 0x0101010101010101 >> 56


def _partial(given: Numbered) -> Iterator[tuple[Tensor, Tensor]]:
    """Some at a time, the places of the tiles that have words, and the rows of these."""
    places = (given.at != _ALL).nonzero().flatten()
    width = max(1, given.words.shape[1])
    for some in places.split(max(1, _PAIRS // KEYS // width)):
        if len(some):
            yield some, given.at[some]


def _joined(
    of: Sizes, numbers: Tensor, a: Numbered, b: Numbered, join: Callable[..., Tensor], whole: bool
) -> Tiles:
    """The tiles of these numbers: joined where both have words, that of the other where one is
    missing or, unless `whole`, sees all; where one sees all and `whole`, it does."""
    none = -2
    pool = [a.words, b.words]
    sides = []
    for side, offset in ((a, 0), (b, len(a.words))):
        place = torch.searchsorted(side.numbers, numbers).clamp(max=max(0, len(side.numbers) - 1))
        at = torch.full(numbers.shape, none)
        if len(side.numbers):
            here = side.numbers[place] == numbers
            own = side.at[place]
            at = torch.where(here, torch.where(own == _ALL, _ALL, own + offset), none)
        sides.append(at)
    left, right = sides
    if whole:  # the union: all of one is all, none of one is the other
        at = torch.where(left == none, right, left)
        at = torch.where((left == _ALL) | (right == _ALL), _ALL, at)
    else:
        at = torch.where(left == _ALL, right, left)
    words = torch.cat(pool)
    mixed = ((left >= 0) & (right >= 0)).nonzero().flatten()
    joined = join(words[left[mixed]], words[right[mixed]])
    at[mixed] = len(words) + torch.arange(len(mixed))
    return assemble(of, Numbered(numbers, at, torch.cat([words, joined])))
