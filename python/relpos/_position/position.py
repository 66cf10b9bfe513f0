"""A position of one scheme, as a torch module."""

from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import plain_option
from relpos._base.errors import kind_of, wrong_type
from relpos._position.initialise import initial
from relpos._position.part import Given, Part, with_values
from relpos._position.registry import Scheme, sizes
from relpos._position.sum import PositionModule


class SchemePosition(Part, PositionModule):
    """A position of one scheme. Fixed values are buffers outside the state dict, always float32
    or float64, and follow the module's device."""

    scheme: Scheme

    def __init__(self, **options: Any) -> None:
        super().__init__()
        for option in self.scheme.options:
            options[option.name] = plain_option(option.name, options[option.name])
        description = self.scheme.describe(**options)
        self._text, self._arguments = description.text, description.arguments
        self._specs = [spec for spec in description.parameters if not spec.input]
        self._inputs = [spec for spec in description.parameters if spec.input]
        paths = [tuple(spec.name.split(".")) for spec in self._specs]
        self._places = [
            (p[:-1], p[-1], spec.trainable) for p, spec in zip(paths, self._specs, strict=True)
        ]
        self._rotary_dims = description.rotary_dims
        self._rotary_heads = description.rotary_heads
        self._turns_by_inputs = bool(self._rotary_dims and self._inputs)
        self._reads_length = description.reads_length
        self._reads_positions = description.reads_positions
        self._places_tokens = description.places_tokens
        ordered = [*self._specs, *self._inputs]
        self._cumulative = [n for n, spec in enumerate(ordered) if spec.cumulative]
        for spec in self._specs:
            owner, name = self._owner(spec.name)
            values = initial(spec)
            if spec.trainable:
                owner.register_parameter(name, torch.nn.Parameter(values))
            else:
                owner.register_buffer(name, values, persistent=False)
        for name, value in description.options.items():
            if not hasattr(self, name):  # a parameter may have the name of the option that fills it
                setattr(self, name, value)

    def _owner(self, dotted: str) -> tuple[torch.nn.Module, str]:
        """The module that holds a parameter, made where it is missing, and the last name."""
        *path, name = dotted.split(".")
        owner: torch.nn.Module = self
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, torch.nn.Module())
            owner = owner._modules[step]
        return owner, name

    def _held(self) -> list[Tensor]:
        """Parameters and fixed values, read without Module.__getattr__, which is slow."""
        found = []
        for path, name, trainable in self._places:
            owner: torch.nn.Module = self
            for step in path:
                owner = owner._modules[step]
            value = (owner._parameters if trainable else owner._buffers).get(name)
            found.append(getattr(owner, name) if value is None else value)
        return found

    def _values(self) -> list[Tensor]:
        if self._inputs:
            raise ValueError(f"position: {self._wanted()}, got the position alone")
        return self._held()

    def _wanted(self) -> str:
        names = ", ".join(spec.name for spec in self._inputs)
        inputs = ", ".join(f"{spec.name} {sizes(spec.shape)}" for spec in self._inputs)
        return (
            f"{type(self).__name__} needs {inputs} for each call: expected it called, as in "
            f"position=position({names})"
        )

    def forward(self, *inputs: Tensor, **named: Tensor) -> Given:
        """The position of one call, given its inputs by place or by name (see describe())."""
        if not self._inputs:
            raise ValueError(
                f"{type(self).__name__}: has no inputs of a call; expected position=position, got "
                "it called"
            )
        names = [spec.name for spec in self._inputs]
        given = {**dict(zip(names, inputs, strict=False)), **named}
        if len(inputs) + len(named) != len(names) or given.keys() != set(names):
            got = [f"{len(inputs)} by place", *named]
            raise ValueError(f"position: {self._wanted()}, got {', '.join(got)}")
        for name, tensor in given.items():
            if not isinstance(tensor, Tensor):
                raise wrong_type(name, "a tensor", kind_of(tensor))
        values = [*self._held(), *[given[name] for name in names]]
        return with_values(self, values)

    def _apply(self, fn: Any, recurse: bool = True) -> "SchemePosition":
        super()._apply(fn, recurse)
        for spec in self._specs:
            if not spec.trainable:
                owner, name = self._owner(spec.name)
                moved = getattr(owner, name)
                wide = moved.dtype == torch.float64
                values = initial(spec, torch.float64 if wide else torch.float32)
                owner._buffers[name] = values.to(moved.device)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for spec in self._specs:
            if prefix + spec.name in state_dict:
                continue
            for origin in spec.origins:
                if prefix + origin.name in state_dict:
                    value = state_dict.pop(prefix + origin.name)
                    state_dict[prefix + spec.name] = value.mT if origin.transposed else value
                    break
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def origin_state_dict(self, project: str) -> dict[str, Tensor]:
        """The parameters under a project's names and in its form, for its own loader.

        load_state_dict accepts these names as well as those of relpos. describe() and
        docs/schemes.md list the projects. Raises ValueError where `project` has no name for a
        parameter under these options.
        """
        state = {}
        for spec, value in zip(self._specs, self._held(), strict=True):
            if not spec.trainable:
                continue
            named = [origin for origin in spec.origins if origin.project == project]
            if not named:
                known = sorted({origin.project for origin in spec.origins})
                raise ValueError(
                    f"project: expected one that has {spec.name} of {self._text}: "
                    f"{', '.join(known) or 'none is known'}; got {project!r}"
                )
            value = value.detach()
            state[named[0].name] = value.mT.contiguous() if named[0].transposed else value
        return state

    def reset_parameters(self) -> None:
        """Initialises the trainable parameters again."""
        with torch.no_grad():
            for spec, value in zip(self._specs, self._held(), strict=True):
                value.copy_(initial(spec))

    def describe(self) -> str:
        lines = [f"{self._text}: {self.scheme.summary}", f"  from {self.scheme.source}"]
        for spec, value in zip(self._specs, self._held(), strict=True):
            kind = "parameter" if isinstance(value, torch.nn.Parameter) else "fixed"
            dtype = str(value.dtype).removeprefix("torch.")
            lines.append(f"  {kind} {spec.name} {sizes(value.shape)} {dtype}: {spec.doc}")
            for origin in spec.origins:
                form = ", transposed" if origin.transposed else ""
                lines.append(f"    in {origin.project}: {origin.name}{form}")
        for spec in self._inputs:
            lines.append(f"  input {spec.name} {sizes(spec.shape)}, of each call: {spec.doc}")
        return "\n".join(lines)

    def extra_repr(self) -> str:
        return self._arguments
