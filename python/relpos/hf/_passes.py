"""Passes of a model over a few tokens, with what each of its attention modules gets and gives."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from relpos.hf import _interface
from relpos.hf._inputs import calls, methods
from relpos.hf._lazy import Mask
from relpos.hf._trial import numbers, padded, quick

_LARGE = 2**30  # parameters
_LONG = 150, 2**17  # tokens, and tokens x width, of the long pass
_OTHERS = 4  # choices of inputs, at most
Way = Callable[[nn.Module], Any]


@dataclasses.dataclass
class Call:
    """One call of a module."""

    args: tuple
    kwargs: dict[str, Any]
    out: Any = None


@dataclasses.dataclass
class Pass:
    """What happened in a pass.

    calls: of each attention module by its name. served: the modules whose attention relpos
    computed. errors: of a module, the largest difference from another pass. inside: where an
    error was raised, the innermost of the attention modules and models.
    """

    calls: dict[str, list[Call]] = dataclasses.field(default_factory=dict)
    served: set[str] = dataclasses.field(default_factory=set)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    out: Any = None
    error: Exception | None = None
    inside: str = ""


def tensors(tree: Any) -> Iterator[Tensor]:
    """The floating-point tensors in what a model returns, caches aside."""
    if isinstance(tree, Tensor):
        if tree.is_floating_point():
            yield tree
    elif isinstance(tree, dict):
        for name, each in tree.items():
            if "past" not in str(name):
                yield from tensors(each)
    elif isinstance(tree, (tuple, list)):
        for each in tree:
            yield from tensors(each)


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference of what two passes return, as a part of the largest value; infinite
    where it is of another form."""
    mine, other = list(tensors(ours)), list(tensors(theirs))
    if [each.shape for each in mine] != [each.shape for each in other]:
        return float("inf")
    found = 0.0
    for a, b in zip(mine, other, strict=True):
        fine = b.isfinite()
        if not bool(fine.any()):
            continue
        a, b = a.detach()[fine].double(), b.detach()[fine].double()
        error = (a - b).abs().max().item()
        found = max(found, error / max(b.abs().max().item(), 1e-6) if error == error else error)
        if found != found:
            return float("inf")
    return found


def seeing(call: Call, out: Tensor) -> Tensor | None:
    """Which rows of a result [B, L, ...] are of queries that see a key; None for all. Others get 0
    here, and the mean of all values in eager attention."""
    masks = (each for each in (*call.args, *call.kwargs.values()) if isinstance(each, Mask))
    mask = next(masks, None)
    if mask is None:
        return None
    sees = (mask.dense()[:, 0] == 0).any(-1)
    fits = out.dim() == 3 and sees.shape[1] == out.shape[1]
    return sees.expand(out.shape[0], -1) if fits and not bool(sees.all()) else None


def run(
    model: nn.Module, way: Way, attention: dict[str, nn.Module], follow: Pass | None = None
) -> Pass:
    """One pass of a twin. follow: another pass, whose tensors each attention module gets and whose
    results go on, so that a difference in one of them is seen in this one alone."""
    from transformers import PreTrainedModel

    made, stack, hooks = Pass(), [], []

    def enter(name: str, attends: bool, args: tuple, kwargs: dict) -> Any:
        stack.append(name)
        if not attends:
            return None
        seen = made.calls.setdefault(name, [])
        before = follow.calls.get(name, []) if follow is not None else []
        if len(seen) < len(before):
            given = before[len(seen)]
            args = tuple(map(_followed, args, (*given.args, *args)[: len(args)]))
            kwargs = {key: _followed(x, given.kwargs.get(key)) for key, x in kwargs.items()}
        seen.append(Call(args, kwargs))
        return args, kwargs

    def leave(name: str, attends: bool, out: Any) -> Any:
        stack.pop()
        if not attends:
            return None
        call = made.calls[name][-1]
        call.out = out
        before = follow.calls.get(name, []) if follow is not None else []
        if len(before) < len(made.calls[name]):
            return None
        theirs = before[len(made.calls[name]) - 1].out
        mine, other = next(tensors(out), None), next(tensors(theirs), None)
        if mine is None or other is None:
            return None
        if mine.shape != other.shape:
            made.errors[name] = float("inf")
            return None
        sees = seeing(made.calls[name][-1], other)
        error = apart(mine, other) if sees is None else apart(mine[sees], other[sees])
        made.errors[name] = max(made.errors.get(name, 0.0), error)
        return _with_first(out, other)

    by_part = {id(part): name for name, part in attention.items()}
    for name, part in model.named_modules():
        attends = id(part) in by_part
        if attends or isinstance(part, PreTrainedModel):
            hooks += [
                part.register_forward_pre_hook(
                    lambda _, args, kwargs, n=name, a=attends: enter(n, a, args, kwargs),
                    with_kwargs=True,
                ),
                part.register_forward_hook(lambda _, __, out, n=name, a=attends: leave(n, a, out)),
            ]
    try:
        with quick(model), _interface.watched(lambda: stack and made.served.add(stack[-1])):
            made.out = way(model)
    except Exception as error:
        made.error, made.inside = error, stack[-1] if stack else ""
    finally:
        for hook in hooks:
            hook.remove()
    return made


def _followed(mine: Any, theirs: Any) -> Any:
    if type(mine) is tuple and type(theirs) is tuple and len(mine) == len(theirs):
        return tuple(map(_followed, mine, theirs))
    alike = isinstance(mine, Tensor) and isinstance(theirs, Tensor) and mine.shape == theirs.shape
    return theirs if alike and mine.is_floating_point() else mine


def _with_first(out: Any, first: Tensor) -> Any:
    if isinstance(out, Tensor):
        return first
    if type(out) is tuple and isinstance(out[0], Tensor):
        return (first, *out[1:])
    return None


def ways(model: nn.Module) -> Iterator[tuple[str, Way]]:
    """Passes to be tried: a few tokens, padded and without a cache, many, and with a cache."""
    names = inspect.signature(model.forward).parameters
    given = _first_that_runs(model, 7)
    if given is None:
        return
    yield "7 tokens", lambda each: each(**given)
    more = _bare(model, given)
    if more:
        yield "7 tokens without a cache", lambda each: each(**given, **more)
    if not isinstance(given.get("input_ids"), Tensor):
        return
    width = max((p.shape[-1] for p in model.parameters() if p.dim() == 2), default=1)
    most = max(
        (n for n in numbers(model.config) if n <= _LONG[0] and n * width <= _LONG[1]), default=0
    )
    seen = padded(2, 37)
    seen[0] = True
    lengths = [(37, {"attention_mask": seen.long()}), (max(40, most + 3), {})]
    if sum(each.numel() for each in model.parameters()) > _LARGE:
        lengths = lengths[:1]
    for length, mask in lengths:
        if not mask or "attention_mask" in names:
            given_so = next(calls(model, length), {}) | mask | more
            yield f"{length} tokens", lambda each, g=given_so: each(**g)
    if "past_key_values" in names and "decoder_input_ids" not in names:
        yield "a cache", lambda each: _cached(each, given)


def more_ways(model: nn.Module) -> Iterator[tuple[str, Way]]:
    """Passes with other inputs than those of `ways`, for modules that these do not reach."""
    for method, given in more_calls(model, 7):
        what = ", ".join(name for name, each in given.items() if each is not None)
        yield what, functools.partial(called, method=method, given=given)
        more = _bare(model, given) if method == "forward" else {}
        if more:
            bare = functools.partial(called, method=method, given=given | more)
            yield f"{what} without a cache", bare


def _bare(model: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """What makes a call one without a cache; nothing where there is none or it cannot be asked."""
    names = inspect.signature(model.forward).parameters
    open_ended = any(each.kind == each.VAR_KEYWORD for each in names.values())
    caches = "input_ids" in given or hasattr(model.config.get_text_config(), "use_cache")
    bare = {"use_cache": False} if "use_cache" in names or (open_ended and caches) else {}
    return bare if bare and can_run(model, given | bare) else {}


def called(model: nn.Module, method: str, given: dict[str, Any]) -> Any:
    return (model if method == "forward" else getattr(model, method))(**given)


def more_calls(model: nn.Module, length: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls that run, after the first one: one for each other choice of inputs, and one of each
    method that runs a part. The method, and its keywords."""
    seen: set[frozenset] = set()
    for method in ("forward", *methods(model)):
        for given in calls(model, length, method):
            chosen = frozenset((method, name) for name, each in given.items() if each is not None)
            if chosen not in seen and can_run(model, given, method):
                first = not seen and method == "forward"
                seen.add(chosen)
                if not first:
                    yield method, given
                if method != "forward" or len(seen) > _OTHERS:
                    break


def _cached(model: nn.Module, given: dict[str, Any]) -> Any:
    tokens = given["input_ids"]
    first = model(**given | {"input_ids": tokens[:, :5]}, use_cache=True)
    then = model(
        **given | {"input_ids": tokens[:, 5:6]},
        past_key_values=first.past_key_values,
        use_cache=True,
    )
    return [*tensors(first), *tensors(then)]


def can_run(model: nn.Module, given: dict[str, Any], method: str = "forward") -> bool:
    """Whether a call of a model raises nothing."""
    try:
        with quick(model):
            called(model, method, given)
    except Exception:
        return False
    return True


def _first_that_runs(model: nn.Module, length: int) -> dict[str, Any] | None:
    return next((given for given in calls(model, length) if can_run(model, given)), None)
