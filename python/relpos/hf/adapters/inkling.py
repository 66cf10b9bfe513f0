"""Inkling and Inkling 2: profiles over the distance, which each query mixes. Temperature, sinks,
clips and convolutions are the model's own code."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos._position.position import SchemePosition
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias
from relpos.hf._trial import Compared, copied, draw, masks, padded, prove, sizes


class _Mixed(Bias):
    """What the module's profiles give, in place of [B, H, Lq, Lk]: states [B, H, Lq, rank], which
    the temperature of the queries may multiply."""

    def __init__(self, bound: Callable[[Tensor], Given], states: Tensor, q_start: Any) -> None:
        super().__init__(lambda: bound(states), q_start)
        self._bound, self._states = bound, states

    def float(self) -> _Mixed:
        return self.to(torch.float32)

    def to(self, dtype: torch.dtype) -> _Mixed:
        return _Mixed(self._bound, self._states.to(dtype), self.q_start)

    def __mul__(self, tau: Tensor) -> _Mixed:
        """tau: [1, 1, Lq, 1], as for the dense bias."""
        return _Mixed(self._bound, self._states * tau, self.q_start)

    @property
    def dtype(self) -> torch.dtype:
        return self._states.dtype


class _Profiles:
    """The forward of the module's class, whose rel_logits_proj returns a _Mixed."""

    @property
    def rel_logits_proj(self) -> Callable:
        profiles = self._modules["rel_logits_proj"]
        return functools.partial(_lazy_bias, self._relpos_position, profiles)


def _lazy_bias(
    position: SchemePosition,
    profiles: nn.Module,
    relative_states: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
) -> _Mixed:
    bound = functools.partial(_bound, position, profiles)
    start: int | Tensor = 0
    if len(query_positions) != len(key_positions):  # a cache has more keys
        start = query_positions[0] - key_positions[0]
        start = start if torch.compiler.is_compiling() else int(start)
    return _Mixed(bound, relative_states.transpose(1, 2), start)


def _bound(position: SchemePosition, profiles: nn.Module, states: Tensor) -> Given:
    return with_values(position, [profiles.proj, states])


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    profiles = getattr(module, "rel_logits_proj", None)
    if not isinstance(getattr(profiles, "proj", None), Tensor):
        raise Unfused("no rel_logits_proj with profiles of the distance", attention=False)
    rank, extent = profiles.proj.shape
    position = relpos.Inkling(rank, extent)
    what = f"{position._text} in the kernel, mixed by each query"
    plan = Plan(what, _Profiles, {"_relpos_position": position})
    prove(_tempered(module), plan, _calls(module, owner), implementation=NAME)
    return plan


def _tempered(module: nn.Module) -> nn.Module:
    """A copy whose temperature begins within the few tokens of a trial."""
    tried = copied(module, children=False)
    tried.config = copy.deepcopy(module.config)
    if getattr(tried.config, "log_scaling_n_floor", None) is not None:
        tried.config.log_scaling_n_floor = 2
    return tried


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    from transformers import masking_utils

    window, function = module.sliding_window, None
    if window is not None:
        function = masking_utils.sliding_window_causal_mask_function(window)
    names = inspect.signature(type(module).forward).parameters
    for queries, held in (*sizes(module, owner), (1, module.rel_extent + 2)):
        before = held if window is None else min(held, window - 1)
        keys = before + queries
        tokens = padded(2, keys)
        states = draw(2, queries, module.q_proj.in_features)
        at = torch.arange(before, keys)[None]
        given = {"hidden_states": states, "conv_mask": tokens[:, before:], "position_ids": at}
        given |= {name: states for name in names if name.endswith("_hidden_states")}
        dense, mask = masks(queries, keys, function, tokens)
        theirs, ours = ({**given, "past_key_values": _filled(module, before)} for _ in range(2))
        seen = (dense == 0).any(-1)[:, 0]
        yield Compared({**theirs, "attention_mask": dense}, {**ours, "attention_mask": mask}, seen)


def _filled(module: nn.Module, length: int) -> Any:
    """A cache of `length` random tokens of the layer, and what its convolutions saw last."""
    from transformers import DynamicCache

    if length == 0:
        return None
    cache = DynamicCache(config=module.config)
    heads, head_dim, layer = module.num_key_value_heads, module.head_dim, module.layer_idx
    for number, conv in enumerate((module.k_sconv, module.v_sconv)):
        states = draw(2, heads * head_dim, length)
        size = conv.conv_kernel_size
        cache.update_conv_state(states, layer, state_idx=number, conv_kernel_size=size)
    cache.update(*draw(2, 2, heads, length, head_dim), layer)
    return cache


ADAPTERS = [
    Adapter(("InklingAttention", "Inkling2SlidingAttention", "Inkling2FullAttention"), _plan)
]
NO_ATTENTION = ("Inkling2BlockAttentionResidual",)
