"""BEiT and Data2Vec for images: a bias of the offset of two patches, and three numbers of [CLS]."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos._position.position import SchemePosition
from relpos.hf._adapter import Adapter, Plan
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask, NotATensor
from relpos.hf._module import attended, by_head, wants_weights
from relpos.hf._trial import Compared, draw, masks, padded, prove, repeated, twin


class _Added(NotATensor):
    """What the model adds up for the scores: biases, a dense bias, and a mask."""

    def __init__(
        self,
        biases: tuple[Given, ...] = (),
        dense: Tensor | None = None,
        mask: Mask | Tensor | None = None,
    ) -> None:
        super().__init__("its position bias")
        self.biases, self.dense, self.mask = biases, dense, mask

    def __add__(self, other: "_Added | Mask | Tensor") -> "_Added":
        if not isinstance(other, _Added):
            other = _Added(mask=other)
        if isinstance(self.mask, Mask) and isinstance(other.mask, Mask):
            return self._refuse()
        dense, mask = (
            b if a is None else a if b is None else a + b
            for a, b in ((self.dense, other.dense), (self.mask, other.mask))
        )
        return _Added(self.biases + other.biases, dense, mask)

    __radd__ = __add__


class _Attention:
    """BeitAttention.forward on relpos; the mask is what _lazy_bias makes, with or without one."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: _Added | Mask | Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if not isinstance(attention_mask, _Added):
            attention_mask = _Added(mask=attention_mask)
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        out, weights = attended(
            query,
            key,
            value,
            attention_mask.mask,
            position=list(attention_mask.biases) or None,
            bias=attention_mask.dense,
            dropout=self.attention_dropout if self.training else 0.0,
            scale=self.scaling,
            weights=wants_weights(kwargs),
        )
        return self.o_proj(out), weights


class _SelfAttention:
    """Data2VecVisionSelfAttention.forward on relpos, which holds its bias itself."""

    def forward(
        self,
        hidden_states: Tensor,
        output_attentions: bool = False,
        relative_position_bias: _Added | Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        resolution: tuple[int, int] | None = None,
    ) -> tuple[Tensor, ...]:
        added = _Added()
        if self.has_relative_position_bias:
            window = [side // self.config.patch_size for side in resolution]
            of_module = self.relative_position_bias, self._relpos_position
            length = hidden_states.shape[1]
            added = _lazy_bias(*of_module, window, interpolate_pos_encoding, length)
        if relative_position_bias is not None:
            added = added + relative_position_bias
        query, key, value = by_head(
            hidden_states, self.attention_head_size, self.query, self.key, self.value
        )
        out, *weights = attended(
            query,
            key,
            value,
            added.mask,
            position=list(added.biases) or None,
            bias=added.dense,
            dropout=self.dropout.p if self.training else 0.0,
            weights=bool(output_attentions),
        )
        return (out, *weights) if output_attentions else (out,)


def _lazy_bias(
    module: nn.Module,
    position: SchemePosition,
    window_size: Any,
    interpolate_pos_encoding: bool = False,
    dim_size: int | None = None,
) -> _Added:
    """Replaces the forward of BeitRelativePositionBias. position: that of the module's window."""
    height, width = (int(side) for side in window_size)
    if interpolate_pos_encoding and dim_size != height * width + 1:  # it resizes pairs, then
        own = type(module).forward
        return _Added(dense=own(module, window_size, interpolate_pos_encoding, dim_size))
    table = module.relative_position_bias_table
    if (height, width) != tuple(module.window_size):
        position = _scheme(table.shape[1], height, width)
    if (height, width) != tuple(module.window_size) or height != width:
        table = _resized(module, height, width)
    return _Added((with_values(position, [table]),))


@functools.lru_cache(64)
def _scheme(heads: int, height: int, width: int) -> SchemePosition:
    return relpos.BeitBias(heads, window=[height, width])


def _resized(module: nn.Module, height: int, width: int) -> Tensor:
    """The module's table for another window, as the module makes it."""
    table = module.relative_position_bias_table
    of_patches, of_token = table[:-3], table[-3:]
    old = [2 * side - 1 for side in module.window_size]
    image = of_patches.reshape(1, old[1], old[0], -1).permute(0, 3, 1, 2)
    size = (2 * height - 1, 2 * width - 1)
    image = nn.functional.interpolate(image, size=size, mode="bilinear")
    return torch.cat([image.permute(0, 2, 3, 1).flatten(0, 2), of_token])


def _own_scheme(module: nn.Module) -> SchemePosition:
    return _scheme(module.relative_position_bias_table.shape[1], *module.window_size)


def _biases(owner: nn.Module) -> list[nn.Module]:
    """The modules that make biases, of each layer or of all layers."""
    parts = owner.modules()
    return [part for part in parts if hasattr(part, "generate_relative_position_index")]


def _also(modules: list[nn.Module]) -> tuple[tuple[nn.Module, dict], ...]:
    return tuple(
        (each, {"forward": functools.partial(_lazy_bias, each, _own_scheme(each))})
        for each in modules
    )


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    biases = _biases(owner)
    plan = Plan(_what(biases), _Attention, also=_also(biases))
    prove(module, plan, _calls(module, owner, biases[:1]), implementation=NAME)
    return plan


def _what(biases: list[nn.Module]) -> str:
    if not biases:
        return "no positions of its own"
    height, width = biases[0].window_size
    return f"bias of offsets in an image of {height} x {width} and of [CLS] in the kernel"


def _windows(module: nn.Module, owner: nn.Module, biases: list[nn.Module]) -> list:
    own = [tuple(each.window_size) for each in biases if each.window_size[0] <= 20]
    return own if repeated(module, owner) and own else [*own, (3, 5), (4, 4)]


def _calls(module: nn.Module, owner: nn.Module, biases: list[nn.Module]) -> Iterator[Compared]:
    """Windows of the model's and of other sizes, with and without padding."""
    from transformers import masking_utils

    tables = [(twin(each), _own_scheme(each)) for each in biases]
    for window in _windows(module, owner, biases):
        length = window[0] * window[1] + 1
        both = masking_utils.bidirectional_mask_function
        dense, mask = masks(length, length, both, padded(2, length))
        theirs = sum((table(window, True, length) for table, _ in tables), dense)
        ours = _Added(mask=mask)
        for table, position in tables:
            ours = _lazy_bias(table, position, window, True, length) + ours
        given = {"hidden_states": draw(2, length, module.q_proj.in_features)}
        yield Compared({**given, "attention_mask": theirs}, {**given, "attention_mask": ours})


def _plan_self(module: nn.Module, owner: nn.Module) -> Plan:
    shared = [each for each in _biases(owner) if each.window_size and _is_shared(each, owner)]
    own = [module.relative_position_bias] if module.has_relative_position_bias else []
    state = {"_relpos_position": _own_scheme(own[0]) if own else None}
    plan = Plan(_what(own + shared), _SelfAttention, state, also=_also(shared))
    prove(module, plan, _calls_self(module, owner, own, shared), implementation=NAME)
    return plan


def _is_shared(bias: nn.Module, owner: nn.Module) -> bool:
    holders = [part for part in owner.modules() if any(each is bias for each in part.children())]
    return not any("Attention" in type(part).__name__ for part in holders)


def _calls_self(
    module: nn.Module, owner: nn.Module, own: list[nn.Module], shared: list[nn.Module]
) -> Iterator[Compared]:
    patch = module.config.patch_size
    tables = [(twin(each), _own_scheme(each)) for each in shared]
    for window in _windows(module, owner, own + shared):
        length = window[0] * window[1] + 1
        given = {
            "hidden_states": draw(2, length, module.query.in_features),
            "resolution": tuple(patch * side for side in window),
        }
        theirs, ours = dict(given), dict(given)
        for table, position in tables:
            theirs["relative_position_bias"] = table(window, False, length)
            ours["relative_position_bias"] = _lazy_bias(table, position, window, False, length)
        yield Compared(theirs, ours)


ADAPTERS = [
    Adapter(("BeitAttention",), _plan),
    Adapter(("Data2VecVisionSelfAttention", "Data2VecVisionSdpaSelfAttention"), _plan_self),
]
