"""Whether relpos rotates as a model does: tested by comparing numbers."""

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from relpos._position.part import text_of
from relpos._position.position import SchemePosition

ROTATE = "apply_rotary_pos_emb"


def gives(rotation: SchemePosition, position_ids: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the kernel's rotation at position_ids [B or 1, L] has the model's own cosines and
    sines [B or 1, L, rotary_dim or half of it].

    All layers of a forward pass share these tables, so the answer is stored with them. It is False
    while tracing and for meta tensors, where code cannot branch on numbers.
    """
    if torch.compiler.is_compiling() or cos.is_meta:
        return False
    tensors = (cos, sin, position_ids)
    versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]
    text, seen, refs, answer = _answers.get(cos, ("", [], (), False))
    same = (text, seen) == (text_of(rotation), versions)
    if same and all(ref() is now for ref, now in zip(refs, tensors[1:], strict=True)):
        return answer
    answer = _gives(rotation, *tensors)
    refs = tuple(weakref.ref(tensor) for tensor in tensors[1:])
    _answers[cos] = (text_of(rotation), versions, refs, answer)
    return answer


_answers: Any = WeakIdKeyDictionary()


@torch.no_grad()
def _gives(rotation: Any, cos: Tensor, sin: Tensor, position_ids: Tensor) -> bool:
    pairs = rotation.rotary_dim // 2
    if cos.shape != sin.shape or cos.shape[-1] % pairs or cos.shape[:-1] != position_ids.shape:
        return False
    positions = position_ids.flatten().to(torch.int64)
    first = torch.zeros(rotation.head_dim)  # every pair at angle 0
    half = rotation.layout == "half"
    turning = first[:pairs] if half else first[: 2 * pairs : 2]
    turning.fill_(1.0)
    turned = rotation.rotate(first.repeat(1, 1, len(positions), 1), positions=positions)[0, 0]
    turned = turned[:, : 2 * pairs].unflatten(-1, (2, pairs) if half else (pairs, 2))
    ours = turned.unbind(1 if half else 2)
    # A frequency may be off by an ulp or two; the angle's error is that times the position.
    rates = rotation.base ** -(torch.arange(pairs) / pairs)
    exact = 0.0 if cos.dtype in (torch.float32, torch.float64) else torch.finfo(cos.dtype).eps
    allowed = 1e-5 + exact + 2.0**-22 * positions.abs()[:, None] * rates
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        theirs = theirs.detach().flatten(0, -2).unflatten(-1, (-1, pairs))
        if not bool(((theirs.float() - mine[:, None]).abs() <= allowed[:, None]).all()):
            return False
    return True


def with_globals(function: Any, **replaced: Any) -> Callable:
    """The function with some of its globals replaced."""
    made = types.FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
