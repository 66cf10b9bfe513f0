"""Rows of positions written in Python and of the terms that are given with a call, against plain
attention and against the dense float mask that is built elsewhere."""

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import formulas
import relpos
import torch
from case import Case, Row, Sides, Target, against_plain, compare, growth, ratio
from clock import Budget
from contests import against_formula, difference, peer_case
from formulas import FULL, Shape
from relpos import terms
from torch import Tensor, nn

ENDS = ("forward", "backward")
NARROW = (*FULL[:4], 32)
DECODED = (1, 8, 1, 32768, 64)
PAIR_REPRESENTATION = (64, 4, 384, 384, 32)
Targets = tuple[float | None, float | None]  # forward and backward, times plain


class Ready(relpos.Position):
    """A table that is there before the call: what the kernel takes beside it."""

    def __init__(self, heads: int, far: int) -> None:
        super().__init__()
        self.reach = (-far, far)
        self.table = nn.Parameter(torch.randn(heads, 2 * far + 1))

    def bias(self, distance: Tensor) -> Tensor:
        return self.table


@functools.cache
def page() -> dict[str, Any]:
    """The classes of docs/own-schemes.md, by name."""
    text = (Path(__file__).parents[1] / "docs/own-schemes.md").read_text()
    tree = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef)
    tree.body = [node for node in tree.body if isinstance(node, kept)]
    names: dict[str, Any] = {}
    exec(compile(tree, "own-schemes.md", "exec"), names)
    return names


def both_ends(
    name: str, make: Callable[[], Any], shape: Shape, targets: Targets, causal: bool
) -> list[Case]:
    label = f"{name}, causal" if causal else name
    return [
        against_plain(
            f"{label}, {end}", make, shape, (target, None),
            backward=end == "backward", is_causal=causal,
        )
        for end, target in zip(ENDS, targets, strict=True)
    ]  # fmt: skip


def position_cases() -> list[Case]:
    """Forward with the evaluation of the methods, backward with the gradients of theirs."""
    batch, heads, length, _, dim = FULL
    none = (None, None)

    def hidden() -> Tensor:
        return torch.randn(batch, heads, length, dim)

    made: tuple[tuple[str, Callable[[], Any], Targets, tuple[bool, ...]], ...] = (
        ("ready table", lambda: Ready(heads, length - 1), (1.05, 1.1), (False, True)),
        ("KERPLE", lambda: page()["KERPLE"](heads), (1.05, 1.1), (False, True)),
        ("CPB", lambda: page()["CPB"](heads), (1.06, 1.11), (False, True)),
        ("T5", lambda: page()["T5"](heads), (1.05, 1.1), (False,)),
        ("Shaw", lambda: page()["Shaw"](dim), none, (False,)),
        ("Gated", lambda: page()["Gated"](heads, dim)(hidden()), (1.06, 1.15), (False, True)),
        ("Image", lambda: page()["Image"](heads, (32, length // 32)), none, (False,)),
    )
    return [
        case
        for name, make, targets, masks in made
        for causal in masks
        for case in both_ends(f"own, {name}", make, FULL, targets, causal)
    ]


def decoding_cases() -> list[Case]:
    """One query, with its keys in groups of four heads; the tables of methods are kept."""
    heads, far = DECODED[1], DECODED[3] - 1
    made = (
        ("ready table", lambda: terms.DistanceBias(torch.randn(heads, far + 1), -far)),
        ("KERPLE", lambda: page()["KERPLE"](heads)),
        ("CPB of width 512", lambda: page()["CPB"](heads, 512)),
    )
    return [
        against_plain(
            f"own, decode, cache {DECODED[3]}, {name}", make, DECODED, (1.15, None),
            kv_heads=2, q_offset=far,
        )
        for name, make in made
    ]  # fmt: skip


def pair_cases() -> list[Case]:
    """Classes drawn at random: of a graph they are alike where tokens are near."""
    cases = []
    for count, shape, targets in (
        (32, FULL, (1.06, 1.15)),
        (256, FULL, (1.15, 1.2)),
        (32, NARROW, (1.25, 1.35)),
        (256, NARROW, (1.25, 1.35)),
    ):
        for kind in (terms.PairBias, terms.PairRows):
            make = functools.partial(pairs, kind, shape, count)
            name = f"{kind.__name__}, {count} classes, D {shape[4]}"
            cases += both_ends(name, make, shape, targets, False)
    return cases


def pairs(kind: Any, shape: Shape, count: int) -> Any:
    columns = shape[4] if kind is terms.PairRows else shape[1]
    table = torch.randn(count, columns, requires_grad=True)
    classes = torch.randint(0, count, shape[2:4]).to(torch.uint8)
    return kind(table if kind is terms.PairRows else table.mT, relpos.PairClasses(classes))


def dense_cases() -> list[Case]:
    """The same bias as a mask of floats, gathered from the table in each call."""
    name = "PairBias, 32 classes, forward + backward, L 2048, against torch, mask gathered"
    target: Target = (1.5, None)
    run = against_formula(formulas.pair_bias, FULL, True)
    return [
        peer_case(name, target, run),
        Case(f"{name}: memory", "x of ours", target, memory, environment={}, once=True),
    ]


def memory(case: Case, _: Budget) -> list[Row]:
    """Peaks of a forward and a backward pass, results among them."""
    match = formulas.pair_bias(FULL, torch.float32)
    dout = torch.randn(match.leaves[0].shape)
    kept: list[list[Tensor]] = []

    def run(call: Callable[[], Tensor]) -> None:
        out = call()
        kept.append([out.detach(), *torch.autograd.grad(out, match.leaves, dout)])

    sides = {"relpos": match.ours, "torch": match.formula}
    for call in sides.values():  # code and stacks of threads come first
        run(call)
    difference(*kept)  # all stay: the memory of what is freed would be that of the next results
    grown = {side: growth(functools.partial(run, call)) for side, call in sides.items()}
    note = ", ".join(f"{side} {1e-6 * size:.0f} MB" for side, size in grown.items())
    value = grown["torch"] / grown["relpos"]
    return [case.row(values=[value], seconds={}, rates=[], note=note)]


def shared_mask_cases() -> list[Case]:
    """A pair bias that batch rows share, with its gradient, against a mask of each row's own."""

    def sides() -> Sides:
        batch, heads, length, _, _ = PAIR_REPRESENTATION
        shared = torch.randn(1, heads, length, length)
        own = shared.repeat(batch, 1, 1, 1)
        return {"shared": trained(shared), "own masks": trained(own)}

    def trained(mask: Tensor) -> Callable[[], object]:
        leaves = [*formulas.inputs(PAIR_REPRESENTATION, torch.float32), mask.requires_grad_()]
        out = relpos.attention(*leaves[:3], attn_mask=mask)
        dout = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)

    name = "pair bias and its gradient, shared by 64 rows, [64, 4, 384, 32], backward"
    return [Case(name, "x of own masks", (1, None), compare(sides, ratio), better="lower")]


def cases() -> list[Case]:
    return [
        *position_cases(), *decoding_cases(), *pair_cases(), *dense_cases(), *shared_mask_cases(),
    ]  # fmt: skip
