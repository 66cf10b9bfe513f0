"""relpos.hf.fuse: relpos computes the attention of a model, and its positions."""

import warnings

from torch import nn

from relpos.hf import _adapter, _interface, _trial
from relpos.hf._discover import attention_modules, implementation, outermost, own_configs
from relpos.hf._state import STATUS, State, remember, set_state, state_of, undo
from relpos.hf.forms.judge import Parts, Verdict, judge, plan_of, set_up, without_interface


def fuse(model: nn.Module, *, strict: bool = False) -> nn.Module:
    """Lets relpos compute the attention of a transformers model, and its positions; returns the
    same model.

    No Lq x Lk bias or mask is built any more, in training and in generate(). Parameters, names
    and state dict stay the same. Attention modules change their class, and configs are copied, so
    that other models that share them are not changed. Every attention module is then fused (the
    kernel computes attention and positions), on relpos for attention only (the model computes its
    positions, if it has any), or untouched; relpos.hf.report(model) says which, and why. A warning
    names what is untouched.

    Args:
      strict: raise in place of the warning, and change nothing.

    Raises:
      ImportError: transformers is not installed, or lacks an interface that relpos needs.
      TypeError: model is not a transformers model.
      ValueError: it runs with a position that relpos.hf.register(name, position=...) was given; or
        strict, and a module would stay untouched.
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
    whole = state_of(model)
    own_configs(model)
    with _trial.undisturbed():
        for part in outermost(model):
            before = state_of(part)
            if any(STATUS not in vars(module) for _, module, _ in attention_modules(part)):
                _fuse(part, before)
            remember(before)
    left = _untouched(model)
    if left and strict:
        set_state(whole)
        raise ValueError(f"model: {type(model).__name__} would keep layers untouched: {left}")
    if left:
        warnings.warn(
            f"relpos.hf.fuse: {type(model).__name__} keeps layers untouched: {left}", stacklevel=2
        )
    return model


def _untouched(model: nn.Module) -> str:
    """The classes of attention modules that stay as they are, each with the reasons; or nothing."""
    found: dict[tuple[str, str], int] = {}
    for _, module, _ in attention_modules(model):
        state, why = vars(module).get(STATUS, ("untouched", ""))
        if state == "untouched":
            key = (type(module).__name__, why)
            found[key] = found.get(key, 0) + 1
    return "; ".join(f"{count} {name} ({why})" for (name, why), count in found.items())


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
        undo(part)
    return model


def linearize(model: nn.Module) -> nn.Module:
    """An earlier name of relpos.hf.fuse, which keeps working and gives no warning.

    Elsewhere the word means an approximation in linear time; fuse approximates nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fuse(model)


def _fuse(model: nn.Module, before: State) -> None:
    """Fuses a model of transformers: first by adapters for classes, then by form."""
    parts, named = _parts(model), _Named()
    owners = {name: model.get_submodule(name) for name in dict.fromkeys(parts.owner.values())}
    for name, owner in owners.items():
        named.plan(owner, {n: parts.attention[n] for n in parts.of(name)}, name)
    parts.named = {*named.plans, *named.alone}
    outside = without_interface(parts)
    forms = any(
        name not in parts.named | {*outside} and parts.owner[name] not in named.kept
        for name in parts.attention
    )
    pristine = _trial.twin(model) if forms else None
    for name, plan in named.plans.items():
        _adapter.apply(plan, parts.attention[name])
    if pristine is None:
        verdict = Verdict(own=outside, kept=dict(named.kept))
        set_up(model, parts, verdict)
        _keep_if_it_runs(model, before, parts, verdict)
    else:
        verdict = judge(parts, pristine, dict(named.kept))
        _keep(before, parts, verdict)
        set_up(model, parts, verdict)
    for name, turn in verdict.turns.items():
        _adapter.apply(plan_of(turn), parts.attention[name])
    for name, module in parts.attention.items():
        vars(module)[STATUS] = _status(name, module, parts, verdict, named)


def _parts(model: nn.Module) -> Parts:
    names = {id(part): name for name, part in model.named_modules()}
    found = list(attention_modules(model))
    owner = {name: names[id(above if above is not None else model)] for name, _, above in found}
    runs = {name: implementation(model.get_submodule(name)) for name in set(owner.values())}
    return Parts(model, {name: module for name, module, _ in found}, owner, runs, set())


class _Named:
    """What the adapters for classes make of a model: plans by module, reasons why others run on
    relpos for attention alone, and models that are kept, with the reason."""

    def __init__(self) -> None:
        self.plans: dict[str, _adapter.Plan] = {}
        self.alone: dict[str, str] = {}
        self.kept: dict[str, str] = {}

    def plan(self, owner: nn.Module, modules: dict[str, nn.Module], owner_name: str) -> None:
        plans: dict[str, _adapter.Plan] = {}
        alone: dict[str, str] = {}
        for name, module in modules.items():
            adapter = _adapter.find(module)
            if adapter is None:
                continue
            same = (w for n, w in alone.items() if _trial.alike(modules[n], module))
            refused = next(same, None)  # its trial was the longer one
            if refused is not None:
                alone[name] = refused
                continue
            try:
                if "forward" in vars(module):
                    raise _adapter.Unfused("the object has a forward of its own", attention=False)
                plans[name] = adapter.plan(module, owner)
            except Exception as error:
                expected = isinstance(error, _adapter.Unfused)
                why = str(error) if expected else _trial.raised(error)
                if not expected or not error.attention:
                    self.kept[owner_name] = why
                    return
                alone[name] = why
        self.plans |= plans
        self.alone |= alone


def _status(
    name: str, module: nn.Module, parts: Parts, verdict: Verdict, named: _Named
) -> tuple[str, str]:
    kept = verdict.kept.get(parts.owner[name])
    if kept is not None or name in verdict.own:
        return "untouched", kept or verdict.own[name]
    if name in verdict.turns:
        return "fused", plan_of(verdict.turns[name]).what
    if name in named.plans:
        return "fused", named.plans[name].what
    return "attention", named.alone.get(name) or verdict.why[name]


def _keep(before: State, parts: Parts, verdict: Verdict) -> None:
    """Undoes the plans of the modules in the models that are kept, and of these models."""
    kept = {
        id(part)
        for name in verdict.kept
        for part in parts.model.get_submodule(name).modules()
        if not any(part is parts.attention[n] for n, o in parts.owner.items() if o != name)
    }
    set_state([each for each in before if id(each[0]) in kept])


def _keep_if_it_runs(model: nn.Module, before: State, parts: Parts, verdict: Verdict) -> None:
    """Undoes everything where the model raises now and did not raise before: some part of it
    outside of its attention modules computes with a mask or a bias itself."""
    if all(o in verdict.kept or n in verdict.own for n, o in parts.owner.items()):
        return
    now = _trial.runs(model)
    if not any(now):
        return
    after = state_of(model)
    set_state(before)
    ran = _trial.runs(model)
    new = [error for error, earlier in zip(now, ran, strict=False) if error and not earlier]
    if not new:
        set_state(after)
        return
    why = f"{type(model).__name__} on relpos: {_trial.raised(new[0])}"
    verdict.kept |= dict.fromkeys(parts.owner.values(), why)
