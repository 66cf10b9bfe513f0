"""The score that a score_mod gets: no number, but a record of what is done to it."""

import math
import numbers
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from relpos._base.errors import kind_of, wrong_value

FITS = "the score times a number, plus a bias, at last within c tanh(. / c) or a mask"
READS = "Python that reads an index or a tensor as a number, such as `if`"
INSTEAD = "use torch.where, and index tensors by tensors"


class Unfit(ValueError):
    """What cannot be lowered, and what would do instead."""

    def __init__(self, got: str, then: str = "") -> None:
        super().__init__(str(wrong_value("score_mod", FITS, got, then)))
        self.got, self.then = got, then


class Record(NamedTuple):
    """factor score + constant + bias, or cap tanh(of that) + after, where all of seen are True."""

    factor: Fraction = Fraction(1)
    constant: Fraction = Fraction(0)
    bias: tuple[tuple[Fraction, Tensor], ...] = ()
    cap: Fraction | None = None
    after: tuple[tuple[Fraction, Tensor], ...] = ()
    seen: tuple[Tensor, ...] = ()


class Score(Tensor):
    """Looks like a tensor of no axes to the function that gets it; has no memory."""

    record: Record

    @staticmethod
    def of(record: Record, dtype: torch.dtype, device: torch.device) -> "Score":
        made = Tensor._make_wrapper_subclass(Score, (), dtype=dtype, device=device)
        made.record = record
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name in _STRUCTURE:
            like = next(x for x in (*args, *kwargs.values()) if isinstance(x, Score))
            record = _STRUCTURE[name](*args, **kwargs)
            with torch._C.DisableTorchFunctionSubclass():
                return Score.of(record, like.dtype, like.device)
        if name in _FILLED:
            return float(_FILLED[name](*args, **kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            if name in _ASKED:
                return func(*args, **kwargs)
            if name in _CREATED:
                plain = [
                    torch.zeros((), dtype=x.dtype) if isinstance(x, Score) else x for x in args
                ]
                return func(*plain, **kwargs)
        return _refuse_function(name.strip("_"))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _refuse_function(str(func))


def _refuse_function(name: str) -> NoReturn:
    if name in ("bool", "int", "float", "index", "item", "tolist"):
        raise Unfit("a number of Python that depends on the score", "use torch.where")
    why = (
        "no term is a function of the score itself, and log(f(score)) replaces the softmax, which "
        "relpos keeps; softcap= has c tanh(score / c)"
    )
    raise Unfit(f"{name} of the score", why)


def _number(value: Any) -> Fraction | None:
    """A number of Python or NumPy, exactly; None for a tensor or what is not finite."""
    if isinstance(value, Tensor) or not isinstance(value, numbers.Real):
        return None
    return Fraction(float(value)) if math.isfinite(value) else None


def _plus(record: Record, other: Any, by: Fraction, dtype: torch.dtype) -> Record:
    """The record with by times another number added; dtype: of the score."""
    if isinstance(other, Score):
        raise Unfit("the score combined with itself")
    number = _number(other)
    if record.cap is not None:
        other = torch.full((), float(number), dtype=dtype) if number is not None else other
        return record._replace(after=(*record.after, (by, _tensor(other))))
    if number is not None:
        return record._replace(constant=record.constant + by * number)
    return record._replace(bias=(*record.bias, (by, _tensor(other))))


def _tensor(value: Any) -> Tensor:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise Unfit(READS, INSTEAD)
    if not isinstance(value, Tensor):
        raise Unfit(f"the score plus {value!r}", "a number that is finite, or a tensor")
    if value.dim():
        raise Unfit(f"the score plus a tensor of shape {list(value.shape)}", "give one number")
    return value


def _times(record: Record, other: Any, inverse: bool = False) -> Record:
    if isinstance(other, Score):
        raise Unfit("the score combined with itself")
    number = _number(other)
    if number is None:
        then = (
            "a factor of heads or queries is the query's: multiply query by it before the call; "
            "write a constant as a number of Python"
        )
        raise Unfit(
            "the score times a tensor" if isinstance(other, Tensor) else kind_of(other), then
        )
    if number == 0:
        raise Unfit("the score times or by 0")
    number = 1 / number if inverse else number
    if number < 0 and record.seen:
        raise Unfit("a negative factor after a mask", "mask last")
    if record.cap is not None:
        return record._replace(cap=record.cap * number, after=_scaled(record.after, number))
    return record._replace(
        factor=record.factor * number,
        constant=record.constant * number,
        bias=_scaled(record.bias, number),
    )


def _scaled(pieces: Any, by: Fraction) -> tuple[tuple[Fraction, Tensor], ...]:
    return tuple((factor * by, tensor) for factor, tensor in pieces)


def _add(a: Any, b: Any, *, alpha: Any = 1, sign: int = 1) -> Record:
    by = _number(alpha)
    if by is None:
        raise Unfit("a tensor as alpha")
    if isinstance(a, Score):
        return _plus(a.record, b, sign * by, a.dtype)
    return _plus(_times(b.record, float(sign * by)), a, Fraction(1), b.dtype)


def _divide(a: Any, b: Any, *, rounding_mode: Any = None) -> Record:
    if rounding_mode is not None or not isinstance(a, Score):
        _refuse_function("a quotient with rounding" if rounding_mode else "the inverse")
    return _times(a.record, b, inverse=True)


def _multiply(a: Any, b: Any) -> Record:
    return _times(a.record, b) if isinstance(a, Score) else _times(b.record, a)


def _tanh(score: Score) -> Record:
    if score.record.cap is not None:
        raise Unfit("a softcap of a softcap")
    if score.record.seen:
        raise Unfit("a mask before a softcap", "mask last")
    return score.record._replace(cap=Fraction(1))


def _where(*given: Any, **named: Any) -> Record:
    names = ["condition", "input", "other"]
    if given and isinstance(given[0], Score):  # the method, score.where(condition, other)
        names = ["input", "condition", "other"]
    parts = {**dict(zip(names, given, strict=False)), **named}
    parts.setdefault("input", parts.get("self"))  # as torch calls a number
    condition, taken, other = parts["condition"], parts["input"], parts["other"]
    if isinstance(taken, Score) and isinstance(other, Score):
        return _either(condition, taken.record, other.record, taken.dtype)
    score, value = (taken, other) if isinstance(taken, Score) else (other, taken)
    condition = condition if isinstance(taken, Score) else torch.logical_not(condition)
    return _hidden(score.record, condition, value)


def _hidden(record: Record, condition: Tensor, value: Any) -> Record:
    """The record where the condition is True, else the value, which must hide the pair."""
    if isinstance(value, Tensor) or float(value) != -math.inf:
        got = "a tensor" if isinstance(value, Tensor) else repr(value)
        raise Unfit(f"{got} in place of the score", 'give float("-inf"), which hides the pair')
    return record._replace(seen=(*record.seen, condition))


def _either(condition: Tensor, a: Record, b: Record, dtype: torch.dtype) -> Record:
    """One of two records that differ in what was added or seen last; dtype: of the score."""
    capped = a.cap is not None
    if (a.factor, a.cap) != (b.factor, b.cap) or (
        capped and (a.constant != b.constant or not _same(a.bias, b.bias))
    ):
        raise Unfit("torch.where of two scores with other factors or caps")
    added = "after" if capped else "bias"
    common, rest_a, rest_b = _split(getattr(a, added), getattr(b, added))
    if rest_a or rest_b or a.constant != b.constant:
        totals = [
            sum(
                (float(by) * tensor for by, tensor in rest),
                torch.full((), float(record.constant - a.constant), dtype=dtype),
            )
            for rest, record in ((rest_a, a), (rest_b, b))
        ]
        common += ((Fraction(1), torch.where(condition, *totals)),)
    seen, rest_a, rest_b = _split(a.seen, b.seen)
    if rest_a or rest_b:
        both = [_all(condition, rest) for rest in (rest_a, rest_b)]
        seen += (torch.where(condition, *both),)
    return a._replace(**{added: common, "seen": seen})


def _split(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """What both begin with, and the rest of each."""
    count = 0
    while count < min(len(a), len(b)) and _same(a[count : count + 1], b[count : count + 1]):
        count += 1
    return a[:count], a[count:], b[count:]


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    def alike(x: Any, y: Any) -> bool:
        return x is y or (isinstance(x, tuple) and x[0] == y[0] and x[1] is y[1])

    return len(a) == len(b) and all(map(alike, a, b))


def _all(like: Tensor, conditions: tuple[Tensor, ...]) -> Tensor:
    found = torch.ones_like(like, dtype=torch.bool)
    for each in conditions:
        found = found & each
    return found


def _kept(score: Score, *_: Any, **__: Any) -> Record:
    return score.record


# What is done to the score, by the names of torch's functions and methods.
_STRUCTURE: dict[str, Callable[..., Record]] = {
    **dict.fromkeys(("add", "__add__", "__radd__", "__iadd__"), _add),
    **dict.fromkeys(
        ("sub", "subtract", "__sub__", "__isub__"), lambda a, b, **k: _add(a, b, sign=-1, **k)
    ),
    **dict.fromkeys(
        ("__rsub__", "rsub"), lambda a, b: _plus(_times(a.record, -1), b, Fraction(1), a.dtype)
    ),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__", "__imul__"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__", "__itruediv__"), _divide),
    **dict.fromkeys(("neg", "negative", "__neg__"), lambda a: _times(a.record, -1)),
    "tanh": _tanh,
    "where": _where,
    "masked_fill": lambda score, mask, value: _hidden(score.record, torch.logical_not(mask), value),
    **dict.fromkeys(
        ("to", "float", "double", "type_as", "clone", "contiguous", "positive", "__pos__"), _kept
    ),
}
# What is asked about it.
_ASKED = {"__get__", "dim", "size", "numel", "is_floating_point", "is_complex", "get_device"}
# Tensors that are made like it, and numbers that fill one, with what they are filled with.
_CREATED = {"zeros_like", "ones_like", "new_zeros", "new_ones", "new_tensor"}
_FILLED = {
    "full_like": lambda score, fill_value, **_: fill_value,
    "new_full": lambda score, size, fill_value, **_: fill_value,
}
