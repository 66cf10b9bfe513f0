"""Rows against other libraries and against formulas in torch: proved equal, then timed in turns."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import formulas
import torch
from case import NO_TARGET, UNITS, Case, Row, Target, first_line, speedup, with_unit
from clock import Budget, Turns, counted, take_turns
from formulas import FULL, LONG, Match, Shape
from peers import PEERS, TORCH, Refused
from surroundings import busy_programs
from torch import Tensor
from torch.nn import functional

SHORT, WINDOWS = (64, 4, 32, 32, 32), (64, 4, 49, 49, 32)
Build = Callable[[Shape, torch.dtype], Match]
# Largest difference of two sides, of the largest value, by the type of the output.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Of the largest value; raises ValueError where it is more than rounding."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        apart = ((a.float() - b.float()).abs().max() / b.float().abs().max()).item()
        if not apart <= TOLERANCE[ours[0].dtype]:
            raise ValueError(f"differs by {apart:.2g} of the largest value: not timed")
        worst = max(worst, apart)
    return worst


@dataclass
class Side:
    name: str
    call: Callable[[], Any]
    show: Callable[[Any], list[Tensor]]


def contest(
    case: Case, ours: Side, others: list[Side], refused: dict[str, str], budget: Budget
) -> list[Row]:
    """A row for each other side and, of several, first one for the best."""
    mine = ours.show(ours.call())
    notes, ready = {}, []
    for side in others:
        try:
            apart = difference(mine, side.show(side.call()))
            notes[side.name] = f"differs by {apart:.0e}"
            ready.append(side)
        except Exception as error:  # whatever a peer's compiler may raise
            refused[side.name] = first_line(error)
    del mine
    rows, medians = [], []
    turns = take_turns([ours.call, *(side.call for side in ready)], budget) if ready else Turns()
    for n, side in enumerate(ready, 1):
        pair = Turns([[times[0], times[n]] for times in turns.rounds], turns.rates)
        name = f"{case.name}: {side.name}"
        sides = ["relpos", side.name]
        rows.append(case.timed(sides, pair, speedup, name=name, note=notes[side.name]))
        best_rate = budget.interference.best if budget.interference else 0.0
        medians.append(statistics.median(counted(rows[-1]["values"], turns.rates, best_rate)[0]))
    best = rows[medians.index(min(medians))] if rows else case.row(error="no peer ran")
    rows += [case.row(f"{case.name}: {name}", error=why) for name, why in refused.items()]
    if len(rows) == 1:
        return [{**rows[0], **case.row()}]
    return [{**best, **case.row()}, *rows]


def against_peers(build: Build, shape: Shape, names: list[str], dtype=torch.float32):
    """Forward, without gradients; a bias reaches the peers as a ready mask."""

    def run(case: Case, budget: Budget) -> list[Row]:
        torch.compiler.reset()  # else the runs add up to its limit of recompilations
        match = build(shape, dtype)
        q, k, v = (x.detach() for x in match.leaves[:3])
        others, refused = [], {}
        with torch.no_grad():
            bias = match.bias().contiguous() if match.bias else None
            for name in names:
                try:
                    call, show = PEERS[name](q, k, v, match.causal, bias)
                    others.append(Side(name, call, lambda result, show=show: [show(result)]))
                except Refused as error:
                    refused[name] = str(error)
            ours = Side("relpos", match.ours, lambda result: [result])
            return contest(case, ours, others, refused, budget)

    return run


def against_formula(
    build: Build, shape: Shape, backward: bool, ready_mask: bool = False, dtype=torch.float32
):
    """The formula in eager torch. Backward: one forward and the gradients of all leaves.
    ready_mask: the mask itself is the leaf, already gathered, and its table gets no gradient."""

    def run(case: Case, budget: Budget) -> list[Row]:
        match = build(shape, dtype)
        formula, leaves = match.formula, match.leaves
        shown = slice(None)
        if ready_mask:
            q, k, v, _ = leaves
            mask = match.bias().detach().contiguous().requires_grad_()
            leaves, shown = [q, k, v, mask], slice(4)  # the mask's gradient is no table's

            def formula():
                return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        dout = torch.randn(match.leaves[0].shape).to(dtype)

        def steps(call, inputs):
            out = call()
            if not backward:
                return [out]
            return [out.detach(), *torch.autograd.grad(out, inputs, dout)]

        with torch.set_grad_enabled(backward):
            ours = Side("relpos", lambda: steps(match.ours, match.leaves), lambda r: r[shown])
            other = Side("torch", lambda: steps(formula, leaves), lambda r: r[shown])
            return contest(case, ours, [other], {}, budget)

    return run


def beside(count: int, run: Callable[[Case, Budget], list[Row]]):
    """The case beside so many busy programs. Every round counts, for all are disturbed, and the
    time to wait for quiet goes into more of them."""

    def crowded(case: Case, budget: Budget) -> list[Row]:
        with busy_programs(count):
            return run(case, Budget(budget.seconds + budget.wait, wait=0))

    return crowded


def peer_case(name: str, target: Target, run: Any, peers: list[str] | None = None) -> Case:
    parts = [f"{name}: {peer}" for peer in peers or []]
    return Case(name, "x faster", target, run, parts=parts)


def cases() -> list[Case]:
    bias, every = formulas.trained_bias, list(PEERS)
    rows = [
        peer_case(name, target, against_peers(build, LONG, every), every)
        for name, target, build in (
            ("plain forward, L 4096, against the best peer", (1.35, 1.5), formulas.plain),
            ("causal forward, L 4096, against the best peer", NO_TARGET, formulas.causal),
            ("distance bias, forward, L 4096, against the best peer with a ready mask",
             (1.7, 1.9), bias),
        )
    ]  # fmt: skip
    for build in (formulas.plain, formulas.causal):
        name = f"{build.__name__}, forward + backward, L 2048, against torch SDPA"
        rows.append(peer_case(name, NO_TARGET, against_formula(build, FULL, True)))
    sides = "torch, mask gathered from the trained table", "torch, ready mask that needs a gradient"
    for shape, target in ((FULL, (4.5, 6)), (LONG, (5.5, 7))):
        for ready, side in enumerate(sides):
            name = f"trained distance bias, forward + backward, L {shape[2]}, against {side}"
            rows.append(peer_case(name, target, against_formula(bias, shape, True, bool(ready))))
    for name, build, shape, target in (
        ("bias RPE (32, 8, 700 x 800, 64)", formulas.bias_rpe, (32, 8, 700, 800, 64), (12, 17)),
        ("Shaw gather, L 2048", formulas.shaw_gather, FULL, (8, 12)),
        ("Shaw einsum, L 2048", formulas.shaw_einsum, FULL, (22, 30)),
        ("Music skew, L 2048", formulas.music_skew, FULL, (8, 11)),
    ):
        run = against_formula(build, shape, False)
        rows.append(peer_case(f"notebooks' code, forward: {name}", target, run))
    for name, backward, target in (
        ("floating mask, forward, L 2048, against torch SDPA", False, (1.3, 1.6)),
        (
            "floating mask and its gradient, forward + backward, L 2048, against torch SDPA",
            True,
            (2, 3),
        ),
    ):
        run = against_formula(formulas.masked, FULL, backward)
        rows.append(peer_case(name, target, run))
    for name, shape, forward, both in (
        ("short: B 64, H 4, L 32, D 32", SHORT, (1.1, 1.35), (1, 1.2)),
        ("short: windows of Swin, B 64, H 4, L 49, D 32", WINDOWS, (1.2, 1.4), (1.1, 1.3)),
        ("short: B 8, H 8, L 128, D 64", (8, 8, 128, 128, 64), (1.35, 1.5), (1.3, 1.5)),
        ("short: B 8, H 12, L 197, D 64", (8, 12, 197, 197, 64), (1, None), (1, None)),
    ):
        run = against_peers(formulas.plain, shape, [TORCH])
        rows.append(peer_case(f"{name}, against torch SDPA", forward, run))
        run = against_formula(formulas.plain, shape, True)
        rows.append(peer_case(f"{name}, forward + backward, against torch SDPA", both, run))
    run = against_formula(formulas.window_bias, WINDOWS, True)
    name = "short: windows of Swin, B 64, H 4, L 49, D 32, trained bias, forward + backward"
    rows.append(peer_case(f"{name}, against torch, mask gathered", NO_TARGET, run))
    run = against_formula(formulas.plain, (1, 1, 12, 12, 64), True)
    name = "call, B 1, H 1, L 12, forward + backward, Python, against torch SDPA"
    rows.append(peer_case(name, (0.4, 0.5), run))
    run = beside(2, against_formula(formulas.plain, SHORT, True))
    name = "short: B 64, H 4, L 32, D 32, forward + backward beside two busy programs"
    rows.append(peer_case(f"{name}, against torch SDPA", (0.7, 1), run))
    name = "float16 forward, L 4096, against torch SDPA"
    run = against_peers(formulas.plain, LONG, [TORCH], torch.float16)
    rows.append(peer_case(name, (2.2, 2.6), run))
    return [*rows, *unit_cases()]


def unit_cases() -> list[Case]:
    """bfloat16 in the units that multiply it."""
    half = torch.bfloat16
    forward = against_peers(formulas.plain, LONG, [TORCH], half)
    biased = against_peers(formulas.trained_bias, LONG, [TORCH], half)
    trained = against_formula(formulas.trained_bias, FULL, True, dtype=half)
    runs = (
        ("forward, L 4096, against torch SDPA", forward, (2, 2.4), (1.5, 2.5)),
        ("distance bias, forward, L 4096, against torch SDPA with a ready mask",
         biased, (2.2, 3), (2, 4)),
        ("trained distance bias, forward + backward, L 2048, against torch, mask gathered",
         trained, (5, 8), (5, 8)),
    )  # fmt: skip
    return [
        peer_case(f"{UNITS[unit]}, bfloat16, {name}", target, with_unit(unit, run))
        for name, run, *targets in runs
        for unit, target in zip(UNITS, targets, strict=True)
    ]
