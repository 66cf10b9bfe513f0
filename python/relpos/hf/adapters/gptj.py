"""GPT-J rotates pairs of neighbouring dimensions. As for Llama, a cache holds rotated keys."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import text_of
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME, attend, both_at
from relpos.hf._lazy import Mask
from relpos.hf._module import attended, by_head
from relpos.hf._rotation import gives
from relpos.hf._trial import Compared, draw, filled, masks, prove, sizes


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
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        out, weights = attended(
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
        return self.resid_dropout(self.out_proj(out)), weights

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
    if table.is_meta:  # its numbers are still to come
        own = sys.modules[type(module).__module__]
        table = own.create_sinusoidal_positions(table.shape[0], module.rotary_dim)
    sin, cos = table[None].chunk(2, dim=-1)
    if not gives(rotation, torch.arange(len(table))[None], cos, sin):
        raise Unfused("its angles are not those of relpos.RoPE", attention=False)
    what = f"{text_of(rotation)} in the kernel; with a cache keys are stored rotated"
    plan = Plan(what, _Attention, {"_relpos_rotation": rotation})
    calls = _calls(module, owner, len(table))
    prove(module, plan, calls, implementation=NAME, buffers={"embed_positions": table})
    return plan


def _calls(module: nn.Module, owner: nn.Module, most: int) -> Iterator[Compared]:
    """Calls at positions up to the last of the table, which has `most`."""
    heads, head_dim = module.num_attention_heads, module.head_dim
    for queries, before in sizes(module, owner):
        keys = before + queries
        if keys > most:
            continue
        last = most if queries % 2 else keys
        at = torch.arange(last - queries, last).expand(2, -1)
        given = {"hidden_states": draw(2, queries, heads * head_dim), "position_ids": at}
        dense, mask = masks(queries, keys)
        theirs, ours = (
            {**given, "layer_past": filled(module, heads, before, head_dim)} for _ in range(2)
        )
        yield Compared({**theirs, "attention_mask": dense}, {**ours, "attention_mask": mask})


ADAPTERS = [Adapter(("GPTJAttention",), _plan)]
