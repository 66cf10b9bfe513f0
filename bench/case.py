"""A case of the bench: sides that take turns, and the value of each round."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import formulas
import relpos
import torch
from clock import Budget, Turns, take_turns
from formulas import Shape
from relpos._position.part import flat
from relpos._position.sum import flatten, lowers

Row = dict[str, Any]
Sides = dict[str, Callable[[], Any]]
Target = tuple[float | None, float | None]  # floor and stretch
NO_TARGET = None, None
PEAK = "% of peak"
PLAIN = "x of plain"
STATUS = Path("/proc/self/status")


@dataclass
class Case:
    """Yields one row or several; a row of another name than the case's has no target."""

    name: str
    unit: str
    target: Target
    run: Callable[["Case", Budget], list[Row]]
    better: str = "higher"
    parts: list[str] = field(default_factory=list)  # names of the rows beside its own
    environment: dict[str, str] | None = None  # of the process of its own that it needs
    once: bool = False  # long, and the same every time: later runs leave it out

    def names(self) -> list[str]:
        return [self.name, *self.parts]

    def row(self, name: str | None = None, **measured: Any) -> Row:
        floor, stretch = self.target if name in (None, self.name) else NO_TARGET
        about = {"name": name or self.name, "unit": self.unit, "better": self.better}
        return {**about, "floor": floor, "stretch": stretch, **measured}

    def timed(
        self, sides: list[str], turns: Turns, value: Callable[..., float], **more: Any
    ) -> Row:
        seconds = dict(zip(sides, zip(*turns.rounds, strict=True), strict=True))
        values = [value(*times) for times in turns.rounds]
        return self.row(**more, values=values, seconds=seconds, rates=turns.rates)


def compare(make: Callable[[], Sides], value: Callable[..., float]):
    """value(seconds of each side), for each round."""

    def run(case: Case, budget: Budget) -> list[Row]:
        sides = make()
        return [case.timed(list(sides), take_turns(list(sides.values()), budget), value)]

    return run


UNITS = {"avx512_bf16": "AVX512_BF16", "amx": "AMX"}  # by target


def with_unit(target: str, run: Callable[[Case, Budget], list[Row]]):
    """The case where calls in bfloat16 multiply in this unit; elsewhere a row that says so."""

    def checked(case: Case, budget: Budget) -> list[Row]:
        if relpos.show_config()["target"] != target:
            raise ValueError(f"no {UNITS[target]} here")
        return run(case, budget)

    return checked


def ratio(ours: float, other: float) -> float:
    return ours / other


def speedup(ours: float, other: float) -> float:
    return other / ours


def tensors_of(position: Any) -> Sequence[torch.Tensor]:
    """Parameters and inputs of a position; the parameters alone of one written in Python."""
    if not lowers(position):
        return flat(position)[1]
    modules = [getattr(part, "_position", part) for part in flatten(position)]
    return [parameter for module in modules for parameter in module.parameters()]


class Call:
    """One call of relpos.attention: forward without gradients, or backward alone, which gives the
    gradients of query, key, value and the position's parameters."""

    def __init__(
        self, shape: Shape, position: Any = None, dtype=torch.float32, kv_heads=None, **options: Any
    ):
        self.qkv = formulas.inputs(shape, dtype, kv_heads)
        if kv_heads is not None:
            options["enable_gqa"] = True
        self.attend = functools.partial(relpos.attention, *self.qkv, position=position, **options)
        self.leaves = [*self.qkv, *(x for x in tensors_of(position) if x.requires_grad)]

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            return self.attend()

    @functools.cached_property
    def graph(self) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.attend()
        return out, torch.randn_like(out)

    def backward(self) -> tuple[torch.Tensor, ...]:
        out, dout = self.graph
        return torch.autograd.grad(out, self.leaves, dout, retain_graph=True)

    def side(self, backward: bool) -> Callable[[], Any]:
        return self.backward if backward else self.forward


def against_plain(
    name: str, make: Callable[[], Any], shape: Shape, target: Target, *,
    backward: bool = False, is_causal: bool = False, kv_heads: int | None = None, **options: Any,
) -> Case:  # fmt: skip
    """A call with a position and other options against the same without."""

    def sides() -> Sides:
        ours = Call(shape, make(), is_causal=is_causal, kv_heads=kv_heads, **options)
        plain = Call(shape, is_causal=is_causal, kv_heads=kv_heads)
        return {"relpos": ours.side(backward), "plain": plain.side(backward)}

    return Case(name, PLAIN, target, compare(sides, ratio), better="lower")


def growth(run: Callable[[], Any]) -> int:
    """Bytes by which resident memory grew while it ran, at its peak."""

    def resident(name: str) -> int:
        return 1024 * int(STATUS.read_text().partition(f"{name}:")[2].split()[0])

    before = resident("VmRSS")
    STATUS.with_name("clear_refs").write_text("5")  # VmHWM starts anew
    run()
    return resident("VmHWM") - before


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
