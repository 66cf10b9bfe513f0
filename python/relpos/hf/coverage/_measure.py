"""One model type: a small model with random weights, fused, against its own float64."""

import copy
import functools
import inspect
import math
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf import _adapter, _passes
from relpos.hf._discover import attention_modules
from relpos.hf._fuse import fuse
from relpos.hf._inputs import calls
from relpos.hf._report import report
from relpos.hf.coverage import _tiny

# Relative errors, of the largest value, that count as wrong where transformers' own float32 is at
# least ten times nearer to its float64.
FORWARD, BACKWARD = 1e-4, 1e-3


def measured(model_type: str) -> dict[str, Any]:
    """What `coverage` prints of a model type, as JSON."""
    started = time.monotonic()
    found: dict[str, Any] = {"type": model_type, "classes": [], "passed": [], "wrong": []}
    try:
        model = _tiny.model(model_type).eval()
    except Exception as error:
        found["not_built"] = _text(error)
        return found
    found["model"] = type(model).__name__
    _drawn(model)
    model.train()
    model.eval()  # LeViT keeps biases of earlier passes in evaluation mode
    found["passed"], found["wrong"] = [], []
    fused = copy.deepcopy(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fuse(fused)
    except Exception as error:
        found["wrong"].append(f"fuse raises {_text(error)}")
        found["classes"] = _classes(model)
        return found
    found["classes"] = _classes(fused)
    if not found["classes"]:
        return found
    if not _Comparison(model, fused, found).all():
        found["not_called"] = "no call of it was found"
    found["seconds"] = round(time.monotonic() - started, 2)
    return found


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _drawn(model: nn.Module) -> None:
    """Weights with which attention matters."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.numel() and parameter.is_floating_point():
                fan = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * fan**-0.5)


def _classes(model: nn.Module) -> list[dict[str, str]]:
    """The attention classes of a model, once each for every state."""
    found: dict[tuple, dict[str, Any]] = {}
    modules = dict(model.named_modules())
    for layer in report(model).layers:
        kind = type(modules[layer.name])
        base = kind.__bases__[-1] if layer.kind.startswith("Relpos") else kind
        key = (base.__name__, layer.state, layer.why)
        entry = {
            "class": base.__name__,
            "file": base.__module__.removeprefix("transformers.models."),
            "position": position(base),
            "state": layer.state,
            "why": layer.why,
            "layers": 0,
        }
        found.setdefault(key, entry)["layers"] += 1
    return list(found.values())


_ROTATES = re.compile(r"[Rr]otary|RoPE|(?<![A-Za-z])rope|rotate_|apply_rot|freqs_cis")
_OTHER = re.compile(
    r"relative|position_bias|pos_bias|bias_table|alibi|rel_pos|distance_emb"
    r"|(?<!config\.)attention_bias",  # config.attention_bias is about projections
    re.IGNORECASE,
)


def position(kind: type) -> str:
    """ "rotates", "other" position or "plain": what the text of an attention class speaks of, or
    what an adapter for it says, where its model makes the position elsewhere."""
    text = ""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.") or base is object:
            break
        try:
            text += inspect.getsource(base)
        except (OSError, TypeError):
            continue
    text = re.sub(r"^\s*@.*$", "", text, flags=re.MULTILINE)  # some copies keep a decorator
    if _ROTATES.search(text):
        return "rotates"
    return "other" if _OTHER.search(text) or kind.__name__ in _adapter.named() else "plain"


def _roots(model: nn.Module) -> list[str]:
    """The whole model, and models in it with attention that a call of the whole may not reach."""
    from transformers import PreTrainedModel

    return [
        name
        for name, part in model.named_modules()
        if isinstance(part, PreTrainedModel) and any(True for _ in attention_modules(part))
    ][:6]


class _Comparison:
    """A model and the same one fused, called in whole and in parts."""

    def __init__(self, model: nn.Module, fused: nn.Module, found: dict[str, Any]) -> None:
        self.model, self.fused, self.found = model, fused, found
        self.attention = {name: part for name, part, _ in attention_modules(model)}
        self.reached: set[str] = set()
        self.called = False

    def all(self) -> bool:
        """Whether something could be called."""
        for way in (self._usual, self._others):
            for root in _roots(self.model):
                if any(_within(name, root) for name in {*self.attention} - self.reached):
                    way(root)
        return self.called

    def _usual(self, root: str) -> None:
        theirs, ours = self.model.get_submodule(root), self.fused.get_submodule(root)
        given = next((each for each in calls(theirs, 9) if _passes.can_run(theirs, each)), None)
        if given is None:
            return
        self._reach(root, "forward", given)
        tests: dict[str, Callable] = {"forward": lambda by: _both(by, ours, given)}
        names = inspect.signature(theirs.forward).parameters
        if isinstance(given.get("input_ids"), Tensor):
            tokens = given["input_ids"]
            if "attention_mask" in names:
                seen = torch.ones_like(tokens)
                seen[1, 2] = seen[1, -1] = 0
                padded = given | {"attention_mask": seen}
                tests["padding"] = lambda by: _both(by, ours, padded, seen)
            if not root and hasattr(theirs, "generate") and theirs.can_generate():
                for how, more in _GENERATE.items():
                    tests[how] = lambda by, more=more: _generated(by, ours, given, more)
        self._run(root, tests)

    def _others(self, root: str) -> None:
        """With other inputs, where these reach more."""
        theirs, ours = self.model.get_submodule(root), self.fused.get_submodule(root)
        for method, given in list(_passes.more_calls(theirs, 9)):
            if self._reach(root, method, given):
                what = ", ".join(name for name, each in given.items() if each is not None)
                what = what if method == "forward" else method
                test = functools.partial(_both, ours=ours, given=given, method=method)
                self._run(root, {what: test})

    def _reach(self, root: str, method: str, given: dict[str, Any]) -> bool:
        """Whether a call, which runs, reaches attention that none before has reached."""
        self.called = True
        cut = len(root) + 1 if root else 0
        below = {name[cut:]: part for name, part in self.attention.items() if _within(name, root)}
        way = functools.partial(_passes.called, method=method, given=given)
        with torch.no_grad():
            seen = _passes.run(self.model.get_submodule(root), way, below)
        new = {f"{root}.{name}" if root else name for name in seen.calls} - self.reached
        self.reached |= new
        return bool(new)

    def _run(self, root: str, tests: dict[str, Callable]) -> None:
        theirs = self.model.get_submodule(root)
        where = f" of {root}" if root else ""
        for name, test in tests.items():
            try:
                # Some models compute something else on sdpa than on eager attention: either is
                # right.
                wrong = test(theirs) and test(_eager(theirs))
            except _Ours as error:
                wrong = f"raises {error}"
            except Exception as error:  # the model itself does not do this
                skipped = f"{name}{where}: {_text(error)}"[:160]
                self.found.setdefault("skipped", []).append(skipped)
                continue
            (self.found["wrong"] if wrong else self.found["passed"]).append(
                f"{name}{where}: {wrong}" if wrong else f"{name}{where}"
            )


def _within(name: str, above: str) -> bool:
    return not above or name.startswith(f"{above}.")


def _eager(model: nn.Module) -> nn.Module:
    from transformers import PreTrainedModel

    made = copy.deepcopy(model)
    for part in made.modules():
        if isinstance(part, PreTrainedModel):
            part.config._attn_implementation = "eager"
    return made


_GENERATE = {
    "generate": {},
    "beams": {"num_beams": 3},
    "static cache": {"cache_implementation": "static"},
}


class _Ours(Exception):
    """What the fused model raised."""


def _fused(function: Callable) -> Any:
    try:
        return function()
    except Exception as error:
        raise _Ours(_text(error)) from error


def _both(
    theirs: nn.Module,
    ours: nn.Module,
    given: dict[str, Any],
    seen: Tensor | None = None,
    method: str = "forward",
) -> str:
    """Forward and gradients, against float64 where the model has it; what is wrong. seen: which
    tokens are no padding, and count."""
    own, slopes = _run(theirs, given, seen, method)
    out, gradients = _fused(lambda: _run(ours, given, seen, method))
    try:
        truth, expected = _run(copy.deepcopy(theirs).double(), _double(given), seen, method)
    except Exception:
        truth, expected = own, slopes
    error, allowed = _passes.apart(out, truth), _passes.apart(own, truth)
    if not (error <= FORWARD or error <= 10 * allowed):
        return f"differs by {error:.0e}"
    worst, allowed = (_worst(each, expected) for each in (gradients, slopes))
    if not (worst <= BACKWARD or worst <= 10 * allowed):
        return f"gradients differ by {worst:.0e}"
    return ""


def _double(given: dict[str, Any]) -> dict[str, Any]:
    return {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in given.items()
    }


def _run(
    model: nn.Module, given: dict[str, Any], seen: Tensor | None, method: str
) -> tuple[list[Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    found = list(_passes.tensors(_passes.called(model, method, given)))
    if seen is not None:
        found = [
            x * seen.view(*seen.shape, *[1] * (x.dim() - 2)) if x.shape[:2] == seen.shape else x
            for x in found
        ]
    trained = [each for each in found if each.requires_grad]
    if trained:
        weights = torch.sin(torch.arange(trained[0].numel()) * 0.37).view_as(trained[0])
        (trained[0] * weights.to(trained[0].dtype)).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return [each.detach() for each in found], gradients


def _worst(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest error of a gradient, as a part of the largest one in the model."""
    if ours.keys() != theirs.keys():
        return float("inf")
    sums = sum(float(each.sum()) for each in theirs.values())
    if not math.isfinite(sums):  # the model itself has no gradient there
        return 0.0
    largest = max((each.abs().max().item() for each in theirs.values()), default=1.0)
    errors = [(ours[n].double() - theirs[n].double()).abs().max().item() for n in ours]
    return max(errors, default=0.0) / max(largest, 1e-12)


def _generated(theirs: nn.Module, ours: nn.Module, given: dict[str, Any], more: dict) -> str:
    how = {
        "max_new_tokens": 8,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_logits": True,
        **more,
    }
    prompt = {"input_ids": given["input_ids"]}
    prompt |= {k: v for k, v in given.items() if not k.startswith("decoder_")}
    with torch.no_grad():
        torch.manual_seed(0)
        expected = theirs.generate(**prompt, **how)
        torch.manual_seed(0)
        found = _fused(lambda: ours.generate(**prompt, **how))
    if found.sequences.equal(expected.sequences):
        return ""
    error = _passes.apart(found.logits[0], expected.logits[0])
    return f"other tokens; the first logits differ by {error:.0e}"
