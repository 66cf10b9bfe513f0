"""Calls that take turns, and which of their rounds other programs left undisturbed.

A core that also runs a thread of another program, or of another machine beside a virtual one, gives
us half of its instructions. Multiply-adds alone hardly notice, attention does. So before and after
each call our threads execute no-ops for a millisecond. A round counts where their rate stayed above
QUIET of the best rate seen.
"""

import ctypes
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import relpos

TIMER = Path(__file__).resolve().parent.parent / "build" / "release" / "bench_timer.so"
TICK = 5e-3  # seconds that one reading of the clock should span
COLD = 0.1  # seconds; a first call below is much slower than those that follow
LONG_CALL = 4.0  # seconds; from here on the first turn counts
LEAST_ROUNDS, MOST_ROUNDS = 3, 99
QUIET = 0.85


@functools.cache
def timer() -> ctypes.CDLL:
    """bench/timer.cc; its seconds and rates are doubles."""
    linked = TIMER.with_name("librelpos.a")
    if not TIMER.exists() or TIMER.stat().st_mtime < linked.stat().st_mtime:
        raise FileNotFoundError(f"{TIMER}: missing or old; scripts/build.sh bench_timer makes it")
    library = ctypes.CDLL(str(TIMER))
    library.relpos_bench_cpu.restype = ctypes.c_char_p
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.relpos_bench_read.argtypes = [ctypes.c_int, pointer, count]
    library.relpos_bench_call.argtypes = [pointer] * 4 + [count] * 3
    for name in ("peak", "tile", "clock", "bandwidth", "read", "no_ops", "call"):
        getattr(library, f"relpos_bench_{name}").restype = ctypes.c_double
    return library


def threads() -> int:
    return int(relpos.show_config()["threads"])


class Interference:
    """Whether other programs use our cores. best: the highest rate of no-ops seen so far."""

    def __init__(self, best: float = 0.0) -> None:
        self.best = best

    def rate(self) -> float:
        time.sleep(0.005)  # threads of the last call stop spinning
        rate = timer().relpos_bench_no_ops(threads())
        self.best = max(self.best, rate)
        return rate

    def quiet(self, rate: float) -> bool:
        return rate >= QUIET * self.best


@dataclass
class Budget:
    seconds: float  # for each row; three rounds at least, one where calls take seconds
    wait: float = 10.0  # seconds more, to wait for quiet and to repeat disturbed rounds
    interference: Interference | None = None  # None: every round counts


@dataclass
class Turns:
    rounds: list[list[float]] = field(default_factory=list)  # seconds of each call
    rates: list[float] = field(default_factory=list)  # the least of each round, where measured


def seconds_of(call: Callable[[], object], repeats: int = 1) -> float:
    if repeats > 1:  # short calls start warm: the last turn, or a wait, was another's
        call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def take_turns(calls: list[Callable[[], object]], budget: Budget) -> Turns:
    """Times calls, in opposite order every other round that counts."""
    turns = Turns()
    monitor = budget.interference

    def rate() -> float:
        return monitor.rate() if monitor else 0.0

    def add(seconds: list[float], rates: Iterable[float]) -> bool:
        turns.rounds.append(seconds)
        if monitor:
            turns.rates.append(min(rates))
        return monitor is None or monitor.quiet(turns.rates[-1])

    before = rate()
    first = [seconds_of(call) for call in calls]
    if sum(first) >= LONG_CALL * len(calls):
        add(first, (before, rate()))
        return turns
    again = [seconds_of(call) if t < COLD else t for call, t in zip(calls, first, strict=True)]
    repeats = [max(1, math.ceil(TICK / t)) for t in again]
    turn = sum((r + (r > 1)) * t for r, t in zip(repeats, again, strict=True))
    wanted = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(budget.seconds / turn)))
    end = time.perf_counter() + wanted * turn + budget.wait
    counted_rounds = 0
    while counted_rounds < wanted and (budget.wait > 0 or len(turns.rounds) < wanted):
        if len(turns.rounds) >= LEAST_ROUNDS and time.perf_counter() >= end:
            break
        rates = [rate()]
        while monitor and not monitor.quiet(rates[0]) and time.perf_counter() < end and budget.wait:
            time.sleep(0.02)
            rates = [rate()]
        spent = [0.0] * len(calls)
        for n in range(len(calls)) if counted_rounds % 2 == 0 else reversed(range(len(calls))):
            spent[n] = seconds_of(calls[n], repeats[n])
            rates.append(rate())
        counted_rounds += add(spent, rates)
    return turns


def counted(values: list[float], rates: list[float], best: float) -> tuple[list[float], bool]:
    """Values of the undisturbed rounds; or all, and True, where those are fewer than three and than
    all: the row is noisy."""
    if not rates:
        return values, False
    kept = [v for v, rate in zip(values, rates, strict=True) if rate >= QUIET * best]
    noisy = len(kept) < min(LEAST_ROUNDS, len(values))
    return (values if noisy else kept), noisy


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


Machine = dict[str, Any]
# Other programs only ever lower these.
BESTS = ("peak_one", "peak_all", "tile_all", "clock", "read_bandwidth", "best_rate")


def measured_machine(monitor: Interference) -> Machine:
    """GFLOP/s of multiply-adds alone and in the product of a tile, GHz, GB/s of reading, and the
    rate of no-ops beside its best."""
    count = threads()
    rate = sum(monitor.rate() for _ in range(50)) / 50
    return {
        "cpu": timer().relpos_bench_cpu().decode(),
        "target": relpos.show_config()["target"],
        "threads": count,
        "peak_one": timer().relpos_bench_peak(1),
        "peak_all": timer().relpos_bench_peak(count),
        "tile_all": timer().relpos_bench_tile(count),
        "clock": timer().relpos_bench_clock(count),
        "read_bandwidth": timer().relpos_bench_bandwidth(count),
        "rate": rate,
        "best_rate": monitor.best,
    }


def joined_machine(before: Machine, after: Machine) -> Machine:
    bests = {key: max(before[key], after[key]) for key in BESTS}
    return {**before, **bests, "rate": (before["rate"] + after["rate"]) / 2}


def void_reason(machine: Machine) -> str:
    """Why a run on this machine does not count; empty where it does."""
    one, every = machine["peak_one"], machine["peak_all"]
    if machine["threads"] >= 2 and every < 1.5 * one:
        return "all threads reach less than 1.5 times one: they share a core, or others run"
    wide = machine["target"] in ("avx512", "avx512_bf16", "amx") and one > 200
    if wide and machine["threads"] == 2 and every < 380:
        return "two threads with 512-bit units reach less than 380 GFLOP/s: they share a core"
    return ""


def machine_text(machine: Machine) -> str:
    reason = void_reason(machine)
    clock = f"{machine['clock']:.2f} GHz, " if machine["clock"] else ""  # 0: not known
    return (
        f"{machine['date']}: {machine['cpu']}, target {machine['target']}, "
        f"{machine['threads']} threads: {machine['peak_all']:.0f} GFLOP/s of multiply-adds with "
        f"all threads, {machine['peak_one']:.0f} with one, {machine['tile_all']:.0f} in the "
        f"product of a tile, {clock}{machine['read_bandwidth']:.3g} GB/s "
        f"read, {100 * machine['rate'] / machine['best_rate']:.0f} % of the instructions ours. "
        + (f"**It does not count: {reason}.**" if reason else "It counts.")
    )
