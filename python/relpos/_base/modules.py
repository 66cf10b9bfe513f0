"""Modules around what is none."""

from collections.abc import Callable
from typing import Any

import torch


class Reading(torch.nn.Module):
    """A function that reads a Module, its owner, as a Module: torch.func.functional_call replaces
    the tensors of the owner, named owner.NAME, while it runs."""

    def __init__(self, owner: torch.nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.owner, self.function = owner, function

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)
