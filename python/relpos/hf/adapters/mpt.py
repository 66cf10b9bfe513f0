"""MPT: ALiBi with its own rule for the slopes."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from relpos.hf._adapter import Adapter, Plan
from relpos.hf._alibi import alibi_plan, first_query
from relpos.hf._interface import NAME, attend
from relpos.hf._lazy import Bias, Mask
from relpos.hf._trial import SIZES, Compared, copied, draw, filled, masks, padded, prove, sizes

_BUILDER = "build_mpt_alibi_tensor"


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
    def arguments(length: int) -> tuple:
        return module.n_heads, length

    plan = alibi_plan(_Attention, owner, _BUILDER, arguments, lazy_alibi)
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    longest = max(map(sum, SIZES))
    bias = getattr(copied(owner, children=False), _BUILDER)(module.n_heads, longest)
    for queries, before in sizes(module, owner):
        keys = before + queries
        tokens = padded(2, keys)
        given = {"hidden_states": draw(2, queries, module.hidden_size)}
        dense, mask = masks(queries, keys, padding=tokens)
        theirs, ours = (
            {**given, "past_key_values": filled(module, module.n_heads, before, module.head_dim)}
            for _ in range(2)
        )
        theirs |= {"attention_mask": dense < 0, "position_bias": bias}
        ours |= {"attention_mask": mask, "position_bias": lazy_alibi()}
        yield Compared(theirs, ours, tokens.cumsum(1)[:, before:] > 0)


ADAPTERS = [Adapter(("MptAttention",), _plan)]
