"""relpos.hf.fuse: relpos computes the positions of a model."""

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from relpos.hf import _adapter, _interface, _trial

STATUS = "_relpos_status"  # of an attention module: (fused, text)
# Of each module: it, its class, its attributes, the attention implementation of its config.
State = list[tuple[nn.Module, type, dict[str, Any], str | None]]
BEFORE = "_relpos_before"  # of a module that fuse has changed: what restore gives back


def fuse(model: nn.Module) -> nn.Module:
    """Lets relpos compute the positions of a transformers model; returns the same model.

    No Lq x Lk bias or mask is built any more, in training and in generate(). Parameters, names
    and state dict stay the same. Attention modules change their class, and configs are copied, so
    that other models that share them are not changed. Layers with a scheme that relpos does not
    have stay as they are; relpos.hf.report(model) lists them with the reason.

    Raises:
      ImportError: transformers is not installed, or lacks an interface that relpos needs.
      TypeError: model is not a transformers model.
      ValueError: it runs with a position that relpos.hf.register(name, position=...) was given.
    """
    _interface.register()
    from transformers import PreTrainedModel

    if not isinstance(model, nn.Module) or not any(
        isinstance(module, PreTrainedModel) for module in model.modules()
    ):
        raise TypeError(
            f"model: expected a transformers model or a module that holds one, got "
            f"{type(model).__name__}"
        )
    _refuse_named(model)
    own_configs(model)
    with _trial.undisturbed():
        for part in _outermost(model):
            before = _state(part)
            _fuse_all(part)
            if any(a[1::2] != b[1::2] for a, b in zip(before, _state(part), strict=True)):
                _keep_if_it_runs(part, before)
            _remember(before)
    return model


def _refuse_named(model: nn.Module) -> None:
    """Raises for a model that runs with a position of relpos.hf.register(name, position=...)."""
    for part in model.modules():
        runs = getattr(getattr(part, "config", None), "_attn_implementation", None)
        if runs in _interface.POSITIONS:
            raise ValueError(
                "model: expected attn_implementation 'relpos' or one of transformers, got "
                f"{runs!r}, whose position fuse would drop: set another one, or leave this model "
                "unfused, whose own positions the model then computes"
            )


def restore(model: nn.Module) -> nn.Module:
    """Undoes relpos.hf.fuse: the model computes as before, to the bit; returns the same model.

    Classes, attributes and attn_implementation are those that each module had when it was fused
    first. Parameters keep the values that they have now. A model that was never fused stays as it
    is.
    """
    for part in model.modules():
        vars(part).pop(STATUS, None)
        if BEFORE not in vars(part):
            continue
        kind, attributes, added, runs = vars(part).pop(BEFORE)
        part.__class__ = kind
        for name in added:
            vars(part).pop(name, None)
        vars(part).update(attributes)
        if runs is not None:
            part.config._attn_implementation = runs
    return model


def linearize(model: nn.Module) -> nn.Module:
    """An earlier name of relpos.hf.fuse, which keeps working and gives no warning.

    Elsewhere the word means an approximation in linear time; fuse approximates nothing.
    """
    return fuse(model)


def _outermost(model: nn.Module) -> list[nn.Module]:
    """The models of transformers that are in no other one."""
    from transformers import PreTrainedModel

    named = dict(model.named_modules())
    return [
        part
        for name, part in named.items()
        if isinstance(part, PreTrainedModel) and _owner(named, name) is None
    ]


def _fuse_all(model: nn.Module) -> None:
    from transformers import PreTrainedModel

    owned: dict[Any, list[nn.Module]] = {}
    for _, module, owner in attention_modules(model):
        owned.setdefault(owner, []).append(module)
    for owner, modules in owned.items():
        _fuse(owner, modules)
    for part in model.modules():  # a head reads its own config when it generates
        if isinstance(part, PreTrainedModel):
            owners = [owner for _, _, owner in attention_modules(part)]
            if owners and all(implementation(owner) == _interface.NAME for owner in owners):
                part.config._attn_implementation = _interface.NAME


def _state(model: nn.Module) -> State:
    """Of each module, what fuse may change."""
    configs = (getattr(part, "config", None) for part in model.modules())
    runs = (getattr(config, "_attn_implementation", None) for config in configs)
    return [
        (part, type(part), dict(vars(part)), name)
        for part, name in zip(model.modules(), runs, strict=True)
    ]


def _set_state(state: State) -> None:
    for part, kind, attributes, runs in state:
        part.__class__ = kind
        vars(part).clear()
        vars(part).update(attributes)
        if runs is not None:
            part.config._attn_implementation = runs


def _remember(before: State) -> None:
    """Leaves in each module that fuse has changed what it was before."""
    for part, kind, attributes, runs in before:
        own = vars(part)
        added = [name for name in own if name not in attributes and name != STATUS]
        changed = {
            name: old
            for name, old in attributes.items()
            if own.get(name) is not old and name != STATUS
        }
        now = None if runs is None else part.config._attn_implementation
        same = type(part) is kind and not added and not changed and now == runs
        if BEFORE not in own and not same:
            own[BEFORE] = (kind, changed, added, runs)


def _keep_if_it_runs(model: nn.Module, before: State) -> None:
    """Undoes everything where the model raises now and did not raise before: some part of it
    outside of its attention modules computes with a mask or a bias itself."""
    now = _trial.runs(model)
    if not any(now):
        return
    after = _state(model)
    _set_state(before)
    ran = _trial.runs(model)
    new = [error for error, earlier in zip(now, ran, strict=False) if error and not earlier]
    if not new:
        _set_state(after)
        return
    why = f"{type(model).__name__} on relpos: {_raised(new[0])}"
    for part, *_ in after:
        if STATUS in vars(part) or _adapter.find(part) is not None:
            vars(part)[STATUS] = (False, why)


def _raised(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"a trial with random weights raised {type(error).__name__}: {text}"


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


def _fuse(owner: Any, modules: list[nn.Module]) -> None:
    """Fuses the attention modules of one model. They share its mask, so either all of them run on
    relpos or none."""
    found = [(module, _adapter.find(module)) for module in modules if STATUS not in vars(module)]
    if not found or not all(adapter for _, adapter in found):
        return
    plans: list[tuple[nn.Module, _adapter.Plan | str]] = []
    for module, adapter in found:
        before = (why for each, why in plans if isinstance(why, str) and _trial.alike(each, module))
        refused = next(before, None)  # its trial was the longer one
        if refused is not None:
            plans.append((module, refused))
            continue
        try:
            if "forward" in vars(module):
                raise _adapter.Unfused("the object has a forward of its own", attention=False)
            plans.append((module, adapter.plan(module, owner)))
        except Exception as error:
            expected = isinstance(error, _adapter.Unfused)
            why = str(error) if expected else _raised(error)
            if not expected or not error.attention:
                for each in modules:
                    vars(each)[STATUS] = (False, why)
                return
            plans.append((module, why))
    for module, plan in plans:
        if isinstance(plan, str):
            vars(module)[STATUS] = (False, plan)
        else:
            _adapter.apply(plan, module)
            vars(module)[STATUS] = (True, plan.what)
    owner.config._attn_implementation = _interface.NAME
