"""Whether relpos rotates as a model does: tested by comparing numbers, not by names of classes."""

import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from relpos._position import SchemePosition
from relpos.hf._adapter import Unfused
from relpos.hf._interface import attention_function
from relpos.hf._mask import mask_function

ROTATE = "apply_rotary_pos_emb"
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_POSITIONS = (3, 4, 6, 9, 15, 20)


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
    same = (text, seen) == (rotation._text, versions)
    if same and all(ref() is now for ref, now in zip(refs, tensors[1:], strict=True)):
        return answer
    answer = _gives(rotation, *tensors)
    refs = tuple(weakref.ref(tensor) for tensor in tensors[1:])
    _answers[cos] = (rotation._text, versions, refs, answer)
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


def unrotated(forward: Callable, **others: Any) -> Callable:
    """The forward with an apply_rotary_pos_emb that does nothing."""
    return with_globals(forward, **{ROTATE: _leave}, **others)


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


def _leave(query: Tensor, key: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return query, key


def prove(module: nn.Module, rotation: SchemePosition, rotate: Callable) -> None:
    """Raises Unfused unless the module's forward, with random weights, gives the same result when
    the kernel rotates instead of the module's apply_rotary_pos_emb.

    rotate(position_ids) returns the model's own cosines and sines.
    """
    own = type(module).forward
    if hasattr(own, "__wrapped__") or not {ROTATE, _INTERFACE} <= {*own.__code__.co_names}:
        raise Unfused(
            f"its forward does not call {ROTATE} and the attention interface: the model rotates",
            attention=True,
        )
    try:
        theirs, fused, without = _forwards(module, own, rotation, rotate)
    except Exception as error:
        raise Unfused(
            f"its attention could not be tried with the rotation in the kernel "
            f"({type(error).__name__}: {error}): the model rotates",
            attention=True,
        ) from error
    largest = theirs.abs().max().item()
    error, effect = ((out - theirs).abs().max().item() / largest for out in (fused, without))
    if not (error <= 1e-4 and effect >= 1e-2):
        raise Unfused(
            f"its attention on random weights differs by {error:.0e} of the largest value from "
            f"{rotation._text} in the kernel: the model rotates",
            attention=True,
        )


@torch.no_grad()
def _forwards(
    module: nn.Module, own: Callable, rotation: SchemePosition, rotate: Callable
) -> list[Tensor]:
    """The output as the module is, with the rotation in the kernel, and without any rotation."""
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(1, len(_POSITIONS), module.config.hidden_size, generator=draw)
    position_ids = torch.tensor([_POSITIONS])
    given = {
        "position_embeddings": rotate(position_ids),
        "attention_mask": mask_function(1, states.shape[1], states.shape[1]),
        "position_ids": position_ids,
    }
    weights = {f"module.{name}": value for name, value in _random(module, draw)}
    plain, kernel = _Interface(_plain), _Interface(attention_function)
    ways = (
        (with_globals(own, **{_INTERFACE: plain}), {}),
        (unrotated(own, **{_INTERFACE: kernel}), {"relpos_rotation": rotation}),
        (unrotated(own, **{_INTERFACE: plain}), {}),
    )
    with _evaluating(module), _RankOne():
        outs = [
            torch.func.functional_call(_Trial(module), weights, (way, states), {**given, **more})
            for way, more in ways
        ]
    if (plain.calls, kernel.calls) != (2, 1):
        raise RuntimeError("its forward does not call the attention interface once")
    return [out[0] for out in outs]


class _Trial(nn.Module):
    """Calls another forward of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, way: Callable, *args: Any, **kwargs: Any) -> Any:
        return way(self.module, *args, **kwargs)


class _RankOne(TorchFunctionMode):
    """A weight whose columns are all equal, multiplied as a matrix of rank 1; the projection of a
    large model would take a second otherwise."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if function is nn.functional.linear and not kwargs and args[1].stride(-1) == 0:
            states, weight, *bias = args
            out = states.sum(-1, keepdim=True) * weight[:, 0]
            return out if not bias or bias[0] is None else out + bias[0]
        return function(*args, **(kwargs or {}))


class _Interface:
    """Replaces the registry of attention functions: it returns one function for every name."""

    def __init__(self, function: Callable) -> None:
        self._function = function
        self.calls = 0

    def get_interface(self, *_: Any) -> Callable:
        self.calls += 1
        return self._function


def _plain(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = torch.ones_like(scores, dtype=torch.bool).tril()
    scores = scores.masked_fill(~seen, -torch.inf)
    if s_aux is not None:
        sinks = s_aux.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    out = scores.softmax(-1)[..., : key.shape[2]] @ value
    return out.transpose(1, 2).contiguous(), None


def _random(module: nn.Module, draw: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Random floating-point parameters and buffers in float32; those with two axes have rank 1."""
    for name, held in itertools.chain(module.named_parameters(), module.named_buffers()):
        if held.is_floating_point():
            *rows, last = held.shape or (1,)
            if rows:
                column = torch.randn(*rows, 1, generator=draw) * last**-0.5
                yield name, column.expand(held.shape)
            else:
                yield name, (1.0 + 0.3 * torch.randn(last, generator=draw)).view(held.shape)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
