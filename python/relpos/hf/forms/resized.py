"""The same call of a module with another number of tokens."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from relpos.hf._lazy import mapped
from relpos.hf._passes import Call


def length_of(call: Call) -> int | None:
    """How many tokens a call has: the second axis of its first states [B, L, width]."""
    states = next(filter(_states, (*call.args, *call.kwargs.values())), None)
    return None if states is None or states.dim() != 3 else states.shape[1]


def resized(call: Call, lengths: Iterable[int]) -> list[Call]:
    """The call with its tokens repeated or left out; none where it also says their number."""
    old = length_of(call)
    every = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, Tensor)]
    says = any(not each.is_floating_point() and old in each.flatten().tolist() for each in every)
    if old is None or old < 3 or (says and any(each.dtype == torch.int32 for each in every)):
        return []
    return [_sized(call, old, length) for length in lengths]


def _sized(call: Call, old: int, length: int) -> Call:
    at = torch.arange(length) % old
    shape = next(filter(_states, (*call.args, *call.kwargs.values()))).shape
    draw = torch.Generator().manual_seed(length)

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        axes = [axis for axis, size in enumerate(leaf.shape) if size == old]
        if leaf.shape == shape:  # states, whose width may be as their length
            axes = [1]
        for axis in reversed(axes):  # the last first: of a mask all other rows are copied whole
            leaf = leaf.index_select(axis, at)
        return leaf

    args, kwargs = (mapped(change, each) for each in (call.args, call.kwargs))
    first = next(n for n, x in enumerate((*args, *kwargs.values())) if _states(x))
    if first < len(args):
        args = (*args[:first], _drawn(args[first], draw), *args[first + 1 :])
    else:
        name = list(kwargs)[first - len(args)]
        kwargs = kwargs | {name: _drawn(kwargs[name], draw)}
    return Call(args, kwargs)


def _states(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _drawn(states: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(states.shape, generator=draw)
