"""Attention on many ranks of this machine: bytes sent, time waited, and the model of the time.

`python bench/ring.py` measures a kernel rate and a link rate here, predicts from them what 1, 2 and
4 ranks take, measures that, and says what the model says of more. docs/distributed.md explains it.
"""

import argparse
import datetime
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import relpos
import torch
import torch.distributed as dist
from case import Case, Row
from clock import Budget
from relpos import distributed

BYTES = 4  # of a float32
BACKWARD = 2.5  # products of a backward pass, in those of a forward pass
TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True)
class Work:
    """One causal call with as many key heads as heads, cut zigzag, with a trained distance bias."""

    length: int = 8192
    heads: int = 8
    dim: int = 64

    def products(self) -> float:
        """Multiply-adds of a forward pass."""
        return self.heads * self.length**2 / 2 * 2 * self.dim

    def block_bytes(self, ranks: int) -> float:
        """Of the keys and values of one rank."""
        return 2 * self.heads * self.length / ranks * self.dim * BYTES


class Machine(NamedTuple):
    products_per_second: float  # of a core
    bytes_per_second: float  # of a rank, each way, while others send, too
    cores: float  # shared by all ranks; infinite where each rank has a machine


class Pass(NamedTuple):
    seconds: float
    sent_bytes: float
    waited_seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads of a rank, those that send among them


def predicted(work: Work, ranks: int, machine: Machine) -> tuple[Pass, Pass]:
    """The slowest rank's forward and backward pass, and what each rank sends."""
    rate = machine.products_per_second * min(1.0, machine.cores / ranks)
    found = []
    for products, sends in ((1.0, 1), (BACKWARD, 2)):
        compute = products * work.products() / ranks**2 / rate
        send = sends * work.block_bytes(ranks) / machine.bytes_per_second if ranks > 1 else 0.0
        sent = sends * (ranks - 1) * work.block_bytes(ranks)
        alone = ranks * compute * min(1.0, machine.cores / ranks)
        found.append(Pass(ranks * max(compute, send), sent, cpu_seconds=alone))
    return found[0], found[1]


def timed(run: Callable[[], Any]) -> tuple[Pass, Any]:
    before = distributed.traffic()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    result = run()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    after = distributed.traffic()
    sent = after.sent_bytes - before.sent_bytes
    return Pass(seconds, sent, after.waited_seconds - before.waited_seconds, cpu), result


def ring_passes(work: Work) -> tuple[Pass, Pass]:
    """Forward and backward on this rank."""
    ranks = dist.get_world_size()
    own = work.length // ranks
    shape = (1, work.heads, own, work.dim)
    leaves = [torch.randn(shape).requires_grad_() for _ in range(3)]
    dout = torch.randn(shape)
    position = relpos.T5Bias(work.heads, bidirectional=False)
    options = {"layout": "zigzag", "is_causal": True, "position": position}
    dist.barrier()
    forward, out = timed(lambda: distributed.ring_attention(*leaves, **options))
    dist.barrier()
    backward, _ = timed(lambda: out.backward(dout))
    return forward, backward


def link_rate(work: Work) -> float:
    """Bytes a second that each rank sends to the next while it receives as many."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = torch.randn(int(work.block_bytes(ranks)) // BYTES)
    arriving = torch.empty_like(tensor)
    dist.barrier()
    begin = time.perf_counter()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks),
        ]
    )
    for one in works:
        one.wait()
    return tensor.nbytes / (time.perf_counter() - begin)


def kernel_rate(work: Work) -> float:
    """Multiply-adds a CPU second of one thread, in a forward pass over a quarter of the tokens."""
    length = work.length // 4
    q, k, v = (torch.randn(1, work.heads, length, work.dim) for _ in range(3))
    position = relpos.T5Bias(work.heads)
    with torch.no_grad():
        relpos.attention(q, k, v, position=position)
        begin = time.process_time()
        relpos.attention(q, k, v, position=position)
    return work.heads * length**2 * 2 * work.dim / (time.process_time() - begin)


def on_rank(
    rank: int, ranks: int, store: str, run: Callable[[Work], Any], work: Work, rounds: int
) -> list[Any]:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    try:
        return [run(work) for _ in range(rounds + 1)][1:]  # the first connects the ranks
    finally:
        dist.destroy_process_group()


def on_ranks(ranks: int, run: Callable[[Work], Any], work: Work, rounds: int) -> list[list[Any]]:
    """[round][rank] of what `run` returns on processes of one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(ranks, spawn) as pool:
            store = os.path.join(folder, "store")
            started = [
                pool.submit(on_rank, rank, ranks, store, run, work, rounds) for rank in range(ranks)
            ]
            return list(zip(*(one.result() for one in started), strict=True))


def slowest(of_ranks: list[tuple[Pass, Pass]], n: int) -> Pass:
    return max((passes[n] for passes in of_ranks), key=lambda one: one.seconds)


def cases() -> list[Case]:
    """Two ranks: how much of the time they wait, and what they send against the formula."""
    name = "ring of 2 ranks, t5, causal, L 8192, forward + backward"
    sent = f"{name}: sent"

    def run(case: Case, _: Budget) -> list[Row]:
        work, ranks = Work(), 2
        expected = sum(one.sent_bytes for one in predicted(work, ranks, Machine(1, 1, 1)))
        waits, volumes, seconds = [], [], []
        for of_ranks in on_ranks(ranks, ring_passes, work, 3):
            worst = max(of_ranks, key=lambda passes: sum(one.seconds for one in passes))
            seconds.append(sum(one.seconds for one in worst))
            waits.append(100 * sum(one.waited_seconds for one in worst) / seconds[-1])
            volumes.append(sum(one.sent_bytes for one in worst) / expected)
        plain: dict[str, Any] = {"rates": [], "seconds": {"a rank": seconds}}
        note = f"{1e-6 * expected:.1f} MB by 2 (n - 1)/n of K and V, twice that backward"
        unit = {"unit": "x of the formula"}
        return [
            case.row(values=waits, **plain),
            case.row(sent, values=volumes, rates=[], seconds={}, note=note, **unit),
        ]

    return [
        Case(name, "% of the time waited", (10, 3), run, better="lower", parts=[sent],
             environment={}, once=True),
    ]  # fmt: skip


def show(ranks: int, work: Work, machine: Machine, rounds: int) -> None:
    """A line of the table."""
    model = predicted(work, ranks, machine)
    cells = [str(ranks)]
    found = on_ranks(ranks, ring_passes, work, rounds)
    for n in range(2):
        took = [slowest(of_ranks, n) for of_ranks in found]
        seconds = statistics.median(one.seconds for one in took)
        waited = statistics.median(one.waited_seconds / one.seconds for one in took)
        cpu = statistics.median(one.cpu_seconds for one in took)
        cells += [f"{model[n].seconds:.2f}", f"{seconds:.2f}", f"{100 * waited:.0f} %"]
        cells += [f"{model[n].cpu_seconds:.2f}", f"{cpu:.2f}"]
        cells += [f"{took[0].sent_bytes / 1e6:.1f}", f"{model[n].sent_bytes / 1e6:.1f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    work = Work(options.length)
    rounds = options.rounds
    kernel = statistics.median(rate for (rate,) in on_ranks(1, kernel_rate, work, rounds))
    link = statistics.median(min(rates) for rates in on_ranks(2, link_rate, work, rounds))
    machine = Machine(kernel, link, len(os.sched_getaffinity(0)))
    print(f"{work}: {kernel:.3g} multiply-adds/s a core, {link:.3g} bytes/s, {machine.cores} cores")
    heads = ["predicted s", "measured s", "waited", "predicted CPU s", "CPU s of a rank"]
    heads += ["sent MB", "formula MB"]
    names = ["ranks", *(f"forward, {h}" for h in heads), *(f"backward, {h}" for h in heads)]
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
    for ranks in (1, 2, 4):
        show(ranks, work, machine, rounds)
    for ranks, length, bytes_per_second in ((64, 1_000_000, 1.2e10), (64, 1_000_000, 1.2e9)):
        far = Machine(kernel, bytes_per_second, float("inf"))
        forward, backward = predicted(Work(length, 32, 128), ranks, far)
        print(
            f"{ranks} ranks of one core, {length} tokens, 32 heads of 128, "
            f"{bytes_per_second:.2g} bytes/s: {forward.seconds:.1f} s forward, "
            f"{backward.seconds:.1f} s backward, {forward.sent_bytes / 1e9:.1f} GB sent by each"
        )


if __name__ == "__main__":
    main()
