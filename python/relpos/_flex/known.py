"""What was found out about the score_mods of earlier calls."""

import functools
import threading
import types
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from relpos._flex.lowered import LoweredScoreMod, from_score_mod
from relpos._flex.pieces import Changed, ScoreMod
from relpos._flex.plan import Plan
from relpos._flex.positions import Lowering

_MOST = 256  # plans that are kept
_PLANS: dict[Hashable, Plan] = {}
_LOCK = threading.Lock()
_VALUES = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)
_BUILTIN: tuple[Any, ...] = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    type,
    torch._ops.OpOverloadPacket,
)
_OF_MODULES = set(vars(torch.nn.Module()))
_MODULES = ("torch", "math", "numpy", "builtins", "operator")


def lowered(score_mod: ScoreMod, heads: int, dtype: torch.dtype) -> LoweredScoreMod:
    """relpos.from_score_mod, traced again only where the function's code, its numbers, or the
    shapes of its tensors are others than before."""
    try:
        key = (_fingerprint(score_mod), heads, dtype)
    except _Unknown:
        return from_score_mod(score_mod, heads, dtype=dtype)
    plan = _PLANS.get(key)
    if plan is not None:
        found = LoweredScoreMod(Lowering(score_mod, heads, dtype, plan))
        try:
            found._lowering.check()
        except Changed:
            plan = None
    if plan is None:
        found = from_score_mod(score_mod, heads, dtype=dtype)
        plan = found._plan
    with _LOCK:
        _PLANS.pop(key, None)
        _PLANS[key] = plan
        if len(_PLANS) > _MOST:
            del _PLANS[next(iter(_PLANS))]
    return found


class _Unknown(Exception):
    """What may change without being seen."""


def _fingerprint(value: Any, path: tuple[int, ...] = ()) -> Hashable:
    """What a trace depends on: values of numbers, shapes and dtypes of tensors, code."""
    kind = type(value)
    if kind in _VALUES:
        return kind, value
    if kind in (Tensor, torch.nn.Parameter):
        return kind, value.shape, value.dtype, value.requires_grad, value.device
    if id(value) in path:  # which leads to itself
        raise _Unknown
    path = (*path, id(value))
    if kind in (tuple, list):
        return kind, tuple(_fingerprint(each, path) for each in value)
    if kind is dict:
        return kind, _fingerprint(list(value.items()), path)
    if isinstance(value, torch.nn.Module) and _of_torch(kind):
        if value._forward_hooks or value._forward_pre_hooks:
            raise _Unknown
        held = {**value._parameters, **value._buffers, **value._modules}
        own = {name: x for name, x in vars(value).items() if name not in _OF_MODULES}
        return kind, value.training, _fingerprint([held, own], path)
    if kind is functools.partial:
        parts = (value.func, value.args, tuple(sorted(value.keywords.items())))
        return kind, _fingerprint(parts, path)
    if kind is types.FunctionType:
        return _of_function(value, path)
    if kind is types.ModuleType and value.__name__.split(".")[0] in _MODULES:
        return kind, value.__name__
    if isinstance(value, _BUILTIN) and _of_torch(value):
        return kind, value
    raise _Unknown


def _of_function(function: types.FunctionType, path: tuple[int, ...]) -> Hashable:
    if _of_torch(function):
        return function
    code = function.__code__
    read = [
        (name, _fingerprint(function.__globals__[name], path))
        for name in sorted(_names(code))
        if name in function.__globals__
    ]
    try:
        cells = tuple(_fingerprint(cell.cell_contents, path) for cell in function.__closure__ or ())
    except ValueError:  # a cell that is empty yet
        raise _Unknown from None
    defaults = function.__defaults__ or (), tuple((function.__kwdefaults__ or {}).items())
    return code, cells, _fingerprint(defaults, path), tuple(read)


def _of_torch(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "torch").split(".")[0] in _MODULES


def _names(code: types.CodeType) -> set[str]:
    """The global names that it reads, those of functions within it too."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found
