"""The rows of the bench that need Python: relpos against others, and relpos under PyTorch.

A case yields one row or several: where several peers meet, one for the best of them, which is the
one that counts, and one for each.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import formulas
import proof
import relpos
import torch
from clock import Budget, counted, take_turns
from formulas import Match, Shape
from peers import PEERS, TORCH, Refused, first_line
from torch import Tensor, nn
from torch.nn import functional

Row = dict[str, Any]
FULL = (1, 8, 2048, 2048, 64)
LONG = (1, 8, 4096, 4096, 64)


@dataclass
class Case:
    place: int  # in the whole table, that of `relpos bench` included
    name: str
    unit: str
    floor: float | None
    stretch: float | None
    run: Callable[["Case", Budget], list[Row]]
    better: str = "higher"
    parts: list[str] = field(default_factory=list)  # names of the rows beside its own

    def names(self) -> list[str]:
        return [self.name, *self.parts]

    def row(self, name: str | None = None, **measured: Any) -> Row:
        named = name is not None and name != self.name
        return {
            "place": self.place,
            "name": name or self.name,
            "unit": self.unit,
            "better": self.better,
            "floor": None if named else self.floor,
            "stretch": None if named else self.stretch,
            **measured,
        }


@dataclass
class Side:
    name: str
    call: Callable[[], Any]
    show: Callable[[Any], list[Tensor]]


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [b / a for a, b in zip(ours, theirs, strict=True)]


def contest(
    case: Case,
    ours: Side,
    others: list[Side],
    refused: dict[str, str],
    flops: float,
    budget: Budget,
) -> list[Row]:
    """Equal first, then turn by turn; a row for each other side and, of several, for the best."""
    mine = ours.show(ours.call())
    differences, ready = {}, []
    for side in others:
        try:
            differences[side.name] = proof.difference(mine, side.show(side.call()))
            ready.append(side)
        except Exception as error:  # whatever a peer's compiler may raise
            why = str(error) if isinstance(error, proof.Unequal) else first_line(error)
            refused[side.name] = why
    del mine
    rows, best = [], None
    if ready:
        turns = take_turns([ours.call, *(side.call for side in ready)], budget)
        times = turns.seconds
        for n, side in enumerate(ready, 1):
            values = ratios(times[0], times[n])
            row = case.row(
                f"{case.name}: {side.name}",
                values=values,
                milliseconds={"relpos": turns.median_ms(0), side.name: turns.median_ms(n)},
                note=f"differs by {differences[side.name]:.0e}",
                flops=flops,
                looks=turns.looks,
            )
            rows.append(row)
            middle = statistics.median(counted(values, turns.looks, turns.best)[0])
            if best is None or middle < best[0]:
                best = middle, row
    rows += [case.row(f"{case.name}: {name}", error=why) for name, why in refused.items()]
    if len(others) + len(refused) == 1:
        rows[0].update(name=case.name, floor=case.floor, stretch=case.stretch)
        return rows
    if best is None:
        return [case.row(error="no peer ran"), *rows]
    same = {k: best[1][k] for k in ("values", "milliseconds", "note", "flops", "looks")}
    return [case.row(**same), *rows]


def flops_of(shape: Shape, causal: bool, backward: bool) -> float:
    """Of plain attention: 4 B H Lq Lk D forward, 10 more backward, half when causal."""
    batch, heads, queries, keys, dim = shape
    return (14 if backward else 4) * batch * heads * queries * keys * dim / (2 if causal else 1)


def against_peers(build: Callable[[Shape, torch.dtype], Match], shape: Shape, names: list[str],
                  dtype: torch.dtype = torch.float32):  # fmt: skip
    """Forward, without gradients; a bias reaches the peers as a ready mask."""

    def run(case: Case, budget: Budget) -> list[Row]:
        proof.prove(build, shape)
        torch.compiler.reset()  # else the runs add up to its limit of recompilations
        torch.manual_seed(0)
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
            flops = flops_of(shape, match.causal, backward=False)
            return contest(case, ours, others, refused, flops, budget)

    return run


def against_formula(build: Callable[[Shape, torch.dtype], Match], shape: Shape, backward: bool,
                    ready_mask: bool = False):  # fmt: skip
    """The formula in eager torch. Backward: one forward and the gradients of all leaves.
    ready_mask: the mask itself is the leaf, already gathered, and its table gets no gradient."""

    def run(case: Case, budget: Budget) -> list[Row]:
        proof.prove(build, shape)
        torch.manual_seed(0)
        match = build(shape, torch.float32)
        formula, leaves = match.formula, match.leaves
        shown = slice(None)
        if ready_mask:
            q, k, v, _ = leaves
            mask = match.bias().detach().contiguous().requires_grad_()
            leaves, shown = [q, k, v, mask], slice(4)  # the mask's gradient is no table's

            def formula():
                return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        dout = torch.randn(match.leaves[0].shape)

        def steps(call, inputs):
            out = call()
            if not backward:
                return [out]
            return [out.detach(), *torch.autograd.grad(out, inputs, dout)]

        with torch.set_grad_enabled(backward):
            ours = Side("relpos", lambda: steps(match.ours, match.leaves), lambda r: r[shown])
            other = Side("torch", lambda: steps(formula, leaves), lambda r: r[shown])
            flops = flops_of(shape, match.causal, backward)
            return contest(case, ours, [other], {}, flops, budget)

    return run


def overhead(case: Case, budget: Budget) -> list[Row]:
    q, k, v = (torch.randn(1, 1, 12, 64) for _ in range(3))
    with torch.no_grad():
        turns = take_turns(
            [
                lambda: relpos.attention(q, k, v),
                lambda: functional.scaled_dot_product_attention(q, k, v),
            ],
            budget,
        )
    milliseconds = {"relpos": turns.median_ms(0), TORCH: turns.median_ms(1)}
    values = [1e6 * t for t in turns.seconds[0]]
    return [case.row(values=values, milliseconds=milliseconds, looks=turns.looks)]


def training_loop(case: Case, budget: Budget) -> list[Row]:
    """Four blocks of linear layers and attention, forward and backward, against the linear layers
    alone plus attention alone, on the same shapes and with ready gradients."""
    batch, length, heads, width, blocks = 8, 256, 8, 512, 4
    torch.manual_seed(0)
    layers = [nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(blocks)]
    positions = [relpos.T5Bias(heads) for _ in range(blocks)]
    x = torch.randn(batch, length, width, requires_grad=True)
    dout = torch.randn(batch, length, width)

    def split(y):
        return y.view(batch, length, heads, -1).transpose(1, 2)

    def projected(linears, y):
        return [split(linear(y)) for linear in linears[:3]]

    def join(y):
        return y.transpose(1, 2).reshape(batch, length, width)

    def loop():
        y = x
        for linears, position in zip(layers, positions, strict=True):
            y = linears[3](join(relpos.attention(*projected(linears, y), position=position)))
        y.backward(dout)

    qkv = [t.detach().requires_grad_() for t in projected(layers[0], x)]
    out = relpos.attention(*qkv, position=positions[0])
    dheads = split(torch.randn(batch, length, width))
    joined = out.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()

    def linear_alone():
        for linears in layers:
            torch.autograd.backward(projected(linears, x), [dheads] * 3)
            linears[3](join(joined)).backward(dout)

    def attention_alone():
        for position in positions:
            relpos.attention(*qkv, position=position).backward(dheads)

    turns = take_turns([loop, linear_alone, attention_alone], budget)
    whole, linear, attention = turns.seconds
    values = [100 * (w / (a + b) - 1) for w, a, b in zip(whole, linear, attention, strict=True)]
    names = ("loop", "linear alone", "attention alone")
    milliseconds = {name: turns.median_ms(n) for n, name in enumerate(names)}
    return [case.row(values=values, milliseconds=milliseconds, looks=turns.looks)]


ALL = list(PEERS)
FASTER = "x faster"


def peer_case(place, name, floor, stretch, run, peers=()):
    parts = [f"{name}: {peer}" for peer in peers] if len(peers) > 1 else []
    return Case(place, name, FASTER, floor, stretch, run, parts=parts)


def all_cases() -> list[Case]:
    bias, gathered = formulas.trained_bias, "torch, mask gathered from the trained table"
    ready = "torch, ready mask that needs a gradient"
    cases = [
        peer_case(11, "plain forward, L 4096, against the best peer", 1.35, 1.5,
                  against_peers(formulas.plain, LONG, ALL), ALL),
        peer_case(11, "causal forward, L 4096, against the best peer", None, None,
                  against_peers(formulas.causal, LONG, ALL), ALL),
        peer_case(12, "distance bias, forward, L 4096, against the best peer with a ready mask",
                  1.7, 1.9, against_peers(bias, LONG, ALL), ALL),
        peer_case(13, "plain, forward + backward, L 2048, against torch SDPA", None, None,
                  against_formula(formulas.plain, FULL, True)),
        peer_case(13, "causal, forward + backward, L 2048, against torch SDPA", None, None,
                  against_formula(formulas.causal, FULL, True)),
    ]  # fmt: skip
    for shape, floor, stretch in ((FULL, 4.5, 6), (LONG, 5.5, 7)):
        for side, is_ready in ((gathered, False), (ready, True)):
            name = f"trained distance bias, forward + backward, L {shape[2]}, against {side}"
            run = against_formula(bias, shape, True, is_ready)
            cases.append(peer_case(13, name, floor, stretch, run))
    notebooks = [
        ("bias RPE (32, 8, 700 x 800, 64)", formulas.bias_rpe, (32, 8, 700, 800, 64), 12, 17),
        ("Shaw gather, L 2048", formulas.shaw_gather, FULL, 8, 12),
        ("Shaw einsum, L 2048", formulas.shaw_einsum, FULL, 22, 30),
        ("Music skew, L 2048", formulas.music_skew, FULL, 8, 11),
    ]
    for name, build, shape, floor, stretch in notebooks:
        run = against_formula(build, shape, False)
        cases.append(peer_case(14, f"notebooks' code, forward: {name}", floor, stretch, run))
    short = (64, 4, 32, 32, 32)
    cases += [
        peer_case(16, "short: B 64, H 4, L 32, D 32, against torch SDPA", 2, 4,
                  against_peers(formulas.plain, short, [TORCH])),
        Case(17, "call overhead, B 1, H 1, L 12, Python without grad", "us", 20, 12, overhead,
             better="lower"),
        Case(21, "training loop of linear layers and attention", "% over its parts", 8, 3,
             training_loop, better="lower"),
    ]  # fmt: skip
    for dtype in (torch.bfloat16, torch.float16):
        name = f"{str(dtype).removeprefix('torch.')} forward, L 4096, against torch SDPA"
        run = against_peers(formulas.plain, LONG, [TORCH], dtype)
        cases.append(peer_case(18, name, 2.2, 2.6, run))
    return cases


def measure(case: Case, budget: Budget) -> list[Row]:
    """A case that fails is a row that says why."""
    try:
        return case.run(case, budget)
    except (proof.Unequal, Refused, RuntimeError, ValueError) as error:
        return [case.row(error=first_line(error))]
