"""The classes of positions: one for each scheme of the registry."""

from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import integer
from relpos._base.errors import wrong_value
from relpos._base.tensors import check_rank
from relpos._position import operators
from relpos._position.part import grid_of
from relpos._position.position import SchemePosition
from relpos._position.registry import ParameterSpec, Scheme, schemes, sizes
from relpos._position.rope_config import asked_for


class Rotary(SchemePosition):
    """A position with a rotation."""

    @staticmethod
    def from_config(config: Any, *, layer_type: str | None = None) -> SchemePosition:
        """The rotation that a model with this configuration of transformers applies.

        Args:
          config: a text configuration, with rope_parameters, or rope_theta and rope_scaling as
            before transformers 5.
          layer_type: which layers, where the configuration has a rotation for each type of layer.

        Returns the position for the configuration's rope_type, with angles computed as
        transformers computes them. Raises ValueError where relpos has no class for it.
        """
        name, options = asked_for(config, layer_type)
        return CLASSES[name](**options)

    def dense(  # type: ignore[override]
        self, queries: int, keys: int, q_offset: int | None = None, which: str = "key"
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The tables of queries at q_offset + i and of keys at j."""
        queries, keys, offset = grid_of(queries, keys, q_offset)
        if which != "key":
            raise wrong_value("which", "'key' for a rotation", repr(which))
        return self.tables(queries, offset), self.tables(keys)

    def tables(
        self, length: int, offset: int = 0, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """cos, sin [length, rotary_dim] of the positions offset, offset + 1, ... Each angle occurs
        twice, as the pair layout says. Where heads learn their frequencies, the tables are
        [kv_heads, length, rotary_dim], of the frequencies' dtype, and differentiable."""
        length, offset = integer("length", length, 0), integer("offset", offset)
        values, sizes = self._values(), (self._rotary_heads, self._rotary_dims)
        if dtype is None:
            own = values[0].dtype if self._rotary_heads else torch.get_default_dtype()
            dtype = torch.float64 if own == torch.float64 else torch.float32
        return operators.rotary_tables(self._text, length, offset, *sizes, dtype, values)

    def rotate(self, x: Tensor, offset: int = 0, positions: Tensor | None = None) -> Tensor:
        """x [..., L, D] rotated; row n is at position offset + n, or at positions[n], int64 [L].
        Where heads learn their own frequencies, x is [..., heads, L, D]."""
        check_rank("x", x, 2, "[..., L, D]", or_more=True)
        offset = integer("offset", offset)
        folded = x.flatten(0, -4) if x.dim() > 4 else x
        out = operators.rotate(folded, self._text, offset, positions, False, self._values())
        return out.view(x.shape) if x.dim() > 4 else out


def class_of(scheme: Scheme) -> type[SchemePosition]:
    signature = scheme.signature()

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **scheme.by_name(kwargs))
        except TypeError as error:
            raise TypeError(f"{scheme.class_name}{signature}: {error}") from None
        bound.apply_defaults()
        SchemePosition.__init__(self, **bound.arguments)

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = Signature([own, *signature.parameters.values()])
    __init__.__qualname__ = f"{scheme.class_name}.__init__"
    description = scheme.describe(**scheme.example())
    return type(
        scheme.class_name,
        (Rotary if description.rotary_dims else SchemePosition,),
        {
            "__init__": __init__,
            "__module__": __name__.removesuffix("._position.classes"),
            "__doc__": _doc(scheme, [s for s in description.parameters if s.input]),
            "__signature__": signature,
            "scheme": scheme,
        },
    )


def _doc(scheme: Scheme, inputs: list[ParameterSpec]) -> str:
    lines = [scheme.headline, "", f"Source: {scheme.source}.", "", "Options:"]
    for option in scheme.options:
        choices = f" One of {', '.join(map(repr, option.choices))}." if option.choices else ""
        also = f" Also: {', '.join(option.aliases)}." if option.aliases else ""
        lines.append(f"  {option.name}: {option.doc}{choices}{also}")
    if inputs:
        names = ", ".join(spec.name for spec in inputs)
        lines += ["", f"Inputs of each call, position({names}):"]
        lines += [f"  {spec.name} {sizes(spec.shape)}: {spec.doc}" for spec in inputs]
    lines += [
        "",
        "The methods dense, indices, steps and describe show it; a + b adds two positions.",
    ]
    return "\n".join(lines)


CLASSES: dict[str, type[SchemePosition]] = {s.class_name: class_of(s) for s in schemes()}
