"""Rotation in the kernel by the model's own tables, whatever the class and its layout.

A class of transformers turns queries and keys by a function of its module before it calls the
attention interface. That function is called with two heads in place of all: one that shows the
cosines and sines of each token and pair, and one with fixed numbers, which shows that they are all
it does. The kernel turns by these tables.
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

import relpos
from relpos._position.position import SchemePosition
from relpos._position.sum import Composed
from relpos.hf._interface import NAME, attention_function
from relpos.hf._rotation import with_globals

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
Tables = tuple[Tensor, Tensor]  # cosines and sines [B or 1, L, pairs]


class Otherwise(Exception):
    """The function turned in another way than when it was tried."""


@dataclass(frozen=True)
class Turn:
    """How a class turns.

    name: the global of its forward. joint: whether one call turns queries and keys. heads: the axis
    of heads in the tensors that the function gets. rows: their axes are [tokens, heads, dim] or
    [heads, tokens, dim], without a batch. size: of their last axis. layout, start, pairs: which of
    its dimensions turn. first: where the function puts the two members of each pair. at: where
    these dimensions begin in the heads that reach the interface.
    """

    name: str
    joint: bool
    heads: int
    rows: bool
    size: int
    layout: str
    start: int
    pairs: int
    first: tuple[tuple[int, ...], tuple[int, ...]]
    at: int

    def members(self) -> tuple[slice, slice]:
        """The dimensions of the first and the second members of the pairs."""
        start, end = self.start, self.start + 2 * self.pairs
        if self.layout == "half":
            middle = start + self.pairs
            return slice(start, middle), slice(middle, end)
        return slice(start, end, 2), slice(start + 1, end, 2)

    def text(self) -> str:
        part = "" if self.start == self.at == 0 else f" from dimension {self.start + self.at}"
        return f"the model's rotation of {self.pairs} pairs{part} ({self.layout}) in the kernel"


def probe(x: Tensor, turn: Turn) -> Tensor:
    """Two heads in place of those of x: ones in the first members of the pairs, fixed numbers."""
    axis = turn.heads
    fixed = torch.linspace(-1.0, 1.5, x.shape[-1], dtype=torch.float32).sin().to(x.dtype)
    unit = torch.zeros(x.shape[-1], dtype=x.dtype)
    unit[turn.members()[0]] = 1.0
    shape = [1] * x.dim()
    shape[axis], shape[-1] = 2, x.shape[-1]
    wanted = list(x.shape)
    wanted[axis] = 2
    return torch.stack([unit, fixed]).view(shape).expand(wanted).contiguous()


def read(given: Tensor, turned: Tensor, turn: Turn) -> Tables:
    """The tables in what the function gave for a probe. Raises Otherwise if it did more."""
    if turned.shape != given.shape:
        raise Otherwise
    unit, out = turned.unbind(turn.heads)
    fixed = given.select(turn.heads, 1)
    one, two = (list(each) for each in turn.first)
    cos, sin = unit[..., one], unit[..., two]
    a, b = (fixed[..., each] for each in turn.members())
    exact = torch.finfo(given.dtype).eps
    largest = (cos.abs() + sin.abs()).max().clamp(min=1e-6)
    for found, wanted in ((out[..., one], a * cos - b * sin), (out[..., two], b * cos + a * sin)):
        if not bool(((found - wanted).abs() <= 8 * exact * largest).all()):
            raise Otherwise
    still = [n for n in range(turn.size) if n not in (*one, *two)]
    if still and not bool((out[..., still] == fixed[..., still]).all()):
        raise Otherwise
    if turn.rows:
        cos, sin = cos[None], sin[None]
    exact = cos.dtype if cos.dtype == torch.float64 else torch.float32
    return cos.to(exact), sin.to(exact)


_memo: Any = WeakIdKeyDictionary()


def tables(
    function: Callable, xs: tuple[Tensor, ...], others: tuple, named: dict[str, Any], turn: Turn
) -> list[Tables]:
    """Tables of each x. All layers of a pass share the arguments, so that the answer is kept with
    the first tensor among them."""
    given = (*others, *named.values())
    held = [each for each in given if isinstance(each, Tensor)]
    if any(each.requires_grad or each.is_meta for each in held):
        raise Otherwise
    shapes = [(x.shape[: turn.heads] + x.shape[turn.heads + 1 :], x.dtype) for x in xs]
    plain = [each for each in given if not isinstance(each, Tensor)]
    versions = [None if each.is_inference() else each._version for each in held]
    asked = (turn, function, shapes, plain, list(named), versions)
    if held:
        before, refs, answer = _memo.get(held[0], (None, (), None))
        same = before == asked and len(refs) == len(held) - 1
        if same and all(ref() is each for ref, each in zip(refs, held[1:], strict=True)):
            return answer
    with torch.no_grad():
        probes = [probe(x.detach(), turn) for x in xs]
        turned = function(*probes, *others, **named)
        turned = turned if isinstance(turned, (tuple, list)) else (turned,)
        answer = [read(a, b, turn) for a, b in zip(probes, turned, strict=False)]
    if held:
        _memo[held[0]] = (asked, tuple(weakref.ref(each) for each in held[1:]), answer)
    return answer


class Turned:
    """In place of the function that turns: it leaves queries and keys, and remembers the tables."""

    def __init__(self, function: Callable, turn: Turn) -> None:
        self.function = function
        self.turn = turn
        self.found: list[Tables] = []

    def __call__(self, *args: Any, **named: Any) -> Any:
        count = 2 if self.turn.joint else 1
        xs = args[:count]
        fits = len(xs) == count and all(
            isinstance(x, Tensor) and x.shape[-1:] == (self.turn.size,) for x in xs
        )
        if not fits or len(self.found) >= 2:
            raise Otherwise
        self.found += tables(self.function, xs, args[count:], named, self.turn)
        return xs if self.turn.joint else xs[0]


class Kernel:
    """In place of the registry of attention functions: attention of relpos with the rotation. Where
    a class calls it for one sequence after another, each gets its part of the tables."""

    def __init__(self, turned: Turned, attend: Callable = attention_function) -> None:
        self.turned = turned
        self.attend = attend
        self.done = [0, 0]

    def get_interface(self, *_: Any) -> Callable:
        return self

    __getitem__ = get = get_interface

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any
    ) -> Any:
        rotation = self.rotation(query, key)
        return self.attend(module, query, key, value, *more, relpos_rotation=rotation, **named)

    def rotation(self, query: Tensor, key: Tensor) -> Composed:
        turn = self.turned.turn
        if len(self.turned.found) != 2:
            raise Otherwise
        given = []
        for which, (x, found) in enumerate(zip((query, key), self.turned.found, strict=True)):
            now = slice(self.done[which], self.done[which] + x.shape[2])
            self.done[which] = now.stop
            for table in found:
                part = table[:, now]
                if part.shape[1] != x.shape[2] or part.shape[0] not in (1, x.shape[0]):
                    raise Otherwise
                given.append(part.expand(x.shape[0], -1, -1))
        at = turn.at + turn.start
        return _rotation(query.shape[-1], turn.layout, at, 2 * turn.pairs)(*given)


@functools.cache
def _rotation(head_dim: int, layout: str, start: int, rotary_dim: int) -> SchemePosition:
    return relpos.RotaryTables(head_dim, layout=layout, start=start, rotary_dim=rotary_dim)


class FusedTurn:
    """The class's own forward, with the rotation in the kernel where there is no cache."""

    @staticmethod
    def _relpos_methods(base: type) -> dict[str, Any]:
        return {"_relpos_base": base, "_relpos_tried": staticmethod(base.forward)}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = self._relpos_tried
        if (
            torch.compiler.is_compiling()
            or self._relpos_base.forward is not own
            or self.config._attn_implementation != NAME
            or any(hasattr(each, "get_seq_length") for each in (*args, *kwargs.values()))
        ):
            return super().forward(*args, **kwargs)
        turn = self._relpos_turn
        turned = Turned(own.__globals__[turn.name], turn)
        kernel = Kernel(turned)
        try:
            return with_globals(own, **{turn.name: turned, INTERFACE: kernel})(
                self, *args, **kwargs
            )
        except Otherwise:
            return super().forward(*args, **kwargs)
