"""Calls that take turns, and what their times say."""

import math
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TICK = 5e-3  # seconds that one reading of the clock should span
COLD = 0.1  # seconds; a first call below is much slower than those that follow
LONG_CALL = 4.0  # seconds; from here on the first turn counts
LEAST_ROUNDS, MOST_ROUNDS = 3, 99
QUIET = 0.85  # share of the best look from which on neighbours are quiet: IssueSlots::kQuiet


class Lost(Exception):
    """The process that looks at the issue slots is gone: the run cannot go on."""


class IssueSlots:
    """How much of our cores neighbours leave us: the looks of `relpos bench --watch`.

    best: the most that anybody has seen. To be closed; or a context manager.
    """

    def __init__(self, tool: Path, best: float = 0.0) -> None:
        pipe = subprocess.PIPE
        self.best = best
        self._tool = subprocess.Popen(
            [tool, "bench", "--watch"], stdin=pipe, stdout=pipe, text=True
        )

    def __enter__(self) -> "IssueSlots":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def look(self) -> float:
        try:
            self._tool.stdin.write("\n")
            self._tool.stdin.flush()
            looked = float(self._tool.stdout.readline())
        except (OSError, ValueError) as error:
            raise Lost("relpos bench --watch ended early") from error
        self.best = max(self.best, looked)
        return looked

    def quiet(self, looked: float) -> bool:
        return looked >= QUIET * self.best

    def close(self) -> None:
        try:
            self._tool.stdin.close()
            self._tool.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._tool.kill()
            self._tool.wait()
        self._tool.stdout.close()


@dataclass
class Budget:
    seconds: float  # for each row; three rounds at least, one where calls take seconds
    slots: IssueSlots | None = None  # where given, a round counts that is quiet around each call
    patience: float = 10.0  # seconds more, to wait for quiet and to repeat rounds


@dataclass
class Turns:
    seconds: list[list[float]]  # of each call in each round
    looks: list[float] = field(default_factory=list)  # of each round the least; or not judged
    best: float = 0.0  # look so far

    def median_ms(self, call: int) -> float:
        values, _ = counted(self.seconds[call], self.looks, self.best)
        return 1e3 * statistics.median(values)


def counted(values: list[float], looks: list[float], best: float) -> tuple[list[float], bool]:
    """Values of the quiet rounds; or of all, and True, where those are fewer than three and than
    all: the row is noisy."""
    if not looks:
        return values, False
    kept = [v for v, look in zip(values, looks, strict=True) if look >= QUIET * best]
    noisy = len(kept) < min(LEAST_ROUNDS, len(values))
    return (values if noisy else kept), noisy


def seconds_of(call: Callable[[], object], repeats: int = 1) -> float:
    if repeats > 1:  # short calls start warm: the last turn, or a wait, was another's
        call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def take_turns(calls: list[Callable[[], object]], budget: Budget) -> Turns:
    """Times calls, in opposite order every other round that counts."""
    slots = budget.slots
    rounds: list[list[float]] = []
    looks: list[float] = []

    def look() -> float:
        return slots.look() if slots else 0.0

    def is_quiet(looked: float) -> bool:
        return slots is None or slots.quiet(looked)

    def add(before: float, spent: list[float]) -> bool:
        looks.append(min(before, look()))
        rounds.append(spent)
        return is_quiet(looks[-1])

    def turns() -> Turns:
        by_call = [list(times) for times in zip(*rounds, strict=True)]
        return Turns(by_call, looks, slots.best) if slots else Turns(by_call)

    before = look()
    first = [seconds_of(call) for call in calls]
    if sum(first) >= LONG_CALL * len(calls):
        add(before, first)
        return turns()
    again = [seconds_of(call) if t < COLD else t for call, t in zip(calls, first, strict=True)]
    repeats = [max(1, math.ceil(TICK / t)) for t in again]
    turn = sum((r + (r > 1)) * t for r, t in zip(repeats, again, strict=True))
    wanted = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(budget.seconds / turn)))
    most = math.inf if budget.patience > 0 else wanted
    end = time.perf_counter() + wanted * turn + budget.patience
    order = list(range(len(calls)))
    quiet_ones = 0
    while quiet_ones < wanted and len(rounds) < most:
        if len(rounds) >= LEAST_ROUNDS and time.perf_counter() >= end:
            break
        before = look()
        while not is_quiet(before) and budget.patience > 0 and time.perf_counter() < end:
            time.sleep(0.02)
            before = look()
        spent = [0.0] * len(calls)
        turn_order = order if quiet_ones % 2 == 0 else order[::-1]
        for n in turn_order:
            spent[n] = seconds_of(calls[n], repeats[n])
            before = min(before, look()) if n != turn_order[-1] else before
        quiet_ones += add(before, spent)
    return turns()


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
