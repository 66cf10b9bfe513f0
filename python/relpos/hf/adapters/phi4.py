"""Phi-4 multimodal, audio: a bias of clipped distances for the encoder, beside a mask that adds 1
to the scores of the keys that a query sees."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, copied, draw, prove, repeated, twin
from relpos.terms import DistanceBias, KeyBias


class _Distances(Bias):
    """The bias, and what the model adds to it: bools [B, 1, L, L]."""

    added: Tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if function in (Tensor.add, Tensor.__add__, torch.add) and isinstance(args[1], cls):
            both = cls(args[1]._make)
            both.added = args[0]
            return both
        return super().__torch_function__(function, types, args, kwargs)


class _Attention:
    """Phi4MultimodalAudioAttention.forward on relpos; attention_mask is a _Distances."""

    def forward(self, hidden_states: Tensor, attention_mask: _Distances, **_: Any) -> Tensor:
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        mask, position = None, [attention_mask.make()]
        added = attention_mask.added
        if torch.compiler.is_compiling():
            mask = added.to(query.dtype)
        elif not bool(added.all()):  # 1 for every key changes no weight
            of_keys = added[:, :, :1]
            if bool((added == of_keys).all()):
                each = of_keys[:, :, 0].to(query.dtype)
                position.append(KeyBias(each.expand(query.shape[0], query.shape[1], -1)))
            else:
                mask = added.to(query.dtype)
        out, _weights = attended(
            query,
            key,
            value,
            mask,
            position=position,
            dropout=self.attention_dropout if self.training else 0.0,
            scale=self.scaling,
        )
        return self.o_proj(out)


def _lazy(layer: nn.Module, states: Tensor) -> _Distances:
    """Replaces the forward of Phi4MultimodalAudioRelativeAttentionBias."""
    return _Distances(functools.partial(_bound, layer))


def _bound(layer: nn.Module) -> DistanceBias:
    return DistanceBias(layer.bias_values.weight.T, -layer.max_distance)


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    layer = getattr(owner, "relative_attention_bias_layer", None)
    if layer is None:
        raise Unfused("no relative_attention_bias_layer beside its layers", attention=True)
    if layer.symmetric:  # the distance -max_distance has no row in the model
        raise Unfused("its bias is the same in both directions", attention=True)
    what = f"bias of distances up to {layer.max_distance} in the kernel"
    plan = Plan(what, _Attention, also=((layer, {"forward": functools.partial(_lazy, layer)}),))
    prove(module, plan, _calls(module, owner, layer), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module, layer: nn.Module) -> Iterator[Compared]:
    own = twin(layer)
    most = 3 if repeated(module, owner) else 2 * min(layer.max_distance, 150) + 3
    for length in (1, 2, 35, most):
        states = draw(2, length, module.q_proj.in_features)
        theirs, ours = copied(own)(states), _lazy(own, states)
        at = torch.arange(length)
        for seen in (at >= 0, at <= length // 2, at <= at[:, None] + 1):
            mask = seen.expand(1, 1, length, length)
            yield Compared(
                {"hidden_states": states, "attention_mask": mask + theirs},
                {"hidden_states": states, "attention_mask": mask + ours},
            )


ADAPTERS = [Adapter(("Phi4MultimodalAudioAttention",), _plan)]
NO_ATTENTION = ("Phi4MultimodalAudioRelativeAttentionBias",)
