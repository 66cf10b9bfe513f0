"""Calls that take turns, and what their times say."""

import math
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TICK = 5e-3  # seconds that one reading of the clock should span
COLD = 0.1  # seconds; a first call below is much slower than those that follow
LONG_CALL = 4.0  # seconds; from here on the first turn counts
LEAST_ROUNDS, MOST_ROUNDS = 3, 99


class IssueSlots:
    """Whether other machines' threads leave us our cores, as `relpos bench --watch` says."""

    QUIET = 0.85
    REST = 0.005  # seconds in which the threads of the last call stop spinning

    def __init__(self, tool: Path) -> None:
        pipe = subprocess.PIPE
        self._watch = subprocess.Popen(
            [tool, "bench", "--watch"], stdin=pipe, stdout=pipe, text=True
        )
        for _ in range(50):  # the best is known after some looks
            self.quiet()

    def quiet(self) -> bool:
        time.sleep(self.REST)
        self._watch.stdin.write("\n")
        self._watch.stdin.flush()
        return float(self._watch.stdout.readline()) >= self.QUIET

    def close(self) -> None:
        self._watch.communicate()


@dataclass
class Budget:
    seconds: float  # for each row; three rounds at least, one where calls take seconds
    # Whether neighbours leave us our cores now. A round counts that found them so before and after.
    quiet: Callable[[], bool] | None = None
    patience: float = 10.0  # seconds more, to wait for quiet and to repeat rounds


@dataclass
class Turns:
    seconds: list[list[float]]  # of each call in each round
    noisy: bool = False  # fewer than three rounds were quiet: all are given


def seconds_of(call: Callable[[], object], repeats: int = 1) -> float:
    if repeats > 1:  # short calls start warm: the last turn, or a wait, was another's
        call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def take_turns(calls: list[Callable[[], object]], budget: Budget) -> Turns:
    """Times calls, in opposite order every other round."""
    first = [seconds_of(call) for call in calls]
    if sum(first) >= LONG_CALL * len(calls):
        return Turns([[t] for t in first])
    again = [seconds_of(call) if t < COLD else t for call, t in zip(calls, first, strict=True)]
    repeats = [max(1, math.ceil(TICK / t)) for t in again]
    turn = sum(r * t for r, t in zip(repeats, again, strict=True))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(budget.seconds / turn)))
    end = time.perf_counter() + rounds * turn + budget.patience
    order = list(range(len(calls)))
    counted: list[list[float]] = []
    loud: list[list[float]] = []

    def is_quiet() -> bool:
        return budget.quiet is None or budget.quiet()

    while len(counted) < rounds:
        done = len(counted) + len(loud)
        if time.perf_counter() >= end and budget.quiet and done >= LEAST_ROUNDS:
            break
        while not is_quiet() and time.perf_counter() < end:
            time.sleep(0.02)
        spent = [0.0] * len(calls)
        for n in order if done % 2 == 0 else reversed(order):
            spent[n] = seconds_of(calls[n], repeats[n])
        (counted if is_quiet() else loud).append(spent)
    noisy = len(counted) < LEAST_ROUNDS
    kept = counted + loud if noisy else counted
    return Turns([list(times) for times in zip(*kept, strict=True)], noisy)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def median_ms(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds)
