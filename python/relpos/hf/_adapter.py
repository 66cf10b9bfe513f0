"""What one file of relpos.hf.adapters says about its family of models."""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn


class Unfused(Exception):
    """Raised by an adapter where it cannot fuse a layer; its text is the reason.

    attention: whether attention may still run on relpos, while the model computes its positions;
    otherwise the whole model stays as it is.
    """

    def __init__(self, reason: str, *, attention: bool) -> None:
        super().__init__(reason)
        self.attention = attention


@dataclass(frozen=True)
class Plan:
    """How to fuse one attention module.

    what: what the kernel then computes, in words. mixin: a class whose methods replace those of
    the module's class. state: attributes that they use. also: other modules, with their attributes.
    """

    what: str
    mixin: type
    state: dict[str, Any] = field(default_factory=dict)
    also: tuple[tuple[nn.Module, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Adapter:
    """How the attention classes of one family of models are changed.

    classes: names of attention classes of transformers. plan(module, owner) makes the Plan of one
    such module, whose nearest PreTrainedModel is owner, or raises Unfused. It changes nothing.
    """

    classes: tuple[str, ...]
    plan: Callable[[nn.Module, nn.Module], Plan]


def find(module: nn.Module) -> Adapter | None:
    """The adapter of a module's class."""
    if not type(module).__module__.startswith("transformers."):
        return None
    return _by_class().get(type(module).__name__)


def named() -> set[str]:
    """The attention classes that adapters name."""
    return {*_by_class()}


def no_attention() -> set[str]:
    """Classes that compute no attention, though their names say so, as files of relpos.hf.adapters
    list them."""
    return {name for file in _files() for name in getattr(file, "NO_ATTENTION", ())}


def _files() -> list[Any]:
    from relpos.hf import adapters

    names = sorted(entry.name for entry in pkgutil.iter_modules(adapters.__path__))
    return [importlib.import_module(f"{adapters.__name__}.{name}") for name in names]


def _by_class() -> dict[str, Adapter]:
    return {
        name: adapter
        for file in _files()
        for adapter in getattr(file, "ADAPTERS", ())
        for name in adapter.classes
    }


@functools.cache
def _fused_class(mixin: type, base: type) -> type:
    namespace = {"__module__": mixin.__module__, "__reduce_ex__": _reduce}
    made = getattr(mixin, "_relpos_methods", None)
    namespace |= made(base) if made is not None else {}
    return type(f"Relpos{base.__name__}", (mixin, base), namespace)


def apply(plan: Plan, module: nn.Module) -> None:
    """Makes the mixin's methods replace those of the module's class. Parameters, submodules, state
    dict and isinstance stay the same.

    mixin._relpos_methods(base), where it exists, returns more methods, made from the class.
    """
    for each, state in ((module, plan.state), *plan.also):
        vars(each).update(state)
    module.__class__ = _fused_class(plan.mixin, type(module))


def _reduce(module: nn.Module, protocol: int) -> tuple:
    """The class is made at run time, so a pickle stores what it is made from."""
    mixin, base = type(module).__bases__
    return _remake, (mixin, base), module.__dict__


def _remake(mixin: type, base: type) -> nn.Module:
    made = _fused_class(mixin, base)
    return made.__new__(made)
