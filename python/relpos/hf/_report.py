"""relpos.hf.report: what is fused in each layer of a model, what is not, and why."""

from dataclasses import dataclass

from torch import nn

from relpos.hf import _interface
from relpos.hf._discover import attention_modules, implementation
from relpos.hf._state import STATUS
from relpos.hf._transformers import interfaces


@dataclass(frozen=True)
class LayerReport:
    """One attention module: its name and class, what computes it and why.

    state: "fused" (the kernel computes attention and positions), "attention" (the kernel computes
    attention, the model computes its positions) or "untouched".
    """

    name: str
    kind: str
    state: str
    why: str


@dataclass(frozen=True)
class Report:
    """The attention modules of a model, in order; it prints as a table."""

    model: str
    layers: tuple[LayerReport, ...]

    def __str__(self) -> str:
        fused = sum(layer.state == "fused" for layer in self.layers)
        head = f"{self.model}: {fused} of {len(self.layers)} attention layers fused"
        rows = [(layer.name, layer.kind, layer.state, layer.why) for layer in self.layers]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        return "\n".join(
            [
                head,
                *(
                    "  "
                    + "  ".join(text.ljust(w) for text, w in zip(row[:3], widths, strict=True))
                    + f"  {row[3]}"
                    for row in rows
                ),
            ]
        )


def report(model: nn.Module) -> Report:
    """What is fused in each attention layer of a transformers model, what is not, and why.

    Raises ImportError if transformers is not installed or lacks an interface that relpos needs.
    """
    interfaces()
    layers = [
        LayerReport(name, type(module).__name__, *_state(module, owner))
        for name, module, owner in attention_modules(model)
    ]
    return Report(type(model).__name__, tuple(layers))


def _state(module: nn.Module, owner: nn.Module | None) -> tuple[str, str]:
    runs = implementation(owner)
    if runs in _interface.POSITIONS:
        return "attention", f"with the position of {runs!r}; others are computed by the model"
    on_relpos = runs == _interface.NAME
    state, why = vars(module).get(STATUS, ("", ""))
    if state in ("fused", "attention") and not on_relpos:
        return "untouched", f"{state}, but attn_implementation is now {runs!r}"
    if state:
        return state, why
    if on_relpos and owner._can_set_attn_implementation():
        return "attention", "position term as the model computes it; call relpos.hf.fuse"
    return "untouched", f"runs on {runs!r}; call relpos.hf.fuse"
