"""What more cores would gain: a model that replays a call's tasks on many threads.

`python bench/scaling.py` measures here what the parts of a call cost one thread, and replays how
the library deals them (src/kernels/drive: schedule, backward, decode) on 1 to 128 threads: who
packs a tile and who waits for it, whose turn it is to add to the gradients of a tile's keys or of
a mask that batch rows share, and what one thread does alone. Efficiency is the time of one thread
over that of all of them together. The model knows no limits of memory and no clock that falls with
cores; it is measured against real calls of 1 and 2 threads.
"""

import argparse
import ctypes
import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import relpos
import torch
from case import Case, Row, Target
from clock import Budget, timer

ROWS, TILE, TILES_AT_A_TIME = 96, 64, 8
REGION = 1e-5  # seconds to start and end a team of many threads; an assumption
KEPT_BYTES = 16 << 20  # packs of a head beyond this are packed by each block


class Shape(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int = 64
    causal: bool = False
    biased: bool = False  # a trained distance bias
    masked: bool = False  # a mask with a gradient, which batch rows share

    def __str__(self) -> str:
        heads = f"H {self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")
        length = f"L {self.keys}" if self.queries == self.keys else f"{self.queries} x {self.keys}"
        said = ", causal" * self.causal + ", trained bias" * self.biased
        said += ", trained mask of all batch rows" * self.masked
        return f"B {self.batch} {heads} {length} D {self.dim}{said}"

    @property
    def pairs(self) -> int:
        return self.batch * self.kv_heads

    @property
    def blocks(self) -> int:
        return -(-self.queries // ROWS)

    @property
    def tiles(self) -> int:
        return -(-self.keys // TILE)

    @property
    def blocks_of_pair(self) -> int:
        return self.heads // self.kv_heads * self.blocks


class Costs(NamedTuple):
    """Seconds, as of bench/costs.cc; call: what Python takes for a call beside its work."""

    setup: float
    pack: float
    start: float
    tile: float
    shared: float
    mask: float
    finish: float
    write: float
    reduce: float
    call: float = 0.0


def measured_costs(shape: Shape, backward: bool) -> Costs:
    sizes = (ctypes.c_int64 * 5)(*shape[1:6])
    found = (ctypes.c_double * 9)()
    timer().relpos_bench_costs(sizes, int(shape.biased), int(shape.masked), int(backward), found)
    return Costs(*found, call=seconds_of(Shape(1, 1, 1, 12, 12), backward, 1, 200))


def seconds_of(shape: Shape, backward: bool, threads: int, repeats: int = 5) -> float:
    """The least of some real calls through Python."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        q = torch.randn(shape.batch, shape.heads, shape.queries, shape.dim, requires_grad=backward)
        k, v = (
            torch.randn(shape.batch, shape.kv_heads, shape.keys, shape.dim, requires_grad=backward)
            for _ in range(2)
        )
        reach = max(shape.queries, shape.keys) - 1
        position = relpos.BiasRPE(shape.heads, reach) if shape.biased else None
        leaves = [q, k, v, *(position.parameters() if position else [])]
        mask = None
        if shape.masked:
            mask = torch.randn(1, shape.heads, shape.queries, shape.keys, requires_grad=backward)
            leaves.append(mask)

        def forward() -> torch.Tensor:
            return relpos.attention(
                q, k, v, attn_mask=mask, position=position, is_causal=shape.causal, enable_gqa=True,
                q_offset=0,
            )  # fmt: skip

        with torch.set_grad_enabled(backward):
            run: Callable[[], object] = forward
            if backward:
                out = forward()
                dout = torch.randn_like(out)
                run = lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)  # noqa: E731
            run()
            taken = []
            for _ in range(repeats):
                begin = time.perf_counter()
                run()
                taken.append(time.perf_counter() - begin)
        return min(taken)
    finally:
        torch.set_num_threads(before)


# ---- Workers take turns: each is an iterator of what it does next.

Step = float | Callable[[], bool]  # computes for so long, or waits until this holds


def replay(workers: list[Iterator[Step]]) -> float:
    """Seconds until all have ended; they begin together."""
    ready = [(0.0, n) for n in range(len(workers))]
    heapq.heapify(ready)
    waiting: dict[int, Callable[[], bool]] = {}
    now = end = 0.0
    while ready or waiting:
        if not ready:
            raise RuntimeError(f"{len(waiting)} workers wait for each other")
        now, n = heapq.heappop(ready)
        end = max(end, now)
        for step in workers[n]:
            if callable(step):
                if step():
                    continue
                waiting[n] = step
            else:
                heapq.heappush(ready, (now + step, n))
            break
        for one in [one for one, holds in waiting.items() if holds()]:
            del waiting[one]
            heapq.heappush(ready, (now, one))
    return end


def dealt(count: int, threads: int, seconds: float) -> float:
    """Of equal tasks on a team."""
    return REGION * (threads > 1) + -(-count // threads) * seconds


@dataclass
class Head:
    """A key head at work: its packs, and how far its blocks are."""

    pair: int
    packed: list[str]
    left: list[float]
    next_task: int = 0


class Blocks:
    """A pass over blocks of queries, head after head. tiles: of a chunk of keys; 0: all of them.
    adds: blocks add to the gradients of keys in turns. sums: chunks of blocks that sum gradients of
    terms, each block after the one before it in its chunk; 0: there are none. writes: who ends a
    head's last block writes the gradients of its keys."""

    def __init__(
        self, shape: Shape, costs: Costs, *, tiles: int = 0, adds: bool = False, sums: int = 0,
        writes: bool = False,
    ):  # fmt: skip
        self.shape, self.costs, self.adds = shape, costs, adds
        self.writes = writes
        self.tiles = tiles or shape.tiles
        self.chunks = -(-shape.tiles // self.tiles)
        self.sums = sums
        per_tile = (3 if adds else 2) * TILE * shape.dim * 4
        self.keeps = shape.tiles * per_tile <= KEPT_BYTES
        # For each key head and block of a mask: the tiles that its batch rows have left.
        self.rows: dict[tuple[int, int], list[float]] = {}

    def head(self, pair: int) -> Head:
        return Head(pair, ["none"] * self.shape.tiles, [0.0] * self.shape.blocks_of_pair)

    def seconds(self, pairs: range, threads: int) -> float:
        heads = [self.head(pair) for pair in pairs[: min(threads, len(pairs))]]
        left = iter(pairs[len(heads) :])
        return REGION * (threads > 1) + replay(
            [self.worker(n, heads, left) for n in range(threads)]
        )

    def worker(self, n: int, heads: list[Head], left: Iterator[int]) -> Iterator[Step]:
        while n < len(heads):
            yield from self.tasks(heads, n)
            pair = next(left, None)
            if pair is None:
                break
            heads[n] = self.head(pair)
        for other in range(1, len(heads) + 1):
            yield from self.tasks(heads, (n + other) % len(heads))

    def tasks(self, heads: list[Head], slot: int) -> Iterator[Step]:
        head = heads[slot]
        while head.next_task < self.shape.blocks_of_pair * self.chunks:
            number, chunk = divmod(head.next_task, self.chunks)
            head.next_task += 1
            yield from self.block(head, number, chunk)

    def block(self, head: Head, number: int, chunk: int) -> Iterator[Step]:
        shape, costs = self.shape, self.costs
        block = shape.blocks - 1 - number % shape.blocks
        rows = min(ROWS, shape.queries - block * ROWS)
        seen = min(shape.keys, block * ROWS + rows) if shape.causal else shape.keys
        tiles = range(chunk * self.tiles, min(-(-seen // TILE), (chunk + 1) * self.tiles))
        if self.sums and number >= self.sums:
            yield lambda: head.left[number - self.sums] == math.inf
        yield costs.start * rows / ROWS
        for first in range(tiles.start, tiles.stop, TILES_AT_A_TIME):
            some = range(first, min(tiles.stop, first + TILES_AT_A_TIME))
            yield from self.pack(head, some)
            for t in some:
                yield from self.tile(head, number, self.share(block, rows, t), t)
        yield costs.finish * rows / ROWS
        head.left[number] = math.inf
        if shape.masked:
            left, row = self.left_of_mask(head, number)
            left[row] = math.inf
        if self.writes and min(head.left) == math.inf:
            yield costs.write * shape.tiles

    def share(self, block: int, rows: int, t: int) -> float:
        """Of a tile's work, for a block that sees a part of it."""
        if not self.shape.causal or (t + 1) * TILE <= block * ROWS:
            return rows / ROWS
        seen = sum(min(TILE, max(0, block * ROWS + r + 1 - t * TILE)) for r in range(rows))
        return (seen / (rows * TILE) + 1) / 2 * rows / ROWS

    def pack(self, head: Head, tiles: range) -> Iterator[Step]:
        for t in tiles:
            if not self.keeps:
                yield self.costs.pack
            elif head.packed[t] == "none":
                head.packed[t] = "begun"
                yield self.costs.pack
                head.packed[t] = "done"
        if self.keeps:
            yield lambda: all(head.packed[t] == "done" for t in tiles)

    def tile(self, head: Head, number: int, share: float, t: int) -> Iterator[Step]:
        yield self.costs.tile * share
        if self.adds:
            yield lambda: all(left > t for left in head.left[:number])
            yield self.costs.shared * share
            head.left[number] = t + 1
        if self.shape.masked:
            yield from self.turn_of_mask(head, number, share, t)

    def left_of_mask(self, head: Head, number: int) -> tuple[list[float], int]:
        row, key_head = divmod(head.pair, self.shape.kv_heads)
        return self.rows.setdefault((key_head, number), [0.0] * self.shape.batch), row

    def turn_of_mask(self, head: Head, number: int, share: float, t: int) -> Iterator[Step]:
        left, row = self.left_of_mask(head, number)
        first = 0  # rows before it have left all

        def holds() -> bool:
            nonlocal first
            while first < row and left[first] == math.inf:
                first += 1
            return all(one > t for one in left[first:row])

        yield holds
        yield self.costs.mask * share
        left[row] = t + 1


# ---- What the library does.


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(x, high))


def forward_seconds(shape: Shape, costs: Costs, threads: int) -> float:
    tasks = shape.heads * shape.blocks
    divided = shape.keys >= 8 * shape.queries
    chunk = max(32, shape.tiles * tasks // 64) if divided else shape.tiles
    blocks = Blocks(shape, costs, tiles=chunk)
    return costs.call + costs.setup + blocks.seconds(range(shape.pairs), threads)


def backward_seconds(shape: Shape, costs: Costs, threads: int) -> float:
    keys = 8 * shape.tiles * TILE * shape.dim
    distances = shape.queries + shape.keys + 127
    terms = 8 * distances * shape.heads // shape.kv_heads * shape.biased
    few, many = (min(most, -(-n // shape.kv_heads)) for n, most in ((16, 4), (64, 16)))
    chunks = min(clamp(keys // max(1, terms), few, many), shape.blocks_of_pair)
    writes = shape.pairs >= threads
    held = max(1, chunks * terms + keys * (not writes))
    affordable = max(min(16, (32 << 20) // held), (4 << 20) // max(1024, held))
    wave = min(max(affordable, threads), shape.pairs) if terms or not writes else shape.pairs
    blocks = Blocks(shape, costs, adds=True, sums=chunks * shape.biased, writes=writes)
    total = costs.call + costs.setup
    for first in range(0, shape.pairs, wave):
        pairs = range(first, min(shape.pairs, first + wave))
        total += blocks.seconds(pairs, threads)
        if not writes:
            total += dealt(len(pairs) * shape.tiles, threads, costs.write)
        if shape.biased:
            of_head = max(1, len(pairs) // shape.kv_heads) * chunks * costs.reduce
            total += dealt(min(shape.kv_heads, len(pairs)), threads, of_head)
    return total


def decode_seconds(shape: Shape, whole: float, call: float, threads: int) -> float:
    """From the seconds of one thread: what one task of it takes, and how many there are."""
    blocks = -(-shape.blocks_of_pair * shape.queries // ROWS)
    chunk = clamp(shape.tiles * shape.kv_heads * blocks // 64, 8, 32)
    tasks = shape.pairs * blocks * -(-shape.tiles // chunk)
    return call + dealt(tasks, threads, (whole - call) / tasks)


Model = Callable[[int], float]  # seconds of so many threads


def model_of(shape: Shape, backward: bool) -> Model:
    if shape.queries <= 16 and not backward:
        whole = seconds_of(shape, False, 1)
        call = seconds_of(Shape(1, 1, 1, 12, 12), False, 1, 200)
        return lambda threads: decode_seconds(shape, whole, call, threads)
    costs = measured_costs(shape, backward)
    seconds = backward_seconds if backward else forward_seconds
    return lambda threads: seconds(shape, costs, threads)


def efficiency(model: Model, threads: int) -> float:
    return model(1) / threads / model(threads)


FULL = Shape(1, 8, 8, 2048, 2048)
SHARED_MASK = Shape(384, 4, 4, 384, 384, 32, masked=True)
SHAPES = [
    (FULL, False),
    (FULL, True),
    (FULL._replace(causal=True), False),
    (FULL._replace(causal=True), True),
    (FULL._replace(biased=True), True),
    (Shape(1, 8, 8, 1024, 1024), False),
    (Shape(1, 8, 8, 1024, 1024), True),
    (Shape(4, 32, 8, 1024, 1024, 128, causal=True), True),
    (SHARED_MASK, True),
    (Shape(1, 32, 8, 128, 16384, 128), False),
    (Shape(1, 32, 8, 1, 4096, 128), False),
]
THREADS = (8, 32, 64, 128)


def cases() -> list[Case]:
    """64 threads, from costs that are measured three times."""

    def case(name: str, shape: Shape, backward: bool, target: Target) -> Case:
        def run(case: Case, _: Budget) -> list[Row]:
            values = [100 * efficiency(model_of(shape, backward), 64) for _ in range(3)]
            return [case.row(values=values, rates=[], seconds={}, note="bench/scaling.py")]

        return Case(f"modelled on 64 threads, {name}", "% efficient", target, run)

    return [
        case("forward, L 2048", FULL, False, (85, 92)),
        case("backward, L 2048", FULL, True, (75, 92)),
        case("backward, mask of 384 batch rows", SHARED_MASK, True, (70, None)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    head = ["call", "model and measured, 1 thread (ms)", "2 threads (ms)"]
    head += [f"{threads} threads" for threads in THREADS]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for shape, backward in SHAPES:
        model = model_of(shape, backward)
        cells = [f"{shape}, {'backward' if backward else 'forward'}"]
        for threads in (1, 2):
            real = seconds_of(shape, backward, threads)
            cells.append(f"{1e3 * model(threads):.2f}, {1e3 * real:.2f}")
        cells += [f"{100 * efficiency(model, threads):.0f} %" for threads in THREADS]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
