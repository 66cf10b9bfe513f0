"""Positions as texts and arrays, as relpos.numpy and relpos.jax take them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from relpos import _core
from relpos._base.errors import kind_of, wrong_type, wrong_value
from relpos._position.registry import Description, ParameterSpec, schemes, sizes, term_schemes


class Slot(NamedTuple):
    """One tensor of a position."""

    name: str  # "t5.relative_attention_bias.weight"
    spec: ParameterSpec

    @property
    def given(self) -> bool:
        """Whether the caller gives it; other values follow from the options."""
        return self.spec.input or self.spec.trainable

    def filled(self, dtype: Any) -> np.ndarray:
        """The values that follow from the options."""
        values = np.asarray(self.spec.values, dtype)
        array = np.broadcast_to(values, self.spec.shape) if len(values) == 1 else values
        return array.reshape(self.spec.shape)


class Read(NamedTuple):
    """A text, read."""

    text: str  # canonical
    parts: tuple[Description, ...]
    slots: tuple[Slot, ...]


@lru_cache(maxsize=1024)
def read(text: str) -> Read:
    """Raises ValueError with the nearest scheme's name where there is none."""
    if not text:
        return Read("", (), ())
    known = {scheme.name: scheme for scheme in (*schemes(), *term_schemes())}
    parsed = [(name, known[name].describe(**options)) for name, options in _core.parse(text, {})]
    slots = [Slot(f"{name}.{spec.name}", spec) for name, of in parsed for spec in of.parameters]
    parts = tuple(description for _, description in parsed)
    return Read("+".join(part.text for part in parts), parts, tuple(slots))


def read_position(position: Any) -> Read:
    if position is not None and not isinstance(position, str):
        then = "positions of relpos' classes are PyTorch's"
        wanted = "None or a text such as 't5(heads=8)'"
        raise wrong_type("position", wanted, kind_of(position), then)
    return read(position or "")


def dealt(found: Read, parameters: Sequence[Any]) -> list[Any]:
    """What is given to each slot in order, None for values that follow from the options."""
    if not isinstance(parameters, (list, tuple)):
        raise wrong_type("parameters", "a list of arrays", kind_of(parameters))
    wanted = [slot for slot in found.slots if slot.given]
    if len(parameters) != len(wanted):
        named = ", ".join(f"{slot.name} {sizes(slot.spec.shape)}" for slot in wanted) or "none"
        of = found.text or "no position"
        raise wrong_value("parameters", f"those of {of}: {named}", f"{len(parameters)} arrays")
    following = iter(parameters)
    return [next(following) if slot.given else None for slot in found.slots]
