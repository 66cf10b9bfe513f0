"""BLOOM: ALiBi, counted over the tokens that are not padding."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._alibi import alibi_plan, first_query
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias, Mask
from relpos.hf._module import attended
from relpos.hf._trial import Compared, copied, draw, filled, masks, padded, prove, sizes


class _Attention:
    """BloomAttention.forward on relpos; `alibi` is what lazy_alibi makes. Without a mask the model
    makes its own tensor, which is not read; positions are then counted from the first key."""

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Bias | Tensor,
        attention_mask: Mask | Tensor,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        positions = alibi.positions if isinstance(alibi, Bias) else None
        if positions is not None:
            positions = (positions[0][:, -query.shape[2] :], positions[1])
        out, weights = attended(
            query,
            key,
            value,
            attention_mask,
            position=self._relpos_position,
            positions=positions,
            q_start=first_query(attention_mask, query, key),
            dropout=self.attention_dropout.p if self.training else 0.0,
            scale=self.inv_norm_factor,
            weights=bool(output_attentions),
        )
        out = self.dense(out)
        return residual + nn.functional.dropout(out, self.hidden_dropout, self.training), weights


def lazy_alibi(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Bias:
    """Replaces build_alibi_tensor: positions that count the tokens of a mask [B, Lk]."""
    if not torch.compiler.is_compiling() and bool(attention_mask.all()):
        return Bias()
    # Padding after a token gets the position of that token, so that no key that it sees is later.
    counted = attention_mask.to(torch.int64).cumsum(-1) - 1
    return Bias(positions=(counted, counted))


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    if module.pretraining_tp > 1 and module.slow_but_exact:
        raise Unfused("slow_but_exact sums the output in slices", attention=False)

    def arguments(length: int) -> tuple:
        return torch.ones(1, length, dtype=torch.int64), module.num_heads, torch.float32

    plan = alibi_plan(_Attention, owner, "build_alibi_tensor", arguments, lazy_alibi)
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    build = copied(owner, children=False).build_alibi_tensor
    heads, width = module.num_heads, module.hidden_size
    for queries, before in sizes(module, owner):
        keys = before + queries
        tokens = padded(2, keys).to(torch.int64)
        given = {"hidden_states": draw(2, queries, width), "residual": draw(2, queries, width)}
        dense, mask = masks(queries, keys, padding=tokens.bool())
        theirs, ours = (
            {**given, "layer_past": filled(module, heads, before, module.head_dim)}
            for _ in range(2)
        )
        theirs |= {"attention_mask": dense, "alibi": build(tokens, heads, torch.float32)}
        ours |= {"attention_mask": mask, "alibi": lazy_alibi(tokens, heads, torch.float32)}
        yield Compared(theirs, ours, tokens.cumsum(1)[:, before:] > 0)


ADAPTERS = [Adapter(("BloomAttention",), _plan)]
