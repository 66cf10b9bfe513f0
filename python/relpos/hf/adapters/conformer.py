"""Conformers: Transformer-XL's rows of projected features, or Shaw's rows of clipped distances."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos._position.sum import Composed
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask
from relpos.hf._module import attended, by_head, wants_weights
from relpos.hf._trial import Compared, draw, masks, padded, prove, repeated
from relpos.terms import QueryAdded, RowTable


class _Attention:
    """The forward of Wav2Vec2ConformerSelfAttention and its kin on relpos."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Mask | Tensor | None = None,
        relative_position_embeddings: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = by_head(
            hidden_states, self.head_size, self.linear_q, self.linear_k, self.linear_v
        )
        out, weights = attended(
            query,
            key,
            value,
            attention_mask,
            position=self._relpos_terms(relative_position_embeddings),
            dropout=self.dropout.p if self.training else 0.0,
            scale=self.scaling,
            weights=wants_weights(kwargs),
        )
        return self.linear_out(out), weights

    def _relpos_terms(self, features: Tensor | None) -> list[Composed] | None:
        if self.position_embeddings_type == "relative":
            rows = self.linear_pos(features)
            return rows_of_features(rows, self.pos_bias_u, self.pos_bias_v)
        if self.position_embeddings_type == "relative_key":
            return [RowTable(self.distance_embedding.weight, -self.left_max_position_embeddings)]
        return None


class _FastSpeech2:
    """FastSpeech2ConformerAttention.forward on relpos; the mask is [B, 1, Lk], 0 for padding."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        pos_emb: Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, Tensor | None]:
        if pos_emb.shape[0] != 1:
            return super().forward(hidden_states, attention_mask, pos_emb, output_attentions)
        query, key, value = by_head(
            hidden_states, self.head_dim, self.linear_q, self.linear_k, self.linear_v
        )
        out, weights = attended(
            query,
            key,
            value,
            None,
            key_padding_mask=None if attention_mask is None else attention_mask[:, 0] == 0,
            position=rows_of_features(self.linear_pos(pos_emb), self.pos_bias_u, self.pos_bias_v),
            dropout=self.dropout.p if self.training else 0.0,
            scale=self.dim_key**-0.5,
            weights=bool(output_attentions),
        )
        return self.linear_out(out), weights


def rows_of_features(rows: Tensor, added: Tensor, added_to_rows: Tensor) -> list[Composed]:
    """Terms of projected features [1, 2 n - 1, H D] of the distances 1 - n ... n - 1 from query to
    key. added [H, D] joins the query that meets keys, added_to_rows the one that meets rows."""
    table = rows[0].unflatten(-1, added.shape).transpose(0, 1)
    return [RowTable(table, -(table.shape[1] // 2), added=added_to_rows), QueryAdded(added)]


_WHAT = {
    "relative": "rows of projected features and their two vectors in the kernel",
    "relative_key": "rows of clipped distances read in the kernel",
    None: "no positions of its own",
}


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    kind = module.position_embeddings_type
    if kind not in _WHAT:
        prove(module, None, _calls(module, owner), implementation=NAME)
        raise Unfused(f"it rotates states before they are projected ({kind})", attention=True)
    plan = Plan(_WHAT[kind], _Attention)
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    from transformers import masking_utils

    width, kind = module.linear_q.in_features, module.position_embeddings_type
    for length in trial_lengths(module, owner):
        given = {"hidden_states": draw(2, length, width)}
        if kind == "relative":
            given["relative_position_embeddings"] = draw(1, 2 * length - 1, width)
        elif kind == "rotary":
            given["relative_position_embeddings"] = draw(2, length, 1, 1, module.head_size)
        both = masking_utils.bidirectional_mask_function
        dense, mask = masks(length, length, both, padded(2, length))
        yield Compared({**given, "attention_mask": dense}, {**given, "attention_mask": mask})


def trial_lengths(module: nn.Module, owner: nn.Module) -> tuple[int, ...]:
    return (3, 34) if repeated(module, owner) else (1, 2, 3, 34, 130)


def _plan_fastspeech2(module: nn.Module, owner: nn.Module) -> Plan:
    plan = Plan(_WHAT["relative"], _FastSpeech2)
    prove(module, plan, _calls_fastspeech2(module, owner), implementation=NAME)
    return plan


def _calls_fastspeech2(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    width = module.linear_q.in_features
    for length in trial_lengths(module, owner):
        given = {"hidden_states": draw(2, length, width)}
        given["pos_emb"] = draw(1, 2 * length - 1, width)
        given["attention_mask"] = padded(2, length)[:, None].to(torch.int64)
        yield Compared(given, given)


ADAPTERS = [
    Adapter(
        (
            "Wav2Vec2ConformerSelfAttention",
            "Wav2Vec2BertSelfAttention",
            "SeamlessM4TConformerSelfAttention",
            "SeamlessM4Tv2ConformerSelfAttention",
        ),
        _plan,
    ),
    Adapter(("FastSpeech2ConformerAttention",), _plan_fastspeech2),
]
