"""Trials on copies of modules, with random weights: nothing of the model changes.

A plan is applied only where the copy then gives what the module's own forward gives.
"""

import copy
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from relpos.hf import _adapter
from relpos.hf._lazy import Mask
from relpos.hf._mask import mask_function

_TOLERANCE = 1e-4  # of the largest value, in float32
_LARGE = 2**16  # elements of a weight that is drawn as a matrix of rank 1


@contextmanager
def undisturbed() -> Iterator[None]:
    """Numbers in float32 on the CPU, whatever the caller's modes; torch's generator is restored."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    # A model of meta tensors is often made under another device; the mode costs time in every call.
    elsewhere = torch.get_default_device().type != "cpu"
    try:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
            torch.random.fork_rng(devices=[]),
            torch.device("cpu") if elsewhere else nullcontext(),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)


def copied(module: nn.Module, *, children: bool = True) -> nn.Module:
    """A copy with the module's own numbers and without hooks. children: whether its submodules are
    copied, too; otherwise the copy shares them."""
    return _copied(module, {} if children else {id(each): each for each in module.children()})


def twin(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode, without hooks, with random weights in float32."""
    draw = torch.Generator().manual_seed(0)
    memo: dict[int, Any] = {}
    for held in module.parameters():
        memo[id(held)] = nn.Parameter(_random(held, draw), False) if _drawn(held) else held
    for name, held in module.named_buffers():
        if held.is_floating_point():
            memo[id(held)] = _random(held, draw) if held.is_meta else held.detach().float().clone()
        elif held.is_meta:
            memo[id(held)] = _numbers(name, held)
    found = _copied(module, memo)
    found.eval()  # not every class returns itself
    return found


def again(module: nn.Module) -> nn.Module:
    """A copy that shares the parameters of a twin."""
    return _copied(module, {id(each): each for each in module.parameters()})


def sharing(module: nn.Module, of: nn.Module) -> nn.Module:
    """A copy with the parameters and the buffers of a twin of the same module."""
    memo: dict[int, Any] = {}
    for held in (nn.Module.named_parameters, nn.Module.named_buffers):
        numbers_of = dict(held(of, remove_duplicate=False))
        for name, own in held(module, remove_duplicate=False):
            mine = numbers_of[name]
            memo[id(own)] = mine if isinstance(mine, nn.Parameter) else mine.clone()
    return _copied(module, memo).eval()


def quick(module: nn.Module) -> Any:
    """The mode in which a twin is called; with small weights there is nothing to save."""
    rank_one = any(each.stride(-1) == 0 for each in module.parameters() if each.dim())
    return _RankOne() if rank_one else nullcontext()


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    for part in module.modules():
        for name, value in vars(part).items():
            if "_hooks" in name and isinstance(value, dict):
                memo[id(value)] = type(value)()
    return copy.deepcopy(module, memo)


def _numbers(name: str, held: Tensor) -> Tensor:
    """For a buffer of meta tensors that holds whole numbers or bools: positions, else those that
    are an index of every table."""
    if held.dtype == torch.bool:
        return torch.ones(held.shape, dtype=torch.bool)
    if name.endswith("position_ids") and held.dim():
        return torch.arange(held.shape[-1], dtype=held.dtype).expand(held.shape).clone()
    return torch.zeros(held.shape, dtype=held.dtype)


def _drawn(held: Tensor) -> bool:
    return held.is_floating_point() or held.is_meta


def _random(held: Tensor, draw: torch.Generator) -> Tensor:
    *rows, last = held.shape or (1,)
    if not rows:
        return (1.0 + 0.3 * torch.randn(last, generator=draw)).view(held.shape)
    if held.numel() <= _LARGE:
        return torch.randn(*rows, last, generator=draw) * last**-0.5
    return (torch.randn(*rows, 1, generator=draw) * last**-0.5).expand(held.shape)


class _RankOne(TorchFunctionMode):
    """A weight whose columns are all equal, multiplied as a matrix of rank 1; the projection of a
    large model would take a second otherwise."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if function is nn.functional.linear and not kwargs and args[1].stride(-1) == 0:
            states, weight, *bias = args
            out = states.sum(-1, keepdim=True) * weight[:, 0]
            return out if not bias or bias[0] is None else out + bias[0]
        return function(*args, **(kwargs or {}))


def on(module: nn.Module, implementation: str) -> nn.Module:
    """The same module, its own config set to an attention implementation."""
    if hasattr(module, "config"):
        module.config._attn_implementation = implementation
    return module


def masks(
    queries: int, keys: int, function: Callable | None = None, padding: Tensor | None = None
) -> tuple[Tensor, Mask]:
    """The mask of transformers' eager attention, and the one of relpos, for the last `queries` of
    `keys` tokens. function: a mask function of transformers, else causal. padding: [B, Lk]."""
    given = (queries, keys, function, padding)
    return dense_mask(*given), lazy_mask(*given)


def dense_mask(
    queries: int, keys: int, function: Callable | None = None, padding: Tensor | None = None
) -> Tensor:
    from transformers.masking_utils import eager_mask

    return eager_mask(**_mask_arguments(queries, keys, function, padding))


def lazy_mask(
    queries: int, keys: int, function: Callable | None = None, padding: Tensor | None = None
) -> Mask:
    return mask_function(**_mask_arguments(queries, keys, function, padding))


def _mask_arguments(
    queries: int, keys: int, function: Callable | None, padding: Tensor | None
) -> dict[str, Any]:
    from transformers.masking_utils import causal_mask_function

    return {
        "batch_size": 1 if padding is None else padding.shape[0],
        "q_length": queries,
        "kv_length": keys,
        "q_offset": keys - queries,
        "mask_function": function or causal_mask_function,
        "attention_mask": padding,
    }


def padded(rows: int, length: int) -> Tensor:
    """Which tokens are no padding: bool [rows, length], some hidden on the left and in between."""
    seen = torch.ones(rows, length, dtype=torch.bool)
    seen[0, : length // 3] = False
    seen[-1, length // 2 : length // 2 + length // 5] = False
    return seen


def draw(*shape: int) -> Tensor:
    """Random numbers, the same in every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def difference(ours: Tensor, theirs: Tensor, seen: Tensor | None = None) -> float:
    """The largest difference, as a part of the largest value. seen: bool [B, L] of rows that count;
    a query that sees no key gets 0 here, and another number in eager attention."""
    error = ours - theirs
    if seen is not None:
        error = torch.where(seen[..., None], error, 0.0)
    return (error.abs().max() / theirs.abs().max()).item()


@dataclasses.dataclass(frozen=True)
class Compared:
    """The same call in two forms: keywords for the module's own forward and those for the plan's.
    seen: as for difference."""

    theirs: dict[str, Any]
    ours: dict[str, Any]
    seen: Tensor | None = None


# Of a call: how many tokens are queries, and how many tokens a cache holds before them.
SIZES = ((1, 0), (2, 0), (33, 0), (1, 18), (130, 0), (3, 33))


def sizes(module: nn.Module, owner: nn.Module) -> tuple[tuple[int, int], ...]:
    """SIZES, or the last ones for a layer like one before it."""
    return SIZES[-2:] if repeated(module, owner) else SIZES


def repeated(module: nn.Module, owner: nn.Module) -> bool:
    """Whether a module before it in its model is alike: then a short trial is enough."""
    first = next(each for each in owner.modules() if type(each) is type(module))
    return first is not module and alike(first, module)


def alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules differ in nothing but their numbers and their weights."""

    def kind(module: nn.Module) -> tuple:
        plain = {
            name: value
            for name, value in vars(module).items()
            if value is None or isinstance(value, (bool, int, float, str, tuple))
        }
        plain |= {"layer_idx": None, "training": None}
        shapes = {name: held.shape for name, held in module.named_parameters()}
        return plain, shapes, [type(part) for part in module.modules()]

    return kind(one) == kind(other)


def filled(module: nn.Module, heads: int, length: int, head_dim: int) -> Any:
    """A cache that holds `length` random tokens of the module's layer; None for none."""
    from transformers import DynamicCache

    if length == 0:
        return None
    cache = DynamicCache()
    cache.update(*draw(2, 2, heads, length, head_dim), getattr(module, "layer_idx", None) or 0)
    return cache


def prove(
    module: nn.Module,
    plan: _adapter.Plan | None,
    calls: Iterable[Compared],
    *,
    implementation: str,
    buffers: dict[str, Tensor] | None = None,
) -> None:
    """Raises Unfused, for the whole model, unless the plan's forward on `implementation` gives in
    every call what the module's own forward gives on eager attention. Without a plan it is the
    module's own forward, too. buffers: numbers that the module of meta tensors is still to get."""
    theirs = on(twin(module), "eager")
    for name, value in (buffers or {}).items():
        theirs.register_buffer(name, value)
    ours = on(again(theirs), implementation)
    if plan is not None:
        _adapter.apply(dataclasses.replace(plan, also=()), ours)
    with quick(theirs):
        errors = [
            difference(_first(ours(**call.ours)), _first(theirs(**call.theirs)), call.seen)
            for call in calls
        ]
    for error in errors:
        agree(error, "its eager one" if plan is None else plan.what, attention=False)


def _first(result: Tensor | tuple) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def agree(error: float, what: str, *, attention: bool) -> None:
    """Raises Unfused unless the error of a trial is that of rounding."""
    if not error <= _TOLERANCE:
        then = ": the model rotates" if attention else ""
        raise _adapter.Unfused(
            f"its attention on random weights differs by {error:.0e} of the largest value from "
            f"{what}{then}",
            attention=attention,
        )


def raised(error: Exception) -> str:
    """What a report says of an error in a trial."""
    text = " ".join(str(error).split())
    return f"a trial with random weights raised {type(error).__name__}: {text}"


def numbers(*holders: Any) -> list[int]:
    """Lengths at which a module may change what it does: windows, chunks and lengths of training
    that it or its config names."""
    names = (
        "sliding_window",
        "attention_chunk_size",
        "original_max_position_embeddings",
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
    )
    found = set()
    for holder in itertools.chain(holders, _rope_parameters(*holders)):
        for name in names:
            # A config that says it of each layer alone raises another error than AttributeError.
            value = (holder if isinstance(holder, dict) else vars(holder)).get(name)
            if isinstance(value, int) and value > 0:
                found.add(value)
    return sorted(found)


def _rope_parameters(*holders: Any) -> Iterator[dict]:
    for holder in holders:
        held = holder if isinstance(holder, dict) else vars(holder)
        whole = held.get("rope_parameters")
        if isinstance(whole, dict):
            yield whole
            yield from (each for each in whole.values() if isinstance(each, dict))


def lengths(width: int, *holders: Any) -> list[int]:
    """Numbers of tokens, beside a few, for a trial that costs length x width: odd and even, many,
    and more than `numbers`, as far as this takes no more than some milliseconds."""
    most = max(65, 2**18 // width)
    wanted = {1, 16, 33, 130, 513, *(number + 1 for number in numbers(*holders))}
    return sorted(length for length in wanted if length <= most)


_HEAVY = 2**22  # elements of a weight with three axes: experts are not multiplied as rank 1


def runs(model: nn.Module) -> list[Exception | None]:
    """What a model of transformers raises, as a copy with random weights, for a few tokens: with
    whatever it does about caches, and padded without a cache. Empty where it cannot be tried."""
    names = inspect.signature(model.forward).parameters
    heavy = any(each.dim() > 2 and each.numel() > _HEAVY for each in model.parameters())
    # With random weights it says of a token that it lasts for minutes.
    heavy = heavy or any("duration_predictor" in name for name, _ in model.named_modules())
    if "input_ids" not in names or heavy:
        return []
    tokens = torch.arange(3, 8).repeat(2, 1)
    given = {"input_ids": tokens}
    if "decoder_input_ids" in names:
        given["decoder_input_ids"] = tokens[:, :4]
    bare = {"attention_mask": padded(2, 5).to(torch.int64)} if "attention_mask" in names else {}
    if "use_cache" in names or any(each.kind == each.VAR_KEYWORD for each in names.values()):
        bare["use_cache"] = False
    found: list[Exception | None] = []
    try:
        tried = twin(model)
    except Exception:
        return []
    with quick(tried):
        for more in ({}, bare):
            try:
                tried(**given, **more)
                found.append(None)
            except Exception as error:
                found.append(error)
    return found
