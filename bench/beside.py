"""A training step beside other work, relpos against torch's SDPA, the two in turns in one process:

.venv/bin/python bench/beside.py --seconds 10

Prints a Markdown table: the mean of a step of each, and their ratio, by what goes on meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import relpos
import torch
from surroundings import busy_programs, half_a_core
from torch.nn import functional

CORES = len(os.sched_getaffinity(0))
SHAPE = (1, 8, 512, 64)
# What goes on: at once how, busy programs, within half a core, threads asked for.
SURROUNDINGS = {
    "nothing": ("alone", 0, False, CORES),
    "another step in a thread": ("threads", 0, False, CORES),
    "another step in a forked process": ("forks", 0, False, CORES),
    "a busy program on every core": ("alone", CORES, False, CORES),
    "64 threads asked for": ("alone", 0, False, 64),
    "half a core for the process": ("alone", 0, True, CORES),
    "half a core, 64 threads asked for, a busy program on every core": ("alone", CORES, True, 64),
}


def steps() -> list[Callable[[], object]]:
    """A step of relpos and one of torch, of the same numbers."""
    draw = torch.Generator().manual_seed(0)
    leaves = [torch.randn(SHAPE, generator=draw).requires_grad_() for _ in range(3)]
    dout = torch.randn(SHAPE, generator=draw)

    def of(attention: Callable[..., torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attention(*leaves), leaves, dout)

    return [of(relpos.attention), of(functional.scaled_dot_product_attention)]


def twice(step: Callable[[], object]) -> Callable[[], object]:
    """A step in each of two threads."""

    def run() -> None:
        threads = [threading.Thread(target=step) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def measure(how: str, seconds: float) -> None:
    """Prints the means of both, in seconds, as JSON: a limit stops few steps, for long."""
    other = os.fork() if how == "forks" else 0  # before any thread
    both = [twice(step) if how == "threads" else step for step in steps()]
    times: list[list[float]] = [[], []]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[1]) < 5:
        for step, own in zip(both, times, strict=True):
            begin = time.monotonic()
            step()
            own.append(time.monotonic() - begin)
    if how == "forks" and other == 0:
        os._exit(0)
    if other:
        os.waitpid(other, 0)
    print(json.dumps([statistics.fmean(own[1:]) for own in times]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="of each row [10]")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.seconds)
        return
    print(f"| a step of {SHAPE} beside | relpos, ms | SDPA, ms | SDPA / relpos |")
    print("|---|---|---|---|")
    for name, (how, busy, limited, threads) in SURROUNDINGS.items():
        with ExitStack() as stack:
            limit = stack.enter_context(half_a_core()) if limited else None
            if limited and limit is None:
                print(f"| {name} | this system lets nobody set such a limit | | |")
                continue
            stack.enter_context(busy_programs(busy))
            words = [sys.executable, __file__, "--measure", how, "--seconds", str(given.seconds)]
            environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
            done = subprocess.run(
                words, env=environment, preexec_fn=limit, stdout=subprocess.PIPE, check=True
            )
        ours, theirs = (1000 * float(x) for x in json.loads(done.stdout))
        print(f"| {name} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
