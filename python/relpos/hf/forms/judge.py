"""What of a model may run on relpos: found by running a copy with random weights in both ways."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from relpos.hf import _adapter, _passes, _trial
from relpos.hf._interface import NAME
from relpos.hf._state import run_on
from relpos.hf.forms.replay import replayed
from relpos.hf.forms.rotation import turn_of
from relpos.hf.forms.turn import FusedTurn, Turn

PLAIN = "its class is run as it is: the model computes its positions, if it has any"
_FAR = 1e-3  # of the largest value of what a model returns
_NEAR = 1e-4  # of the largest value of what an attention module returns


@dataclass
class Verdict:
    """What is decided of one model and all models in it.

    own: attention modules that keep their own attention, with the reason. kept: models that keep
    it, with the reason. turns: modules whose rotation the kernel applies. why: of other modules on
    relpos, what else is known.
    """

    own: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


@dataclass
class Parts:
    """The attention modules of a model by name, and the name of the model that each belongs to.
    before: the attention implementation of these models. named: the modules that adapters have
    changed, which were tried already."""

    model: nn.Module
    attention: dict[str, nn.Module]
    owner: dict[str, str]
    before: dict[str, str]
    named: set[str]

    def of(self, owner: str) -> list[str]:
        return [name for name, each in self.owner.items() if each == owner]


def set_up(model: nn.Module, parts: Parts, verdict: Verdict) -> None:
    """Gives each config in a model, or in its twin, the implementation that was decided."""
    from transformers import PreTrainedModel

    held = dict(model.named_modules())
    models = {name: part for name, part in held.items() if isinstance(part, PreTrainedModel)}
    on = {
        name: name not in verdict.kept and not all(n in verdict.own for n in parts.of(name))
        for name in parts.before
    }
    chosen: dict[int, tuple[Any, str]] = {}
    for name, part in models.items():  # a head reads its own config when it generates
        inner = [owner for n, owner in parts.owner.items() if _within(n, name)]
        if inner and all(on[owner] for owner in inner):
            chosen[id(part.config)] = part.config, NAME
    # Of models that share a config, one that is kept decides, then one that is on relpos.
    ranks = {name: (name in verdict.kept, runs) for name, runs in on.items() if name in models}
    for name in sorted(ranks, key=lambda each: ranks[each]):
        config = models[name].config
        chosen[id(config)] = config, NAME if on[name] else parts.before[name]
    # An assignment sets the configs in a config, too: these come after it.
    for config, implementation in sorted(chosen.values(), key=lambda each: -_held_by(each[0])):
        config._attn_implementation = implementation
    for name, why in verdict.own.items():
        module, owner = held[name], parts.owner[name]
        if why and owner not in verdict.kept and hasattr(module, "config"):
            module.config = copy.copy(module.config)
            run_on(module.config, parts.before[owner])


def _held_by(config: Any) -> int:
    """How many configs are in one."""
    inner = (getattr(config, name, None) for name in config.sub_configs)
    return sum(1 + _held_by(each) for each in inner if each is not None)


def _within(name: str, above: str) -> bool:
    return not above or name.startswith(f"{above}.")


def judge(parts: Parts, pristine: nn.Module, kept: dict[str, str]) -> Verdict:
    """Which modules of a model run on relpos. parts.model has the named adapters applied; pristine
    is a twin of the model as it was. kept: models that stay as they are. Nothing of parts.model is
    changed."""
    verdict = Verdict(own=without_interface(parts), kept=kept)
    trial = _Trial(parts, pristine)
    for _ in range(12):
        if not trial.settles(verdict):
            break
    else:
        for name in set(parts.owner.values()):
            verdict.kept[name] = "no choice of its layers ran on relpos in a trial"
        return verdict
    trial.foreign(verdict)
    trial.rotations(verdict)
    return verdict


def without_interface(parts: Parts) -> dict[str, str]:
    """The modules, of those that no adapter has changed, whose model never calls relpos."""
    why = "its model does not use the attention interface"
    owners = {name: parts.model.get_submodule(name) for name in parts.before}
    return {
        name: why
        for name, owner in parts.owner.items()
        if name not in parts.named and not owners[owner]._can_set_attn_implementation()
    }


class _Trial:
    def __init__(self, parts: Parts, theirs: nn.Module) -> None:
        from transformers import PreTrainedModel

        for part in theirs.modules():
            if isinstance(part, PreTrainedModel):
                part.config._attn_implementation = "eager"
        _simple_experts(theirs)
        # Passes may change buffers; each comparison begins with those of `pristine`.
        self.parts, self.pristine, self.theirs = parts, theirs, _trial.again(theirs)
        held = dict(self.theirs.named_modules())
        self.attention = {name: held[name] for name in parts.attention}
        self.passes: list[tuple[str, _passes.Way, str, _passes.Pass]] = []
        self.calls: dict[str, list[_passes.Call]] = {}
        for root in self._roots():
            self._record(root, _passes.ways)
        for root in self._roots():
            self._record(root, _passes.more_ways)

    def _roots(self) -> Iterator[str]:
        """Models, from the whole to its parts, in which attention was not reached yet."""
        from transformers import PreTrainedModel

        for name, part in self.theirs.named_modules():
            if isinstance(part, PreTrainedModel):
                inner = [each for each in self.attention if _within(each, name)]
                if any(each not in self.calls for each in inner):
                    yield name

    def _record(self, root: str, ways: Callable) -> None:
        model, known = self.theirs.get_submodule(root), {*self.calls}
        for label, way in list(ways(_trial.again(self.pristine).get_submodule(root))):
            seen = _passes.run(model, way, self._below(self.attention, root))
            new = {_joined(root, name) for name in seen.calls} - known
            if seen.error is None and (new or ways is _passes.ways):
                self.passes.append((label, way, root, seen))
                for name, calls in seen.calls.items():
                    self.calls.setdefault(_joined(root, name), []).extend(calls)

    @staticmethod
    def _below(attention: dict[str, nn.Module], root: str) -> dict[str, nn.Module]:
        cut = len(root) + 1 if root else 0
        return {name[cut:]: part for name, part in attention.items() if _within(name, root)}

    def ours(self, verdict: Verdict) -> nn.Module:
        made = _trial.sharing(self.parts.model, self.pristine)
        set_up(made, self.parts, verdict)
        _simple_experts(made)
        held = dict(made.named_modules())
        for name, turn in verdict.turns.items():
            _adapter.apply(plan_of(turn), held[name])
        return made

    def settles(self, verdict: Verdict) -> bool:
        """One round; whether it changed the verdict."""
        own, kept = dict(verdict.own), dict(verdict.kept)
        made = self.ours(verdict)
        held = dict(made.named_modules())
        attention = {name: held[name] for name in self.parts.attention}
        served: set[str] = set()
        reached: dict[str, tuple[_passes.Call, _passes.Call]] = {}
        for label, way, root, before in self.passes:
            model = made.get_submodule(root)
            now = _passes.run(model, way, self._below(attention, root), before)
            served |= {_joined(root, name) for name in now.served}
            if now.error is not None:
                self._blame(verdict, _joined(root, now.inside), _trial.raised(now.error))
                if verdict.own != own or verdict.kept != kept:
                    return True
                continue  # it raises on its own implementation, too
            for name, error in now.errors.items():
                whole = _joined(root, name)
                if whole not in self.parts.named and not error <= _NEAR:
                    self._own(verdict, whole, _differs(error, label))
            if verdict.own == own and not self._named_below(root):
                error = _passes.apart(now.out, before.out)
                if not error <= _FAR:
                    self._blame(verdict, root, f"what it returns differs by {error:.0e} ({label})")
            for name, calls in now.calls.items():
                pair = (before.calls[name][0], calls[0])
                reached.setdefault(_joined(root, name), pair)
        if verdict.own != own or verdict.kept != kept:
            return True
        self._replay(verdict, attention, reached, served)
        return verdict.own != own or verdict.kept != kept

    def _replay(self, verdict: Verdict, attention: dict, reached: dict, served: set[str]) -> None:
        tried: list[str] = []
        for name, module in attention.items():
            owner = self.parts.owner[name]
            if name in self.parts.named or name in verdict.own or owner in verdict.kept:
                continue
            if name not in reached:
                self._own(verdict, name, "no call of it could be made in a trial", alike=False)
            elif name not in served:
                self._own(verdict, name, "it does not call the attention interface", alike=False)
            elif not any(_trial.alike(module, attention[each]) for each in tried):
                tried.append(name)
                try:
                    with _trial.quick(self.theirs):
                        replayed(self.attention[name], module, *reached[name])
                except _adapter.Unfused as error:
                    self._own(verdict, name, str(error))
                except Exception as error:
                    self._own(verdict, name, _trial.raised(error))

    def foreign(self, verdict: Verdict) -> None:
        """Keeps the models in which a layer with its own attention gives something else than on
        the implementation that it has: that one may make masks of another form."""
        mixed = {
            self.parts.owner[name]
            for name in verdict.own
            if name in self.calls and self.parts.before[self.parts.owner[name]] != "eager"
        } - {*verdict.kept}
        if not any(n not in verdict.own for n, o in self.parts.owner.items() if o in mixed):
            return
        theirs, ours = _trial.again(self.pristine), self.ours(verdict)
        nothing = Verdict(kept=dict.fromkeys(self.parts.before, ""))
        set_up(theirs, self.parts, nothing)
        both = [dict(each.named_modules()) for each in (theirs, ours)]
        for label, way, root, _ in self.passes:
            found = [self._below({n: h[n] for n in self.attention}, root) for h in both]
            before = _passes.run(theirs.get_submodule(root), way, found[0])
            now = _passes.run(ours.get_submodule(root), way, found[1], before)
            for name, error in now.errors.items():
                whole = _joined(root, name)
                owner = self.parts.owner[whole]
                if whole in verdict.own and owner in mixed and not error <= _NEAR:
                    verdict.kept.setdefault(
                        owner, f"a layer of it, {whole}: {_differs(error, label)}"
                    )

    def _named_below(self, root: str) -> bool:
        return any(_within(name, root) for name in self.parts.named)

    def _own(self, verdict: Verdict, name: str, why: str, *, alike: bool = True) -> None:
        """A module keeps its own attention, and those like it."""
        for other, module in self.parts.attention.items():
            same = alike and _trial.alike(module, self.parts.attention[name])
            if (other == name or same) and other not in self.parts.named:
                verdict.own.setdefault(other, why)

    def _blame(self, verdict: Verdict, inside: str, why: str) -> None:
        """Of an error in a module, that module; else the model in which it was raised."""
        free = inside not in verdict.own and inside not in self.parts.named
        if inside in self.parts.attention and free:
            self._own(verdict, inside, why)
            return
        owner = self.parts.owner.get(inside, inside)
        names = [owner] if self.parts.of(owner) and owner not in verdict.kept else []
        if not names:  # raised in a model without attention of its own, or by what it got
            names = [o for o in set(self.parts.owner.values()) if o not in verdict.kept]
            below = [each for each in names if _within(each, owner) or each == owner]
            names = below or names
        kind = type(self.parts.model.get_submodule(owner)).__name__
        for each in names:
            verdict.kept[each] = f"{kind} on relpos: {why}"

    def rotations(self, verdict: Verdict) -> None:
        """Adds the modules whose rotation the kernel applies, after a pass of the whole so."""
        found: list[tuple[nn.Module, Turn | str]] = []
        for name, module in self.attention.items():
            out = name in verdict.own or self.parts.owner[name] in verdict.kept
            if out or name in self.parts.named:
                continue
            before = (each for other, each in found if _trial.alike(other, module))
            turn = next(before, None)
            if turn is None:
                try:
                    with _trial.quick(self.theirs):
                        turn = turn_of(module, self.calls[name])
                except Exception as error:
                    known = isinstance(error, _adapter.Unfused)
                    turn = str(error) if known else _trial.raised(error)
                found.append((module, turn))
            if isinstance(turn, Turn):
                verdict.turns[name] = turn
            else:
                verdict.why[name] = turn
        if not verdict.turns:
            return
        made = self.ours(verdict)
        held = dict(made.named_modules())
        attention = {name: held[name] for name in self.parts.attention}
        for label, way, root, before in self.passes:
            below = self._below(attention, root)
            now = _passes.run(made.get_submodule(root), way, below, before)
            bad = {n: _differs(e, label) for n, e in now.errors.items() if not e <= _NEAR}
            if now.error is not None:
                bad = dict.fromkeys(below, _trial.raised(now.error))
            for name, why in bad.items():
                if verdict.turns.pop(_joined(root, name), None) is not None:
                    verdict.why[_joined(root, name)] = f"with the rotation in the kernel {why}"


def _simple_experts(model: nn.Module) -> None:
    """Experts one after another: the products of a twin's weights are then of rank 1."""
    for part in model.modules():
        if getattr(getattr(part, "config", None), "_experts_implementation", None) is not None:
            part.config._experts_implementation = "eager"


def plan_of(turn: Turn) -> _adapter.Plan:
    """How a module with this rotation is fused."""
    what = f"{turn.text()}; with a cache keys are stored rotated"
    return _adapter.Plan(what, FusedTurn, {"_relpos_turn": turn})


def _joined(root: str, name: str) -> str:
    return f"{root}.{name}" if root and name else root or name


def _differs(error: float, label: str) -> str:
    return (
        f"its attention on random weights differs by {error:.0e} of the largest value from its "
        f"eager one ({label})"
    )
