"""An attention module alone, on eager attention and on relpos, for other numbers of tokens."""

import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from relpos.hf import _trial
from relpos.hf._lazy import Mask, mapped
from relpos.hf._passes import Call, apart, tensors
from relpos.hf.forms.resized import length_of, resized

_LENGTHS = (1, 2, 6, 33, 35, 130)
_CACHES = ("past_key_values", "past_key_value", "layer_past")


def replayed(theirs: nn.Module, ours: nn.Module, call: Call, served: Call) -> None:
    """Raises Unfused, attention=False, where a module on relpos gives another result than on eager
    attention. call, served: the same call in a pass of either."""
    length = length_of(call)
    if length is None:
        return
    masked = _with_masks(served, length)
    for made in _pairs(masked):
        try:
            expected = theirs(*made[0].args, **made[0].kwargs)
        except Exception:  # a call of this length is none that a model makes
            continue
        error = apart(_first(ours(*made[1].args, **made[1].kwargs)), _first(expected))
        _trial.agree(error, "its eager one", attention=False)
    _in_pieces(theirs, ours, masked)


def _first(out: Any) -> Tensor | None:
    return next(tensors(out), None)


class _Place:
    """Where a mask made by relpos stands among the arguments."""

    def __init__(self, function: Any) -> None:
        self.function = function


def _with_masks(served: Call, length: int) -> Call:
    """The call with a place for each mask of its length."""
    from transformers import masking_utils

    def place(leaf: Any) -> Any:
        if isinstance(leaf, Mask) and (leaf.q_length, leaf.kv_length) == (length, length):
            both = leaf.key_range is None
            return _Place(
                masking_utils.bidirectional_mask_function
                if both
                else masking_utils.causal_mask_function
            )
        return leaf

    args, kwargs = (mapped(place, each) for each in (served.args, served.kwargs))
    return Call(args, kwargs)


def _filled(call: Call, queries: int, keys: int, lazy: bool) -> Call:
    make = _trial.lazy_mask if lazy else _trial.dense_mask

    def fill(leaf: Any) -> Any:
        return make(queries, keys, leaf.function) if isinstance(leaf, _Place) else leaf

    return Call(*(mapped(fill, each) for each in (call.args, call.kwargs)))


def _pairs(masked: Call) -> Iterator[tuple[Call, Call]]:
    """The call of other lengths, with transformers' masks and with those of relpos."""
    for made, size in zip(resized(_bare(masked), _LENGTHS), _LENGTHS, strict=False):
        yield _filled(made, size, size, False), _filled(made, size, size, True)


def _bare(call: Call) -> Call:
    """Without caches."""

    def drop(leaf: Any) -> Any:
        return None if hasattr(leaf, "get_seq_length") else leaf

    return Call(*(mapped(drop, each) for each in (call.args, call.kwargs)))


def _in_pieces(theirs: nn.Module, ours: nn.Module, masked: Call) -> None:
    """With a cache: many tokens, then one, then three."""
    from transformers import DynamicCache

    names = inspect.signature(type(theirs).forward).parameters
    cache = next((name for name in _CACHES if name in names), None)
    places = [x for x in (*masked.args, *masked.kwargs.values()) if isinstance(x, _Place)]
    if cache is None or cache not in masked.kwargs or not places:
        return
    pieces = resized(_bare(masked), (18, 1, 3))
    caches, keys = (DynamicCache(), DynamicCache()), 0
    for piece, queries in zip(pieces, (18, 1, 3), strict=False):
        keys += queries
        outs = []
        for module, lazy, held in ((theirs, False, caches[0]), (ours, True, caches[1])):
            made = _filled(piece, queries, keys, lazy)
            made.kwargs[cache] = held
            try:
                outs.append(_first(module(*made.args, **made.kwargs)))
            except Exception:
                if not lazy:
                    return
                raise
        _trial.agree(apart(outs[1], outs[0]), "its eager one", attention=False)
