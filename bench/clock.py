"""Calls that take turns, and what their times say."""

import math
import statistics
import time
from collections.abc import Callable

TICK = 1e-3  # seconds that one reading of the clock should span
LONG_CALL = 4.0  # seconds; from here on the first turn counts
LEAST_ROUNDS, MOST_ROUNDS = 3, 99


def seconds_of(call: Callable[[], object], repeats: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def take_turns(calls: list[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Seconds of each call in each round, in opposite order every other round."""
    first = [seconds_of(call) for call in calls]
    if sum(first) >= LONG_CALL * len(calls):
        return [[t] for t in first]
    again = [seconds_of(call) if t < TICK else t for call, t in zip(calls, first, strict=True)]
    repeats = [max(1, math.ceil(TICK / t)) for t in again]
    turn = sum(r * t for r, t in zip(repeats, again, strict=True))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / turn)))
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for round_ in range(rounds):
        for n in order if round_ % 2 == 0 else reversed(order):
            times[n].append(seconds_of(calls[n], repeats[n]))
    return times


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def median_ms(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds)
