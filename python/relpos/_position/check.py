"""Which convention of a scheme a tensor of other code follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from relpos import _core
from relpos._base.arguments import plain_option
from relpos._base.errors import kind_of, wrong_type


@dataclass(frozen=True)
class Comparison:
    """One convention beside the tensor."""

    outcome: str  # "fits", "shape" (learned values: the shape alone fits), "differs"
    convention: str
    options: dict[str, Any]  # under which the scheme means the same; empty where it has none
    note: str  # what else speaks for or against it, and what to do with the tensor
    compared: int  # elements; masked ones (-inf, the dtype's lowest) are not
    largest_difference: float  # where it fits
    index: tuple[int, ...]  # the first element that differs
    expected: float
    found: float


@dataclass(frozen=True)
class CheckReport:
    """What a tensor was compared with: conventions that fit, that fit by shape, that differ."""

    verdict: str  # "fits" (one), "ambiguous" (several), "undecided" (by shape), "none"
    comparisons: tuple[Comparison, ...]

    @property
    def readings(self) -> tuple[Comparison, ...]:
        """The conventions that the verdict is about: one, several, or none."""
        outcome = {"fits": "fits", "ambiguous": "fits", "undecided": "shape"}.get(self.verdict)
        return tuple(c for c in self.comparisons if c.outcome == outcome)


@overload
def check(scheme: str, tensor: Tensor, *, name: str = "", **options: Any) -> CheckReport: ...
@overload
def check(
    scheme: str, tensor: Mapping[str, Tensor], *, name: str = "", **options: Any
) -> dict[str, CheckReport]: ...
def check(
    scheme: str, tensor: Tensor | Mapping[str, Tensor], *, name: str = "", **options: Any
) -> CheckReport | dict[str, CheckReport]:
    """Compares a tensor with the conventions that a scheme has in other code.

    Conventions differ in the order of rows, the rule of slopes, the pair layout, the bucket
    variant, and whether the tensor is transposed. The values of a learned tensor do not show its
    convention. Then the report has every convention that the shape allows, with the evidence for
    it from the tensor's name and statistics.

    Args:
      scheme: as in relpos.schemes(): "t5", "alibi", "rope".
      tensor: floating-point or integer; or a state dict, from which the tensors are taken whose
        names are those of the scheme's parameters and buffers in other code.
      name: the name of a single tensor in its checkpoint; it may be evidence for a convention.
      **options: options of the scheme that you know; fewer conventions are then compared.

    Returns:
      a CheckReport, or for a state dict a dict of them by name.

    Raises ValueError on an unknown scheme or option, on a tensor without elements, on learned
    values that are not finite, and on a state dict without such a name; TypeError on a bool tensor.
    """
    given = {key: plain_option(key, value) for key, value in options.items()}
    if isinstance(tensor, Mapping):
        held = {key: value for key, value in tensor.items() if _core.is_held_as(scheme, key)}
        if not held:
            raise ValueError(
                f"tensor: none of the state dict's {len(tensor)} names is one of {scheme}'s: give "
                "the tensor itself"
            )
        return {key: _report(scheme, given, value, key) for key, value in held.items()}
    if not isinstance(tensor, Tensor):
        raise wrong_type("tensor", "a tensor or a state dict", kind_of(tensor))
    return _report(scheme, given, tensor, name)


def _report(scheme: str, given: dict[str, Any], tensor: Tensor, name: str) -> CheckReport:
    if not isinstance(tensor, Tensor):
        raise wrong_type(name, "a tensor", kind_of(tensor))
    tensor = tensor.detach()
    if not tensor.is_meta:  # which has no numbers, as the check itself says
        tensor = tensor.cpu().resolve_neg()
    if tensor.dtype in (torch.int8, torch.int16, torch.uint8):
        tensor = tensor.long()
    verdict, comparisons = _core.check(scheme, given, tensor, name)
    return CheckReport(verdict, tuple(Comparison(**entry) for entry in comparisons))
