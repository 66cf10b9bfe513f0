"""MPT: ALiBi with its own rule for the slopes."""

from typing import Any

from torch import Tensor, nn

from relpos.hf._adapter import Adapter, Plan
from relpos.hf._alibi import alibi_plan, first_query
from relpos.hf._interface import attend
from relpos.hf._lazy import Bias, Mask


class _Attention:
    """MptAttention.forward on relpos; position_bias is what lazy_alibi makes."""

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Bias,
        past_key_values: Any = None,
        attention_mask: Mask | Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        qkv = self.Wqkv(hidden_states)
        if self.clip_qkv:
            qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        split = qkv.unflatten(-1, (3, self.n_heads, self.head_dim))
        query, key, value = split.transpose(1, 3).unbind(2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        out = attend(
            query,
            key,
            value,
            attention_mask,
            position=self._relpos_position,
            q_start=first_query(attention_mask, query, key),
            dropout=self.attn_dropout_p if self.training else 0.0,
            scale=self.softmax_scale,
        )
        return self.out_proj(out.transpose(1, 2).flatten(2)), None


def lazy_alibi(*_: Any, **__: Any) -> Bias:
    """Replaces build_mpt_alibi_tensor; the attention modules have the slopes."""
    return Bias()


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    arguments = (module.n_heads, 2)
    return alibi_plan(_Attention, owner, "build_mpt_alibi_tensor", arguments, lazy_alibi)


ADAPTERS = [Adapter(("MptAttention",), _plan)]
