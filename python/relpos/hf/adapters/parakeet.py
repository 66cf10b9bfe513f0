"""Parakeet and Nemotron ASR: a Conformer's rows of projected features, also in a stream."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf._adapter import Adapter, Plan
from relpos.hf._interface import NAME
from relpos.hf._module import attended, by_head, wants_weights
from relpos.hf._trial import Compared, draw, filled, padded, prove, repeated
from relpos.hf.adapters.conformer import rows_of_features, trial_lengths


class _Attention:
    """ParakeetEncoderAttention.forward on relpos. The features are those of all keys; with a cache
    the queries are the last of them."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        features = _of_all_rows(position_embeddings, self.training)
        if features is None:  # dropout has made those of each batch row others
            if past_key_values is not None:
                kwargs["past_key_values"] = past_key_values
            return super().forward(hidden_states, position_embeddings, attention_mask, **kwargs)
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        rows = self.relative_k_proj(features)
        out, weights = attended(
            query,
            key,
            value,
            attention_mask,
            position=rows_of_features(rows, self.bias_u, self.bias_v),
            q_start=key.shape[2] - query.shape[2],
            dropout=self.attention_dropout if self.training else 0.0,
            scale=self.scaling,
            weights=wants_weights(kwargs),
        )
        return self.o_proj(out), weights


def _of_all_rows(features: Tensor, training: bool) -> Tensor | None:
    """[1, M, d] of features [B, M, d] that are equal in all batch rows, None where they are not, or
    where a graph cannot ask: the model computes them from distances, and drops some in training."""
    first = features[:1]
    if features.shape[0] == 1 or features.stride(0) == 0:
        return first
    if torch.compiler.is_compiling():
        return None if training else first
    return first if torch.equal(features, first.expand_as(features)) else None


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    what = "rows of projected features and their two vectors in the kernel"
    plan = Plan(what, _Attention)
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    width = module.q_proj.in_features
    for length in trial_lengths(module, owner):
        seen = padded(2, length)
        given = {
            "hidden_states": draw(2, length, width),
            "position_embeddings": draw(1, 2 * length - 1, width).expand(2, -1, -1),
            "attention_mask": seen[:, None, None].expand(2, 1, length, length),
        }
        yield Compared(given, given)


def _plan_streaming(module: nn.Module, owner: nn.Module) -> Plan:
    plan = _plan(module, owner)
    prove(module, plan, _calls_with_cache(module, owner), implementation=NAME)
    return plan


def _calls_with_cache(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    heads = module.k_proj.out_features // module.head_dim
    for queries, before in ((3, 18),) if repeated(module, owner) else ((1, 18), (3, 33), (9, 2)):
        keys, width = queries + before, module.q_proj.in_features
        given = {
            "hidden_states": draw(2, queries, width),
            "position_embeddings": draw(1, 2 * keys - 1, width).expand(2, -1, -1),
        }
        theirs, ours = (
            {**given, "past_key_values": filled(module, heads, before, module.head_dim)}
            for _ in range(2)
        )
        yield Compared(theirs, ours)


ADAPTERS = [
    Adapter(("ParakeetEncoderAttention",), _plan),
    Adapter(("NemotronAsrStreamingEncoderAttention",), _plan_streaming),
]
