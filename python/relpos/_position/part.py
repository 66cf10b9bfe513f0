"""One part of a position, and what a call asks of the parts of its position."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._base.arguments import integer
from relpos._position import operators
from relpos._position.sum import Composed, Steps, flatten

_STEP_DTYPES = {"integer": torch.int64, "boolean": torch.bool}


class Part(Composed):
    """One scheme: its canonical text and its tensors."""

    _text: str
    _reads_length: bool  # its terms depend on the length of the call
    _reads_positions: bool  # its terms depend on where tokens stand
    _places_tokens: bool  # tokens stand elsewhere than at their numbers
    _turns_by_inputs: bool  # it is a rotation by coordinates that are given with each call
    _cumulative: Sequence[int]  # which of its values are read as their sums along the last axis

    def _parts(self) -> list["Part"]:
        return [self]

    def _values(self) -> list[Tensor]:
        """The tensors of a call: parameters, then inputs."""
        raise NotImplementedError

    def _read(self) -> list[Tensor]:
        """_values for what reads their memory without the dispatcher."""
        return [x.resolve_neg() if isinstance(x, Tensor) else x for x in self._values()]

    def dense(
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> Tensor:
        grid = grid_of(queries, keys, q_offset)
        return operators.dense(self._text, *grid, which, self._values())

    def indices(self, queries: int, keys: int, q_offset: int | None = None) -> Tensor:
        queries, keys, offset = grid_of(queries, keys, q_offset)
        out = torch.empty(queries, keys, dtype=torch.int64, device="cpu")
        _core.indices(self._text, queries, keys, offset, self._read(), out)
        return out

    def steps(self, queries: int, keys: int, q_offset: int | None = None) -> Steps:
        grid = grid_of(queries, keys, q_offset)
        found = _core.steps(self._text, *grid, self._read())
        return [(name, _matrix(kind, shape, values)) for name, kind, shape, values in found]


class Given(Part):
    """One scheme with tensors from elsewhere: those of another library's model, or the parameters
    of a position with the inputs of one call. `of`: the part whose tensors they replace."""

    def __init__(self, text: str, values: Sequence[Tensor], of: Part | None = None) -> None:
        self._text = text
        self._tensors = list(values)
        self._reads_length = of is not None and of._reads_length
        self._reads_positions = of is None or of._reads_positions
        self._places_tokens = of is not None and of._places_tokens
        self._turns_by_inputs = of is not None and of._turns_by_inputs
        self._cumulative = () if of is None else of._cumulative

    def _values(self) -> list[Tensor]:
        return self._tensors

    def describe(self) -> str:
        return self._text


def with_values(part: Part, values: Sequence[Tensor]) -> Given:
    """The part with other tensors of a call."""
    return Given(part._text, values, part)


def text_of(position: Any) -> str:
    """The canonical text of a position, as the operators take it."""
    return "+".join([part._text for part in flatten(position)])


def values_of(position: Any) -> list[Tensor]:
    """The tensors of a position, as the operators take them: of each part, parameters, then
    inputs."""
    return [value for part in flatten(position) for value in part._values()]


def flat(position: Any) -> tuple[str, Sequence[Tensor]]:
    """Both, in the shortest time where a call has one part."""
    if isinstance(position, Part):
        return position._text, position._values()
    parts = flatten(position)
    return text_of(parts), values_of(parts)


def reads_length(position: Any) -> bool:
    """Whether its terms depend on the length of the call."""
    return any(part._reads_length for part in flatten(position))


def reads_positions(position: Any) -> bool:
    """Whether its terms depend on where tokens stand."""
    return any(part._reads_positions for part in flatten(position))


def refuse_length(position: Any, why: str, then: str = "") -> None:
    """Raises ValueError for a part that depends on the length of the call."""
    for part in flatten(position):
        if part._reads_length:
            raise ValueError(
                f"position: {part._text} depends on the length of the call, {why}: expected its "
                f"option length=, got None{then}"
            )


def places_tokens(position: Any) -> bool:
    """Whether tokens stand elsewhere than at their numbers."""
    return any(part._places_tokens for part in flatten(position))


def turns_by_inputs(position: Any) -> bool:
    """Whether it turns by coordinates that are given with each call."""
    return any(part._turns_by_inputs for part in flatten(position))


def cumulative(part: Part) -> Sequence[int]:
    """Which of its values are read as their sums along the last axis."""
    return part._cumulative


def grid_of(queries: Any, keys: Any, q_offset: Any) -> tuple[int, int, int]:
    """How many queries and keys, and where query 0 is."""
    queries, keys = integer("queries", queries, 0), integer("keys", keys, 0)
    if q_offset is not None:
        return queries, keys, integer("q_offset", q_offset)
    return queries, keys, 0 if queries == keys else _core.grid_offset(queries, keys, None)


def _matrix(kind: str, shape: tuple[int, ...], values: bytes) -> Tensor:
    dtype = _STEP_DTYPES.get(kind) or torch.get_default_dtype()
    if not values:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(values), dtype=torch.float64).reshape(shape).to(dtype)
