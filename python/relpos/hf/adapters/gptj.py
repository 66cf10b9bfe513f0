"""GPT-J rotates pairs of neighbouring dimensions. As for Llama, a cache holds rotated keys."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import attend, both_at
from relpos.hf._lazy import Mask
from relpos.hf._rotation import gives


class _Attention:
    """GPTJAttention on relpos: the rotation in the kernel where there is no cache."""

    def forward(
        self,
        hidden_states: Tensor,
        layer_past: Any = None,
        attention_mask: Mask | Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if layer_past is not None or not self._relpos_rotates(position_ids):  # comes back to _attn
            return super().forward(hidden_states, layer_past, attention_mask, position_ids)
        heads = (self.num_attention_heads, self.head_dim)
        query, key, value = (
            project(hidden_states).unflatten(-1, heads).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = attend(
            query,
            key,
            value,
            attention_mask,
            position=self._relpos_rotation,
            positions=both_at(position_ids),
            dropout=self.attn_dropout.p if self.training else 0.0,
            scale=1.0 / self.scale_attn,
            weights=bool(output_attentions),
        )
        out, weights = out if output_attentions else (out, None)
        return self.resid_dropout(self.out_proj(out.transpose(1, 2).flatten(2))), weights

    def _relpos_rotates(self, position_ids: Tensor) -> bool:
        sin, cos = self.embed_positions[position_ids].chunk(2, dim=-1)
        return gives(self._relpos_rotation, position_ids, cos, sin)

    def _attn(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None
    ) -> tuple[Tensor, None]:
        dropout = self.attn_dropout.p if self.training else 0.0
        scale = 1.0 / self.scale_attn
        return attend(query, key, value, attention_mask, dropout=dropout, scale=scale), None


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    if not module.rotary_dim:
        raise Unfused("no rotary_dim in its config", attention=False)
    rotation = relpos.RoPE(
        module.head_dim, layout="interleaved", rotary_dim=module.rotary_dim, angle="float32"
    )
    table = module.embed_positions
    length = min(64, table.shape[0])
    if table.is_meta:  # its numbers are still to come
        own = sys.modules[type(module).__module__]
        table = own.create_sinusoidal_positions(length, module.rotary_dim)
    sin, cos = table[None, :length].chunk(2, dim=-1)
    if not gives(rotation, torch.arange(length)[None], cos, sin):
        raise Unfused("its angles are not those of relpos.RoPE", attention=False)
    what = f"{rotation._text} in the kernel; with a cache keys are stored rotated"
    return Plan(what, _Attention, {"_relpos_rotation": rotation})


ADAPTERS = [Adapter(("GPTJAttention",), _plan)]
