"""How an attention class rotates: found on a copy, from a call that the model makes, by numbers."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf import _trial
from relpos.hf._adapter import Unfused
from relpos.hf._lazy import Mask
from relpos.hf._passes import Call
from relpos.hf._rotation import with_globals
from relpos.hf.forms.resized import resized
from relpos.hf.forms.turn import INTERFACE, Kernel, Otherwise, Turn, Turned

_TURNS = re.compile(r"rot(ary|ate|_|$)|rope", re.IGNORECASE)


class Seen:
    """In place of the registry of attention functions: remembers what reaches attention, and gives
    sums of queries, keys and values, at a cost that grows with the length alone."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor, Tensor, tuple, dict]] = []

    def get_interface(self, *_: Any) -> Callable:
        return self

    __getitem__ = get = get_interface

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any
    ) -> tuple[Tensor, None]:
        self.calls.append((query, key, value, more, named))
        groups = query.shape[1] // key.shape[1]
        out = value.repeat_interleave(groups, dim=1)
        if out.shape[2] != query.shape[2]:
            out = out.mean(2, keepdim=True).expand(-1, -1, query.shape[2], -1)
        return out.transpose(1, 2).contiguous(), None

    def whole(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all calls, one after another."""
        parts = [each[:3] for each in self.calls]
        q, k, v = (torch.cat(each, dim=2) for each in zip(*parts, strict=True))
        return q, k, v


def turn_of(module: nn.Module, calls: list[Call]) -> Turn:
    """How a module of a twin rotates, proved on calls of a model and on others of more lengths.
    Raises Unfused with attention=True where the kernel cannot."""
    own = type(module).forward
    names = own.__code__.co_names if not hasattr(own, "__wrapped__") else ()
    if INTERFACE not in names:
        _refuse("its forward does not call the attention interface by itself")
    turning = [
        name
        for name in names
        if _TURNS.search(name) and callable(own.__globals__.get(name)) and _is_function(own, name)
    ]
    if not turning:
        _refuse("its forward rotates nothing")
    usable = [call for call in calls if not _cached(call)]
    if not usable:
        _refuse("it was tried with a cache alone")
    why, found = "its rotation does not show", None
    for call in usable:
        for name in turning:
            try:
                found = _found(module, own, name, call)
                break
            except Unfused as error:
                why = str(error)
        if found is not None:
            break
    if found is None:
        _refuse(why)
    for call in usable:
        _prove(module, own, found, call)
    for call in _more(module, usable):
        try:
            _own(module, own, call)
        except Exception:  # its arguments say their number in another way
            continue
        _prove(module, own, found, call)
    return found


def _more(module: nn.Module, usable: list[Call]) -> list[Call]:
    first = usable[0]
    width = max((x.shape[-1] for x in _floats(first)), default=1)
    return resized(first, _trial.lengths(width, module, getattr(module, "config", None)))


def _floats(call: Call) -> list[Tensor]:
    every = (*call.args, *call.kwargs.values())
    return [each for each in every if isinstance(each, Tensor) and each.is_floating_point()]


def _is_function(own: Callable, name: str) -> bool:
    return hasattr(own.__globals__[name], "__code__")


def _cached(call: Call) -> bool:
    return any(hasattr(each, "get_seq_length") for each in (*call.args, *call.kwargs.values()))


def _refuse(why: str) -> None:
    raise Unfused(why, attention=True)


@dataclasses.dataclass
class _Watched:
    """The function, and what it was called with."""

    function: Callable
    calls: list[tuple[tuple, dict, Any]] = dataclasses.field(default_factory=list)

    def __call__(self, *args: Any, **named: Any) -> Any:
        out = self.function(*args, **named)
        self.calls.append((args, named, out))
        return out


def _own(module: nn.Module, own: Callable, call: Call, **replaced: Any) -> tuple[Any, Seen]:
    seen = Seen()
    out = with_globals(own, **{INTERFACE: seen}, **replaced)(module, *call.args, **call.kwargs)
    return out, seen


def _found(module: nn.Module, own: Callable, name: str, call: Call) -> Turn:
    """How the function of this name turns what reaches attention."""
    watched = _Watched(own.__globals__[name])
    _, seen = _own(module, own, call, **{name: watched})
    if not watched.calls:
        _refuse("it does not rotate")
    if not seen.calls:
        _refuse("it does not call the attention interface")
    joint = isinstance(watched.calls[0][2], (tuple, list))
    if len(watched.calls) != (1 if joint else 2):
        _refuse(f"it rotates {len(watched.calls)} times before attention")
    query, _, _ = seen.whole()
    args, named, out = watched.calls[0]
    xs = args[: 2 if joint else 1]
    outs = out if joint else (out,)
    plain = len(xs) == len(outs) and all(
        isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape
        for a, b in zip(xs, outs, strict=False)
    )
    if not plain or xs[0].dim() not in (3, 4):
        _refuse("its rotation takes other arguments than queries and keys")
    heads = _axis_of_heads(xs[0], query)
    matrix = _matrix(watched.function, xs, args[len(xs) :], named, heads)
    shape = _shape(matrix)
    turn = Turn(name, joint, heads, xs[0].dim() == 3, xs[0].shape[-1], *shape, at=0)
    for at in sorted({0, query.shape[-1] - turn.size}):
        if at >= 0:
            try:
                placed = dataclasses.replace(turn, at=at)
                _prove(module, own, placed, call)
            except Unfused as error:
                refused = error
            else:
                return placed
    raise refused


def _axis_of_heads(x: Tensor, query: Tensor) -> int:
    tokens = query.shape[2]
    axes = (0, 1) if x.dim() == 3 else (1, 2)
    at = [axis for axis in axes if x.shape[axis] == tokens]
    if len(at) != 1:
        _refuse("its tensors do not show which axis has the tokens")
    return axes[0] if at[0] == axes[1] else axes[1]


def _matrix(function: Callable, xs: tuple, others: tuple, named: dict, heads: int) -> Tensor:
    """What the function does to each dimension, [..., out, in], at some token where most turns."""
    size = xs[0].shape[-1]

    def units(x: Tensor) -> Tensor:
        shape = [1] * x.dim()
        shape[heads], shape[-1] = size, size
        wanted = list(x.shape)
        wanted[heads] = size
        return torch.eye(size).view(shape).expand(wanted).contiguous()

    try:
        out = function(*(units(x) for x in xs), *_stirred(others), **_stirred(named))
    except Exception as error:
        _refuse(f"its rotation reads how many heads there are ({type(error).__name__})")
    out = (out if isinstance(out, (tuple, list)) else (out,))[0]
    rows = out.movedim(heads, -1).flatten(0, -3)  # [tokens, out, in]
    return rows[(rows.abs() > 1e-6).sum((1, 2)).argmax()]


def _stirred(given: Any) -> Any:
    """The arguments with other angles, so that no pair stands still because its angle is small."""
    values = list(given.values() if isinstance(given, dict) else given)
    at = [n for n, x in enumerate(values) if isinstance(x, Tensor) and x.dtype.is_floating_point]
    for n, value in enumerate(values):
        if isinstance(value, Tensor) and value.is_complex():
            values[n] = torch.polar(torch.ones_like(value.abs()), 1e3 * value.angle() + 0.3)
    if len(at) >= 2 and values[at[0]].shape == values[at[1]].shape:
        angle = 1e3 * torch.atan2(values[at[1]], values[at[0]]) + 0.3
        values[at[0]], values[at[1]] = angle.cos(), angle.sin()
    return dict(zip(given, values, strict=True)) if isinstance(given, dict) else tuple(values)


def _shape(matrix: Tensor) -> tuple[str, int, int, tuple]:
    """layout, start, pairs and first of a Turn."""
    size = len(matrix)
    moves = (matrix - torch.eye(size)).abs() > 1e-6
    inside = [n for n in range(size) if bool(moves[:, n].any())]
    if len(inside) < 2:
        _refuse("its attention does not show a rotation")
    start, end = inside[0], inside[-1] + 1
    pairs, odd = divmod(end - start, 2)
    spans = [(start, pairs)] if not odd else []
    spans += [(0, size // 2)] if size % 2 == 0 else []  # some pairs may stand still
    spans += [(start - start % 2, (end + end % 2 - start + start % 2) // 2)]
    spans += [(0, n // 2) for n in (end, end + 1) if n % 2 == 0 and n <= size]
    for layout in ("half", "interleaved"):
        for first, count in spans:
            found = _members(matrix, layout, first, count)
            if found is not None:
                return layout, first, count, found
    _refuse("its rotation is none of pairs of dimensions")
    raise AssertionError


def _members(matrix: Tensor, layout: str, start: int, pairs: int) -> tuple | None:
    """Where the members of each pair are put, None if the matrix does not turn such pairs."""
    size = len(matrix)
    made = torch.zeros_like(matrix)
    one, two = [], []
    for pair in range(pairs):
        a = start + (pair if layout == "half" else 2 * pair)
        b = a + (pairs if layout == "half" else 1)
        if b >= size:
            return None
        rows = (matrix[:, [a, b]].abs() > 1e-6).any(1).nonzero().flatten().tolist()
        if len(rows) != 2:
            return None
        x, y = rows
        if not _turns(matrix, x, y, a, b):
            x, y = y, x
            if not _turns(matrix, x, y, a, b):
                return None
        one.append(x)
        two.append(y)
        made[[x, x, y, y], [a, b, a, b]] = matrix[[x, x, y, y], [a, b, a, b]]
    for n in range(size):
        if n not in (*one, *two):
            made[n, n] = 1.0
    return (tuple(one), tuple(two)) if (made - matrix).abs().max() <= 1e-5 else None


def _turns(matrix: Tensor, x: int, y: int, a: int, b: int) -> bool:
    cos, sin = matrix[x, a] - matrix[y, b], matrix[x, b] + matrix[y, a]
    return bool(torch.maximum(cos.abs(), sin.abs()) <= 1e-5)


def _prove(module: nn.Module, own: Callable, turn: Turn, call: Call) -> None:
    """Raises Unfused unless the same queries, keys, values and arguments reach attention when the
    kernel turns, and the module does the same with what attention gives."""
    theirs, reached = _own(module, own, call)
    seen = Seen()
    turned = Turned(own.__globals__[turn.name], turn)
    kernel = Kernel(turned)
    kernel.attend = _Rotated(seen, kernel)
    try:
        ours = with_globals(own, **{turn.name: turned, INTERFACE: kernel})(
            module, *call.args, **call.kwargs
        )
    except Otherwise:
        _refuse("its rotation is another one for some calls")
    if len(seen.calls) != len(reached.calls):
        _refuse("it calls the attention interface otherwise")
    for (*_, a, b), (*_, c, d) in zip(seen.calls, reached.calls, strict=True):
        if not same((a, b), (c, d)):
            _refuse("it gives attention other arguments")
    mine, other = seen.whole(), reached.whole()
    # The function may put the members of a pair elsewhere, for queries and keys alike.
    order = list(range(mine[0].shape[-1]))
    for places, members in zip(turn.first, turn.members(), strict=True):
        for place, member in zip(places, range(turn.size)[members], strict=True):
            order[turn.at + place] = turn.at + member
    for x, y, what in zip((*(z[..., order] for z in mine[:2]), mine[2]), other, "qkv", strict=True):
        error = _trial.difference(x, y) if x.shape == y.shape else float("inf")
        if not error <= 1e-4:
            which = {"q": "queries", "k": "keys", "v": "values"}[what]
            _refuse(f"its {which} go on otherwise after the rotation: they differ by {error:.0e}")
    first, second = (each[0] if isinstance(each, tuple) else each for each in (ours, theirs))
    if not _trial.difference(first, second) <= 1e-4:
        _refuse("its result differs with the rotation in the kernel")


@dataclasses.dataclass
class _Rotated:
    """Remembers queries and keys turned by the tables that the kernel gets."""

    seen: Seen
    kernel: Kernel

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *more: Any,
        relpos_rotation: Any,
        **named: Any,
    ) -> Any:
        turn, given = self.kernel.turned.turn, relpos_rotation._values()
        return self.seen(
            module,
            turned_by(query, turn, *given[:2]),
            turned_by(key, turn, *given[2:]),
            value,
            *more,
            **named,
        )


def turned_by(x: Tensor, turn: Turn, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, L, D] turned by tables [B, L, pairs]."""
    out = x.clone()
    one, two = (
        slice(each.start + turn.at, each.stop + turn.at, each.step) for each in turn.members()
    )
    a, b, cos, sin = x[..., one], x[..., two], cos[:, None], sin[:, None]
    out[..., one], out[..., two] = a * cos - b * sin, b * cos + a * sin
    return out


def same(a: Any, b: Any) -> bool:
    """Whether two arguments are equal."""
    if isinstance(a, Mask) or isinstance(b, Mask):
        return a is b
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        both = isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape
        return both and bool(torch.equal(a, b))
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a is b or a == b
