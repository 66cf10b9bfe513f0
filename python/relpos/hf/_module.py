"""What the forward of an attention module on relpos consists of, whatever its class."""

from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf._interface import attend


def by_head(states: Tensor, head_dim: int, *projections: nn.Module) -> list[Tensor]:
    """The projections of states [B, L, d], each [B, H, L, head_dim]."""
    return [
        project(states).unflatten(-1, (-1, head_dim)).transpose(1, 2) for project in projections
    ]


def attended(*given: Any, weights: bool = False, **options: Any) -> tuple[Tensor, Tensor | None]:
    """attend's output as [B, Lq, H Dv], and the weights if they are requested."""
    out = attend(*given, weights=weights, **options)
    out, found = out if weights else (out, None)
    return out.transpose(1, 2).flatten(2), found


def wants_weights(given: dict[str, Any]) -> bool:
    """Whether a module is to return its weights: its model says so in the call, or records what
    its modules return."""
    if given.get("output_attentions"):
        return True
    if torch.compiler.is_compiling():
        return False
    from transformers.utils import output_capturing

    recorder = getattr(output_capturing, "_active_collector", None)
    recorded = None if recorder is None else recorder.get()
    return bool(recorded) and any("attentions" in name for name in recorded)
