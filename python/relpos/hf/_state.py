"""What relpos.hf.fuse changes in the modules of a model, and how it is undone."""

from typing import Any

from torch import nn

STATUS = "_relpos_status"  # of an attention module: (state, text), as in a report
BEFORE = "_relpos_before"  # of a module that fuse has changed: what restore gives back
# Of each module: it, its class, its attributes, the attention implementation of its config.
State = list[tuple[nn.Module, type, dict[str, Any], str | None]]


def state_of(model: nn.Module) -> State:
    """Of each module, what fuse may change."""
    configs = (getattr(part, "config", None) for part in model.modules())
    runs = (getattr(config, "_attn_implementation", None) for config in configs)
    return [
        (part, type(part), dict(vars(part)), name)
        for part, name in zip(model.modules(), runs, strict=True)
    ]


def set_state(state: State) -> None:
    for part, kind, attributes, runs in state:
        part.__class__ = kind
        vars(part).clear()
        vars(part).update(attributes)
        if runs is not None:
            run_on(part.config, runs)


def run_on(config: Any, implementation: str) -> None:
    """Sets the attention implementation of a config alone; an assignment sets those in it, too."""
    alone = hasattr(config, "sub_configs")
    config._attn_implementation = {"": implementation} if alone else implementation


def remember(before: State) -> None:
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


def undo(part: nn.Module) -> None:
    """Gives back what a module was before it was fused first. Parameters keep their values."""
    vars(part).pop(STATUS, None)
    if BEFORE not in vars(part):
        return
    kind, attributes, added, runs = vars(part).pop(BEFORE)
    part.__class__ = kind
    for name in added:
        vars(part).pop(name, None)
    vars(part).update(attributes)
    if runs is not None:
        run_on(part.config, runs)
