"""WavLM: T5's buckets, one table for all layers, gated by the hidden states of each layer."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias
from relpos.hf._module import attended, by_head, wants_weights
from relpos.hf._trial import Compared, copied, draw, padded, prove, twin
from relpos.hf.adapters.conformer import trial_lengths


class _Attention:
    """WavLMAttention.forward on relpos. The first layer's table goes from layer to layer as a
    Bias, in the place of its dense tensor [B H, L, L]."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Bias | Tensor | None = None,
        index: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Bias | Tensor]:
        if isinstance(position_bias, Tensor):
            return super().forward(hidden_states, attention_mask, position_bias, index, **kwargs)
        if position_bias is None:
            position_bias = Bias(functools.partial(_table, self))
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        out, weights = attended(
            query,
            key,
            value,
            None,
            key_padding_mask=None if attention_mask is None else attention_mask != 1,
            position=self._relpos_gated(position_bias.make(), hidden_states),
            dropout=self.dropout if self.training else 0.0,
            weights=wants_weights(kwargs),
        )
        if weights is not None:  # torch averages them over the heads
            weights = weights.mean(1, keepdim=True).expand_as(weights)
        return self.out_proj(out), weights, position_bias

    def _relpos_gated(self, table: tuple[Any, Tensor], states: Tensor) -> Given:
        position, weight = table
        heads = states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        gates = self.gru_rel_pos_linear(heads).unflatten(-1, (2, 4)).sum(-1).sigmoid()
        first, second = gates.chunk(2, dim=-1)
        gate = first * (second * self.gru_rel_pos_const - 1.0) + 2.0
        return with_values(position, [weight, gate])


def _table(module: nn.Module) -> tuple[Any, Tensor]:
    """The scheme of the first layer, and its numbers."""
    return module._relpos_position, module.rel_attn_embed.weight


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    count, reach = module.num_buckets, module.max_distance
    try:
        position = relpos.GatedBuckets(module.num_heads, buckets=count, max_distance=reach)
        buckets = relpos.T5Bias(1, buckets=count, max_distance=reach)
    except ValueError as error:
        raise Unfused(str(error), attention=False) from None
    far = 4 * reach
    theirs = copied(module, children=False)._relative_positions_bucket(
        torch.arange(-far, far + 1)[None]
    )
    if not torch.equal(buckets.indices(1, 2 * far + 1, far), theirs):
        why = f"its {count} buckets up to distance {reach} are not those of relpos.GatedBuckets"
        raise Unfused(why, attention=False)
    what = f"{count} buckets, gated by the hidden states, read in the kernel"
    plan = Plan(what, _Attention, {"_relpos_position": position})
    prove(module, plan, _calls(module, owner, position), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module, position: Any) -> Iterator[Compared]:
    """With a table of the module's own, or with one of a layer before."""
    own = hasattr(module, "rel_attn_embed")
    table = torch.randn(module.num_buckets, module.num_heads)
    buckets = twin(module)._relative_positions_bucket
    for length in trial_lengths(module, owner):
        given = {"hidden_states": draw(2, length, module.embed_dim)}
        given["attention_mask"] = padded(2, length).to(torch.int64)
        theirs, ours = dict(given), dict(given)
        if not own:
            at = torch.arange(length)
            bias = table[buckets(at - at[:, None])].permute(2, 0, 1)
            theirs["position_bias"] = bias.repeat(2, 1, 1)
            ours["position_bias"] = Bias(lambda: (position, table))
        yield Compared(theirs, ours)


ADAPTERS = [Adapter(("WavLMAttention",), _plan)]
