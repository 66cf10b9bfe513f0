"""Swin and its kin: a bias of the offset within a window, read from a table or from a network."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import with_values
from relpos._position.sum import Composed
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._module import attended, by_head, wants_weights
from relpos.hf._trial import Compared, copied, draw, prove
from relpos.terms import DistanceBias


class _Attention:
    """SwinAttention.forward on relpos, for windows [B windows, tokens, d]."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        table = self.relative_position_bias.relative_position_bias_table
        mask, position = _terms(self, table, attention_mask, query)
        out, weights = attended(
            query,
            key,
            value,
            mask,
            position=position,
            dropout=self.attention_dropout if self.training else 0.0,
            scale=self.scaling,
            weights=wants_weights(kwargs),
        )
        return self.o_proj(out), weights


class _SelfAttention:
    """The forward of DonutSwinSelfAttention and its copies on relpos."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, ...]:
        query, key, value = by_head(
            hidden_states, self.attention_head_size, self.query, self.key, self.value
        )
        mask, position = _terms(self, self.relative_position_bias_table, attention_mask, query)
        out, *weights = attended(
            query,
            key,
            value,
            mask,
            position=position,
            dropout=self.dropout.p if self.training else 0.0,
            weights=bool(output_attentions),
        )
        return (out, *weights) if output_attentions else (out,)


class _CosineAttention:
    """The forward of Swinv2SelfAttention and its copies on relpos: cosines in the place of
    products, a scale of each head, and the mask as often as the class adds it."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, ...]:
        query, key, value = by_head(
            hidden_states, self.attention_head_size, self.query, self.key, self.value
        )
        if attention_mask is not None:
            attention_mask = attention_mask * self._relpos_times
        scale = self.logit_scale.clamp(max=math.log(1.0 / 0.01)).exp()
        network = self.continuous_position_bias_mlp(self.relative_coords_table)
        table = 16 * network.view(-1, self.num_attention_heads).sigmoid()
        mask, position = _terms(self, table, attention_mask, query)
        out, *weights = attended(
            nn.functional.normalize(query, dim=-1) * scale,
            nn.functional.normalize(key, dim=-1),
            value,
            mask,
            position=position,
            dropout=self.dropout.p if self.training else 0.0,
            scale=1.0,
            weights=bool(output_attentions),
        )
        return (out, *weights) if output_attentions else (out,)


def _terms(
    module: nn.Module, table: Tensor, mask: Tensor | None, query: Tensor
) -> tuple[Tensor | None, list[Composed]]:
    """The mask and the position of a call, for the windows of all images; mask: [windows, L, L] of
    one image. Raises ValueError for tokens that are not those of the window."""
    height, width = module._relpos_window
    if query.shape[2] != height * width:
        raise ValueError(
            f"hidden_states: expected the {height * width} tokens of a window of {height} x "
            f"{width}, got {query.shape[2]}"
        )
    position: list[Composed] = [with_values(module._relpos_position, [table])]
    if mask is None:
        return None, position
    images = len(query) // len(mask)
    regions = _regions(mask)
    if regions is None:
        return mask.repeat(images, 1, 1)[:, None], position
    numbers, apart = regions
    numbers = numbers.repeat(images, 1)
    return None, [*position, DistanceBias(apart, 1 - query.shape[2], along=(numbers, numbers))]


def _regions(mask: Tensor) -> tuple[Tensor, Tensor] | None:
    """Of a mask of shifted windows, which adds one number to the pairs of two regions: the number
    of each token's region [windows, L], and the table [1, 2 L - 1] by their difference. None for
    another mask. A mask of numbers takes the kernel twice as long, one of regions no longer."""
    if torch.compiler.is_compiling() or mask.requires_grad or not mask.is_floating_point():
        return None
    numbers = (mask == 0).to(torch.uint8).argmax(-1)  # the first token that is in it
    value = mask.amin()
    if not torch.equal(mask, torch.where(numbers[:, :, None] == numbers[:, None], 0.0, value)):
        return None
    tokens = mask.shape[-1]
    apart = value.expand(1, 2 * tokens - 1).clone()
    apart[0, tokens - 1] = 0.0
    return numbers, apart


def _planned(mixin: type, module: nn.Module, window: Any, **state: Any) -> Plan:
    height, width = (int(side) for side in window)
    position = relpos.SwinBias(module.num_attention_heads, window=[height, width])
    state |= {"_relpos_position": position, "_relpos_window": (height, width)}
    plan = Plan(f"bias of offsets in a window of {height} x {width} in the kernel", mixin, state)
    prove(_with_indices(module), plan, _calls(module, height * width), implementation=NAME)
    return plan


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    return _planned(_Attention, module, module.relative_position_bias.window_size)


def _plan_self(module: nn.Module, owner: nn.Module) -> Plan:
    return _planned(_SelfAttention, module, module.window_size)


def _plan_cosine(module: nn.Module, owner: nn.Module) -> Plan:
    try:
        return _planned(_CosineAttention, module, module.window_size, _relpos_times=2)
    except Unfused:
        return _planned(_CosineAttention, module, module.window_size, _relpos_times=1)


def _with_indices(module: nn.Module) -> nn.Module:
    """The module, or a copy of one of meta tensors with the numbers that its class computes."""
    if not any(buffer.is_meta for buffer in module.buffers()):
        return module
    found = copied(module)
    for part in found.modules():
        if hasattr(part, "create_coords_table_and_index"):
            made = part.create_coords_table_and_index()
            part.relative_coords_table, part.relative_position_index = made
        elif hasattr(part, "create_relative_position_index"):
            part.relative_position_index = part.create_relative_position_index()
        elif hasattr(part, "_create_relative_position_index"):
            part.relative_position_index = part._create_relative_position_index().view(-1)
    return found


def _calls(module: nn.Module, tokens: int) -> Iterator[Compared]:
    """One window, and two images of three windows, with a mask of numbers and one of regions."""
    width = module.num_attention_heads * (
        module.head_dim if hasattr(module, "head_dim") else module.attention_head_size
    )
    numbers = torch.arange(3)[:, None] * torch.arange(tokens) // max(tokens, 3)
    regions = torch.where(numbers[:, :, None] == numbers[:, None], 0.0, -1.5)
    for rows, mask in ((1, None), (6, draw(3, tokens, tokens)), (6, regions)):
        given = {"hidden_states": draw(rows, tokens, width), "attention_mask": mask}
        yield Compared(given, given)


ADAPTERS = [
    Adapter(("SwinAttention",), _plan),
    Adapter(
        ("DonutSwinSelfAttention", "MaskFormerSwinSelfAttention", "ClapAudioSelfAttention"),
        _plan_self,
    ),
    Adapter(("Swinv2SelfAttention", "Swin2SRSelfAttention"), _plan_cosine),
]
