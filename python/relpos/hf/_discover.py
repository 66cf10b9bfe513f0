"""The attention modules of a model of transformers, and the models and configs that hold them."""

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from relpos.hf import _adapter


def implementation(owner: Any) -> str | None:
    """The attention implementation of a model, None where there is no model."""
    return None if owner is None else owner.config._attn_implementation


def attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """(name, module, nearest PreTrainedModel above it) of the modules that compute attention. They
    are found by the name of their class; of nested ones the innermost counts."""
    from transformers import PreTrainedModel

    named, others = dict(model.named_modules()), _adapter.no_attention()

    def attends(module: nn.Module) -> bool:
        kind = type(module).__name__
        return "Attention" in kind and kind not in others

    for name, module in named.items():
        if not attends(module) or isinstance(module, PreTrainedModel):
            continue
        inner = any(attends(m) for m in module.modules() if m is not module)
        if not inner:
            yield name, module, _owner(named, name)


def _owner(named: dict[str, nn.Module], name: str) -> Any:
    """The nearest PreTrainedModel above a module, None where there is none."""
    from transformers import PreTrainedModel

    while name:
        name = name.rpartition(".")[0]
        if isinstance(named[name], PreTrainedModel):
            return named[name]
    return None


def own_configs(model: nn.Module) -> None:
    """Copies every config in the model, so that a change does not reach other models."""
    from transformers import PretrainedConfig

    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, value in list(module.__dict__.items()):
            if isinstance(value, PretrainedConfig):
                module.__dict__[name] = copy.deepcopy(value, memo)


def outermost(model: nn.Module) -> list[nn.Module]:
    """The models of transformers that are in no other one."""
    from transformers import PreTrainedModel

    named = dict(model.named_modules())
    return [
        part
        for name, part in named.items()
        if isinstance(part, PreTrainedModel) and _owner(named, name) is None
    ]
