"""What a training step asks of the system: teams of threads and new pages."""

import resource
from typing import Any

import relpos
import torch
from case import NO_TARGET, Call, Case, Row
from clock import Budget
from contests import SHORT
from relpos import _core

STEPS = 50


def count(call: Call, counter: Any) -> float:
    """By how much the counter grows in a forward and a backward pass, once others have run."""

    def step() -> None:
        torch.autograd.grad(call.attend(), call.leaves, call.graph[1])

    for _ in range(10):
        step()
    before = counter()
    for _ in range(STEPS):
        step()
    return (counter() - before) / STEPS


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def cases() -> list[Case]:
    def case(end: str, unit: str, counter: Any) -> Case:
        def run(case: Case, _: Budget) -> list[Row]:
            call = Call(SHORT, relpos.T5Bias(SHORT[1]))
            return [case.row(values=[count(call, counter)], seconds={}, rates=[])]

        name = f"B 64 H 4 L 32 D 32, trained t5, forward + backward: {end}"
        return Case(name, unit, NO_TARGET, run, better="lower", environment={}, once=True)

    return [
        case("parallel regions", "a step", _core.teams_run),
        case("page faults", "a step", page_faults),
    ]
