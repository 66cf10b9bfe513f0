"""The rotation of relpos that a model's is, found and tested by comparing numbers."""

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from relpos._position.classes import CLASSES
from relpos._position.part import text_of
from relpos._position.position import SchemePosition
from relpos._position.rope_config import STATIC, rotation
from relpos.hf._adapter import Unfused
from relpos.hf._trial import copied, numbers

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


def tables_of(module: nn.Module, owner: nn.Module) -> Callable:
    """A function of position_ids: the cosines and sines of the model. It calls a copy of the
    model's rotary module, since some of them keep the longest length that they have seen."""
    rotary = getattr(owner, "rotary_emb", None)
    if rotary is None or not _parameters(owner):
        raise Unfused("no rotary_emb beside its layers", attention=False)
    of_layer = () if "rope_type" in _parameters(owner) else (module.layer_type,)
    if any(buffer.is_meta for buffer in rotary.buffers()):  # its numbers are still to come
        rotary = type(rotary)(rotary.config)
    else:
        rotary = copied(rotary).float()
    return lambda position_ids: rotary(torch.zeros(1, 1, 1), position_ids, *of_layer)


def _parameters(owner: nn.Module) -> dict[str, Any]:
    return getattr(owner.config, "rope_parameters", None) or {}


def rotation_of(module: nn.Module, owner: nn.Module, rotate: Callable) -> SchemePosition:
    """The rotation of relpos with the cosines and sines that `rotate` gives. Raises Unfused if
    relpos has no such rotation."""
    parameters = _parameters(owner)
    if "rope_type" not in parameters:  # a rotation for each type of layer
        parameters = parameters[module.layer_type]
    probes = [[0, 1, 2, 3, 1000, 1001, 1002, 1003]]
    probes += [[n - 1, n, n + 1] for n in numbers(module, owner.config)[-1:]]
    tables = [(at, *rotate(at)) for at in (torch.tensor([each]) for each in probes)]
    dims = tables[0][1].shape[-1]
    head_dim = module.head_size if hasattr(module, "head_size") else module.head_dim
    for rotary_dim in (dims, 2 * dims):  # tables of each dim, or of each pair (GPT-OSS)
        try:
            name, asked = rotation(parameters, head_dim, min(rotary_dim, head_dim), "half", STATIC)
            found = CLASSES[name](**asked)
        except ValueError as error:
            raise Unfused(f"{error}: the model rotates", attention=True) from None
        if all(gives(found, *each) for each in tables):
            return found
    raise Unfused("its angles are not those of relpos.RoPE: the model rotates", attention=True)


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
