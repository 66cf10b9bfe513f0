"""relpos.TileMask as a value: each constructor against its plain definition, and the operators."""

import copy
import itertools
import pickle

import pytest
import relpos
import torch
from relpos import TileMask


def neighbors(place, size, kernel, dilation):
    """Those along one axis, as NATTEN finds them: of every dilation-th token from place % dilation
    on, a window around it that is moved inward."""
    line = list(range(place % dilation, size, dilation))
    at, radius = line.index(place), kernel // 2
    centre = min(max(at, radius), len(line) - 1 - radius)
    return {line[n] for n in range(centre - radius, centre + radius + 1)}


def grid_pairs(grid, sees):
    """bool [L, L] where sees(axis, place of the query, place of the key) along every axis."""
    tokens = list(itertools.product(*map(range, grid)))
    rows = [[all(map(sees, range(len(grid)), q, k)) for k in tokens] for q in tokens]
    return torch.tensor(rows)[None, None]


@pytest.mark.parametrize(
    ("grid", "kernel", "dilation"),
    [
        ((130,), 7, 1),
        ((31,), 3, 4),
        ((9, 13), 5, 1),
        ((11, 14), (3, 5), (3, 2)),
        ((5, 5), 5, 1),
        ((4, 5, 7), (3, 5, 3), (1, 1, 2)),
    ],
)
def test_neighborhoods(grid, kernel, dilation):
    each = [x if isinstance(x, tuple) else (x,) * len(grid) for x in (kernel, dilation)]

    def sees(axis, q, k):
        return k in neighbors(q, grid[axis], each[0][axis], each[1][axis])

    got = TileMask.neighborhood(grid, kernel, dilation)
    assert torch.equal(got.dense(), grid_pairs(grid, sees))
    assert (got.dense().sum(-1) == torch.tensor(each[0]).prod()).all()


@pytest.mark.parametrize(
    ("grid", "window", "shift"),
    [((21,), 7, 3), ((8, 12), 4, 0), ((8, 12), (4, 6), (2, 5)), ((4, 6, 6), (2, 3, 6), (1, 1, 0))],
)
def test_shifted_windows(grid, window, shift):
    """As Swin's own code makes them: labels of an image of its regions, rolled and cut."""
    each = [x if isinstance(x, tuple) else (x,) * len(grid) for x in (window, shift)]
    regions = torch.zeros(grid, dtype=torch.int64)
    slices = []
    for size, width, by in zip(grid, *each, strict=True):
        cuts = [(0, size)] if by == 0 else [(0, size - width), (size - width, size - by)]
        slices.append([slice(*c) for c in cuts] + ([] if by == 0 else [slice(size - by, size)]))
    for number, part in enumerate(itertools.product(*slices)):
        regions[part] = number
    windows = torch.zeros(grid, dtype=torch.int64)
    counts = [size // width for size, width in zip(grid, each[0], strict=True)]
    for number, at in enumerate(itertools.product(*map(range, counts))):
        windows[tuple(slice(a * w, (a + 1) * w) for a, w in zip(at, each[0], strict=True))] = number
    labels = torch.stack([regions, windows], -1)
    back = labels.roll(each[1], tuple(range(len(grid)))).flatten(0, -2)
    expected = (back[:, None] == back[None]).all(-1)
    assert torch.equal(TileMask.shifted_windows(grid, window, shift).dense()[0, 0], expected)


@pytest.mark.parametrize("tokens", [1, 64, 250])
def test_documents(tokens):
    ids = torch.randint(5, (3, tokens), generator=torch.Generator().manual_seed(0))
    for given in (ids, ids.sort(-1).values, ids.int()):
        same = given[:, None, :, None] == given[:, None, None, :]
        assert torch.equal(TileMask.documents(given).dense(), same)
    assert torch.equal(
        TileMask.documents(ids[0]).dense(), ids[0][:, None] == ids[0][None, None, None]
    )


def test_prefixes():
    lengths = torch.tensor([0, 70, 151, 400, -3])
    q, k = torch.arange(151)[:, None], torch.arange(151)
    expected = (k <= q) | (k < lengths[:, None, None, None])
    assert torch.equal(TileMask.prefix(lengths, 151).dense(), expected)
    assert torch.equal(TileMask.prefix(70, 151).dense(), expected[1:2])


@pytest.mark.parametrize(("queries", "keys"), [(1, 5), (130, 201), (97, 64)])
def test_intervals(queries, keys):
    draw = torch.Generator().manual_seed(1)
    lo = torch.randint(-9, keys, (3, queries), generator=draw)
    hi = lo + torch.randint(-4, 30, (3, queries), generator=draw)
    j = torch.arange(keys)
    each = (lo[..., None] <= j) & (j < hi[..., None])
    assert torch.equal(TileMask.intervals(lo, hi, keys).dense()[0, 0], each.any(0))
    assert torch.equal(TileMask.intervals(lo[0], hi[0], keys).dense()[0, 0], each[0])
    assert TileMask.intervals(lo, hi).shape == (1, 1, queries, queries)


def random_mask(queries, keys, batch, heads, seed):
    """Tiles that are empty, full and in part."""
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.randint(3, (batch, heads, queries // 96 + 1, keys // 64 + 1), generator=draw)
    wide = kinds.repeat_interleave(96, 2).repeat_interleave(64, 3)[:, :, :queries, :keys]
    return (wide == 2) | ((wide == 1) & (torch.rand(wide.shape, generator=draw) < 0.3))


def of_dense(mask):
    batch, heads, queries, keys = mask.shape
    return relpos.from_mask_mod(
        lambda b, h, q_idx, kv_idx: mask[b, h, q_idx, kv_idx],
        queries,
        keys,
        batch=batch,
        heads=heads,
    )


@pytest.mark.parametrize(
    ("queries", "keys", "batch", "heads"),
    [(1, 1, 1, 1), (5, 130, 2, 3), (96, 64, 1, 2), (301, 257, 2, 1), (0, 7, 1, 1), (7, 0, 1, 1)],
)
def test_a_function_of_pairs_and_operators(queries, keys, batch, heads):
    a = random_mask(queries, keys, batch, heads, 0)
    b = random_mask(queries, keys, 1, heads, 1)
    tiles, others = of_dense(a), of_dense(b)
    assert tiles.shape == (batch, heads, queries, keys)
    assert torch.equal(tiles.dense(), a)
    assert torch.equal((tiles & others).dense(), a & b)
    assert torch.equal((others | tiles).dense(), a | b)
    assert torch.equal((~tiles).dense(), ~a)
    assert tiles.density == pytest.approx(a.double().mean().item() if a.numel() else 0.0)
    # One form, however it was made.
    assert ~~tiles == tiles
    assert ~(tiles & others) == ~tiles | ~others
    assert (tiles | ~tiles).density == (1.0 if a.numel() else 0.0)
    assert len((tiles & ~tiles).entries) == 0
    assert pickle.loads(pickle.dumps(tiles)) == copy.deepcopy(tiles) == tiles


def test_unseen_tiles_take_no_memory():
    mask = TileMask.documents(torch.arange(50000) // 100)
    assert len(mask.entries) < 50000 / 96 * 5
    assert repr(mask).startswith("TileMask([1, 1, 50000, 50000], density 0.002,")


def test_equality():
    mask = TileMask.prefix(3, 10)
    assert mask != TileMask.prefix(4, 10)
    assert mask != TileMask.prefix(torch.tensor([3, 3]), 10)
    assert mask != mask.dense()
    with pytest.raises(TypeError, match="unhashable"):
        hash(mask)


@pytest.mark.parametrize("returned", [True, torch.tensor(True), torch.ones(4, 1, dtype=torch.bool)])
def test_a_function_may_depend_on_less(returned):
    assert relpos.from_mask_mod(lambda *index: returned, 4, 70).density == 1.0


MASK = TileMask.prefix(3, 10)
ERRORS = {
    "no function": (lambda: relpos.from_mask_mod(3, 4, 4), TypeError, "mask_mod: expected a func"),
    "floats": (
        lambda: relpos.from_mask_mod(lambda b, h, q, k: (q - k).float(), 4, 4),
        TypeError,
        "mask_mod: expected a function that returns bools, got torch.float32",
    ),
    "another shape": (
        lambda: relpos.from_mask_mod(lambda *_: torch.ones(3, 3, dtype=torch.bool), 4, 4),
        ValueError,
        r"mask_mod: expected bools that broadcast to \[1, 1, 4, 64\]",
    ),
    "no batch": (
        lambda: relpos.from_mask_mod(lambda *_: True, 4, 4, batch=0),
        ValueError,
        "batch: expected an int from 1 on, got 0",
    ),
    "half a query": (
        lambda: relpos.from_mask_mod(lambda *_: True, 1.5, 4),
        TypeError,
        "queries: expected an int",
    ),
    "no grid": (lambda: TileMask.neighborhood(64, 3), ValueError, "grid: expected the sizes of"),
    "even kernel": (
        lambda: TileMask.neighborhood((8, 8), 4),
        ValueError,
        "kernel: expected odd numbers, whose window has a centre, got 4",
    ),
    "large kernel": (
        lambda: TileMask.neighborhood((8, 8), 3, 3),
        ValueError,
        "kernel: expected at most 8 tokens of its axis, dilated, got 9",
    ),
    "axes": (
        lambda: TileMask.neighborhood((8, 8), (3, 3, 3)),
        ValueError,
        "kernel: expected a number, or 2, one for each axis",
    ),
    "window": (
        lambda: TileMask.shifted_windows((8, 9), 4, 0),
        ValueError,
        "window: expected a divisor of 9: pad the grid, got 4",
    ),
    "shift": (
        lambda: TileMask.shifted_windows((8, 8), 4, 4),
        ValueError,
        "shift: expected less than the window, 4, got 4",
    ),
    "ids": (
        lambda: TileMask.documents(torch.zeros(4)),
        TypeError,
        "ids: expected int64 or int32, got torch.float32",
    ),
    "rank of ids": (
        lambda: TileMask.documents(torch.zeros(4, 4, 4).long()),
        ValueError,
        r"ids: expected int64 \[L\] or \[B, L\], got \[4, 4, 4\]",
    ),
    "lengths": (
        lambda: TileMask.prefix(torch.zeros(4, 4).long(), 4),
        ValueError,
        r"lengths: expected an int or int64 \[B\], got \[4, 4\]",
    ),
    "intervals": (
        lambda: TileMask.intervals(torch.zeros(4).long(), torch.zeros(5).long()),
        ValueError,
        r"hi: expected \[1, 4\], as lo has, got \[1, 5\]",
    ),
    "other keys": (
        lambda: MASK & TileMask.prefix(3, 11),
        ValueError,
        r"TileMask: expected a shape that broadcasts to \[1, 1, 10, 10\], got \[1, 1, 11, 11\]",
    ),
    "a tensor": (lambda: MASK & MASK.dense(), TypeError, "unsupported operand"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    make, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        make()
