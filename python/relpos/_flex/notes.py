"""What a function of a pair reads and adds while it runs: tensors that are none of its results."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relpos._flex.score import Score

_DEEPEST = 100  # sums of sums that are followed
_DIFFERENCES = {"sub", "subtract", "__sub__"}
_SUMS = {"add", "__add__", "__radd__", *_DIFFERENCES}
_PRODUCTS = {"mul", "multiply", "__mul__", "__rmul__"}
# What they give to a sum is the sum of what they give to its parts.
_LINEAR = {"div", "divide", "true_divide", "__truediv__", "neg", "negative", "__neg__"}
_LINEAR |= {"to", "float", "double", *_PRODUCTS}

Summands = Callable[[], list[Tensor]]


class Notes(torch.overrides.TorchFunctionMode):
    """codes: the integers and bools without axes that were read, or by which tensors were read."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.codes: list[Tensor] = []
        self._known = {id(index) for index in given}
        # Of each sum: itself, since its id is its name, how deep it is, and what gives its parts.
        self._sums: dict[int, tuple[Tensor, int, Summands]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            for each in (*index, result):
                self._note(each)
        elif isinstance(result, Tensor) and not isinstance(result, Score) and args:
            self._follow(func, args, kwargs, result)
        return result

    def _note(self, code: Any) -> None:
        if not isinstance(code, Tensor) or code.dim() or id(code) in self._known:
            return
        if not code.is_floating_point() and not code.is_complex():
            self._known.add(id(code))
            self.codes.append(code)

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        if result.dim() or not result.is_floating_point() or any(x is result for x in args):
            return
        name = getattr(func, "__name__", "")
        if name in _SUMS and len(args) == 2 and not kwargs:
            a, b = args

            def of_both() -> list[Tensor]:  # in the precision in which they are added
                first, second = (
                    [x.to(result.dtype) for x in self.summands(of, result.dtype)] for of in (a, b)
                )
                return first + (list(map(torch.neg, second)) if name in _DIFFERENCES else second)

            self._keep(result, args, of_both)
        elif name in _LINEAR and "rounding_mode" not in kwargs:
            at = 1 if name in _PRODUCTS and len(args) == 2 and id(args[0]) not in self._sums else 0
            if id(args[at]) in self._sums and _keeps_numbers(args[at].dtype, result.dtype):

                def of_one() -> list[Tensor]:
                    parts = self.summands(args[at], result.dtype)
                    return [func(*args[:at], x, *args[at + 1 :], **kwargs) for x in parts]

                self._keep(result, args[at : at + 1], of_one)

    def _keep(self, result: Tensor, of: Any, made: Summands) -> None:
        depth = 1 + max(self._sums[id(x)][1] if id(x) in self._sums else 0 for x in of)
        if depth <= _DEEPEST:
            self._sums[id(result)] = result, depth, made

    def summands(self, of: Any, dtype: torch.dtype) -> list[Tensor]:
        """What adds up to it; nothing for the number 0."""
        if not isinstance(of, Tensor):
            return [torch.full((), of, dtype=dtype)] if of else []
        return self._sums[id(of)][2]() if id(of) in self._sums else [of]


def _keeps_numbers(dtype: torch.dtype, other: torch.dtype) -> bool:
    return torch.promote_types(dtype, other) == other
