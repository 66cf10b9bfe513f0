"""relpos.testing.check: the proof of a position of one's own, in one line of a user's test."""

import contextlib
import copy
import math
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from relpos._base.errors import kind_of, wrong_type
from relpos._call.attention import attention, workspace_bytes
from relpos._call.cache import KVCache
from relpos._call.varlen import attention_varlen
from relpos._plain import plain_attention
from relpos._position.own import Position

_EXACT = 1e-10  # in float64, of numbers near 1
Inputs = Callable[[int, int, int], Mapping[str, Tensor]]


@dataclass
class Report:
    """What was checked, and by how much the largest difference of each check was off."""

    position: str
    checks: list[tuple[str, float, float]] = field(default_factory=list)  # name, found, allowed

    def __str__(self) -> str:
        lines = [f"{self.position}: {len(self.checks)} checks passed"]
        lines += [f"  {name}: {off:.1e} (at most {most:.1e})" for name, off, most in self.checks]
        return "\n".join(lines)

    def hold(self, name: str, off: float, most: float) -> None:
        """Notes a check, and raises AssertionError where it failed."""
        if not off <= most:
            raise AssertionError(
                f"{self.position}: {name}: off by {off:.3g}, expected at most {most:.3g}"
            )
        self.checks.append((name, off, most))


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """What a function of integers returns."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Wide(TorchFunctionMode):
    """x.float() gives float64, so that functions which convert integers compute in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*args, **(kwargs or {}))


def check(
    position: Position,
    *,
    heads: int,
    head_dim: int = 16,
    inputs: Inputs | None = None,
    lengths: Sequence[tuple[int, int]] = ((33, 33), (1, 70), (37, 101)),
) -> Report:
    """Checks a position of one's own against its own functions, evaluated at every pair.

    Out and every gradient in float64 (to 1e-10) with offsets, is_causal, a window and padding; out
    in float32; torch's gradcheck; that a shift of all tokens, a cache, packed sequences and copies
    (pickle, where the class can be imported) change nothing; that each distance counts by itself;
    that memory is linear.

    Args:
      position: of a subclass of relpos.Position; it is copied.
      heads, head_dim: of the queries; keys have as many heads.
      inputs: for a position with inputs of a call: from (batch, queries, keys) to {name: tensor}.
      lengths: (queries, keys); query 0 is at keys - queries.

    Returns a report that prints what was checked. Raises AssertionError, naming what failed.
    """
    if not isinstance(position, Position):
        raise wrong_type(
            "position", "an instance of a subclass of relpos.Position", kind_of(position)
        )
    position = copy.deepcopy(position)
    report = Report(type(position).__name__)
    wide = copy.deepcopy(position).double()
    case = _Case(wide, heads, head_dim, inputs)
    if wide.grid is not None:
        lengths = [(math.prod(wide.grid),) * 2]
    torch.manual_seed(0)
    with _default(torch.float64), _Wide():
        if wide.grid is None:
            _contract(report, wide, case)
        for queries, keys in lengths:
            _pairs(report, case, queries, keys, {})
        if wide.grid is None:
            queries, keys = lengths[-1]
            padding = torch.zeros(2, keys, dtype=torch.bool)
            padding[1, keys // 2 :] = True
            _pairs(report, case, queries, keys, {"is_causal": True})
            _pairs(report, case, queries, keys, {"window": (7, 3)})
            _pairs(report, case, queries, keys, {"key_padding_mask": padding})
            _shift(report, case)
            if inputs is None:
                _cache(report, case)
                _packed(report, case)
        _gradcheck(report, case)
    with _default(torch.float32):
        if wide.grid is None:
            _memory(report, case)
        _single(report, position, case, lengths[0])
        _copies(report, position.float(), case, lengths[0])
    return report


@dataclass
class _Case:
    """A position in float64, and random tensors for it."""

    position: Position
    heads: int
    head_dim: int
    inputs: Inputs | None

    def tensors(self, batch: int, queries: int, keys: int) -> list[Tensor]:
        sizes = (queries, keys, keys)
        return [
            torch.randn(batch, self.heads, n, self.head_dim, dtype=torch.float64) for n in sizes
        ]

    def given(self, batch: int, queries: int, keys: int) -> dict[str, Tensor]:
        if self.inputs is None:
            return {}
        found = self.inputs(batch, queries, keys)
        return {name: x.double() if x.is_floating_point() else x for name, x in found.items()}

    def called(self, position: Position, given: Mapping[str, Tensor]) -> Any:
        return position(**given) if given else position

    def offset(self, queries: int, keys: int) -> dict[str, int]:
        return {} if self.position.grid is not None else {"q_offset": keys - queries}


def _largest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).detach().abs().max()) if a.numel() else 0.0


def _pairs(
    report: Report, case: _Case, queries: int, keys: int, options: Mapping[str, Any]
) -> None:
    """Out and every gradient, against the functions at every pair."""
    said = "".join(f", {name}" for name in options)
    leaves = [x.requires_grad_() for x in case.tensors(2, queries, keys)]
    given = {
        name: x.requires_grad_() if x.is_floating_point() else x
        for name, x in case.given(2, queries, keys).items()
    }
    named = {
        **dict(zip(("query", "key", "value"), leaves, strict=True)),
        **{name: x for name, x in given.items() if x.requires_grad},
        **{name: p for name, p in case.position.named_parameters() if p.requires_grad},
    }
    options = {**options, **case.offset(queries, keys)}
    out = attention(*leaves, position=case.called(case.position, given), **options)
    plain = plain_attention(*leaves, case.position, given, options)
    report.hold(f"out, {queries} x {keys}{said}", _largest(out, plain), _EXACT)
    upstream = torch.randn_like(out)
    wanted = list(named.values())
    ours, theirs = (
        torch.autograd.grad(x, wanted, upstream, allow_unused=True) for x in (out, plain)
    )
    for name, a, b in zip(named, ours, theirs, strict=True):
        a, b = (torch.zeros(()) if x is None else x for x in (a, b))
        most = _EXACT * max(1.0, float(b.abs().max()))
        report.hold(f"gradient of {name}, {queries} x {keys}{said}", _largest(a, b), most)


def _contract(report: Report, position: Position, case: _Case) -> None:
    """Each distance by itself: a part of the distances gives a part of the table."""
    given = case.given(1, 8, 8)
    for name in ("bias", "rows", "columns", "values"):
        if position.reach is not None or name not in position._methods.names:
            continue
        taken = {each: given[each] for each in position._methods.takes[name]}
        with torch.no_grad():
            whole = getattr(position, name)(torch.arange(-20, 21), **taken)
            part = getattr(position, name)(torch.arange(-3, 8), **taken)
        off = _largest(whole.narrow(1 if name == "bias" else -2, 17, 11), part)
        most = 1e-7 * max(1.0, float(part.abs().max()))
        report.hold(f"{name}: a distance alone and among others", off, most)


def _shift(report: Report, case: _Case) -> None:
    tensors, given = case.tensors(1, 9, 9), case.given(1, 9, 9)
    here, there = (
        attention(*tensors, position=case.called(case.position, given), q_offset=at, k_offset=at)
        for at in (0, 1000)
    )
    report.hold("all tokens shifted by 1000", _largest(here, there), _EXACT)


def _cache(report: Report, case: _Case) -> None:
    """Token by token, without gradients, as a model decodes."""
    query, key, value = case.tensors(2, 40, 40)
    with torch.no_grad():
        whole = attention(query, key, value, position=case.position, is_causal=True)
        cache = KVCache()
        rows = [
            cache.attend(*(x[:, :, i : i + 1] for x in (query, key, value)), position=case.position)
            for i in range(40)
        ]
    report.hold("a cache, token by token", _largest(torch.cat(rows, 2), whole), _EXACT)


def _packed(report: Report, case: _Case) -> None:
    query, key, value = (x[0].transpose(0, 1) for x in case.tensors(1, 30, 30))
    starts = torch.tensor([0, 4, 4, 17, 30])
    packed = attention_varlen(query, key, value, starts, position=case.position)
    for first, last in ((0, 4), (4, 17), (17, 30)):
        rows = (x[first:last].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        alone = attention(*rows, position=case.position)[0].transpose(0, 1)
        report.hold(
            f"packed, tokens {first} to {last}", _largest(packed[first:last], alone), _EXACT
        )


def _gradcheck(report: Report, case: _Case) -> None:
    """torch's numerical gradients of every parameter, in random directions."""
    tokens = 5 if case.position.grid is None else math.prod(case.position.grid)
    tensors, given = case.tensors(1, tokens, tokens), case.given(1, tokens, tokens)
    parameters = [p for p in case.position.parameters() if p.requires_grad]
    leaves = [x.requires_grad_() for x in tensors] + parameters

    def run(*_: Tensor) -> Tensor:
        return attention(*tensors, position=case.called(case.position, given))

    try:
        torch.autograd.gradcheck(run, leaves, fast_mode=True)
    except Exception as error:
        raise AssertionError(f"{report.position}: gradcheck: {error}") from None
    report.hold("gradcheck", 0.0, 0.0)


def _memory(report: Report, case: _Case) -> None:
    """The workspace of a long call, beside the one of a call a quarter as long."""
    found = []
    position = copy.deepcopy(case.position).float()
    for length in (1024, 4096):
        tensors = [x.float() for x in case.tensors(1, length, length)]
        given = case.inputs(1, length, length) if case.inputs else {}
        with torch.no_grad():
            found.append(workspace_bytes(*tensors, position=case.called(position, given)))
    report.hold("workspace of 4096 tokens over that of 1024", found[1] / max(found[0], 1), 5.0)


def _single(report: Report, position: Position, case: _Case, sizes: tuple[int, int]) -> None:
    """Out in float32, against float64. The bound is from docs/accuracy.md, made simpler and wider:
    (64 + n/64) 2^-24 (1 + 6 A) max |v|, A the largest magnitude of a score's parts."""
    narrow = copy.deepcopy(position).float()
    tensors = [x.float() for x in case.tensors(2, *sizes)]
    given = case.inputs(2, *sizes) if case.inputs else {}
    with torch.no_grad():
        out = attention(*tensors, position=case.called(narrow, given), **case.offset(*sizes))
        plain, magnitude = plain_attention(
            *(x.double() for x in tensors), narrow, given, case.offset(*sizes), with_magnitude=True
        )
    most = (64 + max(sizes) / 64) * 2.0**-24 * (1 + 6 * magnitude[0]) * magnitude[1]
    report.hold(f"out in float32, {sizes[0]} x {sizes[1]}", _largest(out, plain), most)


def _copies(report: Report, position: Position, case: _Case, sizes: tuple[int, int]) -> None:
    tensors = [x.float() for x in case.tensors(1, *sizes)]
    given = case.inputs(1, *sizes) if case.inputs else {}
    loaded = copy.deepcopy(position)
    loaded.load_state_dict(position.state_dict())
    copies = {"a copy with its state dict": loaded}
    if _is_importable(type(position)):
        copies["pickle"] = pickle.loads(pickle.dumps(position))
    with torch.no_grad():
        first, *others = (
            attention(*tensors, position=case.called(p, given), **case.offset(*sizes))
            for p in (position, *copies.values())
        )
    for name, other in zip(copies, others, strict=True):
        report.hold(name, _largest(first, other), 0.0)


def _is_importable(cls: type) -> bool:
    """Whether pickle can find the class: not one that a function or a notebook's cell defines."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls
