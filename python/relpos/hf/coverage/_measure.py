"""One model type: a small model with random weights, fused, against its own float64."""

import copy
import inspect
import math
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf import _passes
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
    roots = _roots(model)
    if not any(_compared(root, model, fused, found) for root in roots):
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
            if parameter.dim() > 1 and parameter.is_floating_point():
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


_ROTATES = re.compile(r"rotary|rope|rotate_|apply_rot|freqs_cis", re.IGNORECASE)
_OTHER = re.compile(
    r"relative|position_bias|pos_bias|bias_table|alibi|rel_pos|distance_emb|attention_bias", re.I
)


def position(kind: type) -> str:
    """What the text of an attention class speaks of: "rotates", "other" position or "plain"."""
    text = ""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.") or base is object:
            break
        try:
            text += inspect.getsource(base)
        except (OSError, TypeError):
            continue
    if _ROTATES.search(text):
        return "rotates"
    return "other" if _OTHER.search(text) else "plain"


def _roots(model: nn.Module) -> list[str]:
    """The whole model, and models in it with attention that a call of the whole may not reach."""
    from transformers import PreTrainedModel

    return [
        name
        for name, part in model.named_modules()
        if isinstance(part, PreTrainedModel) and any(True for _ in attention_modules(part))
    ][:6]


def _compared(root: str, model: nn.Module, fused: nn.Module, found: dict[str, Any]) -> bool:
    theirs, ours = model.get_submodule(root), fused.get_submodule(root)
    given = next((each for each in calls(theirs, 9) if _passes.can_run(theirs, each)), None)
    if given is None:
        return False
    where = f" of {root}" if root else ""
    tests: list[tuple[str, Callable]] = [("forward", lambda by: _both(by, ours, given))]
    names = inspect.signature(theirs.forward).parameters
    if isinstance(given.get("input_ids"), Tensor):
        tokens = given["input_ids"]
        if "attention_mask" in names:
            seen = torch.ones_like(tokens)
            seen[1, 2] = seen[1, -1] = 0
            padded = given | {"attention_mask": seen}
            tests.append(("padding", lambda by: _both(by, ours, padded, seen)))
        if not root and hasattr(model, "generate") and model.can_generate():
            for how, more in _GENERATE.items():
                tests.append((how, lambda by, more=more: _generated(by, ours, given, more)))
    for name, test in tests:
        try:
            # Some models compute something else on sdpa than on eager attention: either is right.
            wrong = test(theirs) and test(_eager(theirs))
        except _Ours as error:
            wrong = f"raises {error}"
        except Exception as error:  # the model itself does not do this
            found.setdefault("skipped", []).append(f"{name}{where}: {_text(error)}"[:160])
            continue
        (found["wrong"] if wrong else found["passed"]).append(
            f"{name}{where}: {wrong}" if wrong else f"{name}{where}"
        )
    return True


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
    theirs: nn.Module, ours: nn.Module, given: dict[str, Any], seen: Tensor | None = None
) -> str:
    """Forward and gradients, against float64 where the model has it; what is wrong. seen: which
    tokens are no padding, and count."""
    own, slopes = _run(theirs, given, seen)
    out, gradients = _fused(lambda: _run(ours, given, seen))
    try:
        truth, expected = _run(copy.deepcopy(theirs).double(), _double(given), seen)
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
    model: nn.Module, given: dict[str, Any], seen: Tensor | None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    found = list(_passes.tensors(model(**given)))
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
