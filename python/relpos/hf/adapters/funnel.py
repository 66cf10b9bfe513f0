"""Funnel-Transformer: sinusoids of the distance and rows of segments, which [CLS] does not meet.
Queries of a pooled layer stand at the tokens that they begin with."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relpos import terms
from relpos._position.buckets import Buckets
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, copied, draw, lengths, padded, prove, repeated

_SEGMENTS = 64  # their numbers are below it
_WITH_ALL = 10 * _SEGMENTS  # of [CLS]: of one segment with every token
_APART = 100 * _SEGMENTS  # of [CLS] where it meets no segment
_ROWS = Buckets.runs(
    [-_SEGMENTS, 0, 1, _SEGMENTS, 5 * _WITH_ALL], [-1, 0, 1, 0, 1, -1]
)  # row 0: of another segment, row 1: of the same


class _Tokens(NamedTuple):
    """In place of what the model keeps as L x L tensors.

    queries, keys: int64 [L], which tokens they are. segments: of these, [B, L], or None. seen:
    [B, Lk], 1 = attend. waves: sinusoids [2 length - 1, width] of all distances, the first token's
    to the last first. unit: how far keys are apart.
    """

    queries: Tensor
    keys: Tensor
    q_segments: Tensor | None
    k_segments: Tensor | None
    seen: Tensor | None
    waves: Tensor
    unit: int = 1


class _Attention:
    """FunnelRelMultiheadAttention.forward on relpos; attention_inputs is a _Tokens."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_inputs: _Tokens,
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:
        of, head_dim = attention_inputs, self.config.d_head
        (q,), (k,), (v,) = (
            by_head(states, head_dim, project)
            for project, states in ((self.q_head, query), (self.k_head, key), (self.v_head, value))
        )
        position, places = self._relpos_distances(of)
        if of.q_segments is not None:
            added, table = self.r_s_bias, self.seg_embed.transpose(0, 1)
            both = self._relpos_segments(of)
            position.append(terms.RowTable(table, _ROWS, added=added, along=both))
        mask = None
        if of.seen is not None:
            hidden = of.seen == 0
            if torch.compiler.is_compiling() or bool(hidden.any()):
                mask = Mask(q.shape[2], k.shape[2], 0, None, hidden)
        out, weights = attended(
            q,
            k,
            v,
            mask,
            position=position,
            positions=places,
            dropout=self.attention_dropout.p if self.training else 0.0,
            scale=self.scale,
            weights=bool(output_attentions),
        )
        out = self.layer_norm(query + self.hidden_dropout(self.post_proj(out)))
        return (out, weights) if output_attentions else (out,)

    def _relpos_distances(self, of: _Tokens) -> tuple[list[Any], tuple[Tensor, Tensor]]:
        """The terms of distances, in units of the keys' own, and where queries and keys stand."""
        apart, unit = self.config.separate_cls, of.unit
        middle = len(of.waves) // 2
        far = middle // unit
        waves = of.waves[middle - far * unit :: unit][: 2 * far + 1]
        rows = torch.einsum("td,dnh->nth", waves.to(self.r_kernel.dtype), self.r_kernel)
        queries, keys = (each.div(unit, rounding_mode="floor") for each in (of.queries, of.keys))
        if apart:  # [CLS] is farther back than any token: as a key, and as a query from the others
            rows = nn.functional.pad(rows, (0, 0, 1, 0))
            far = far + 1
            queries, keys = queries.clone(), keys.clone()
            queries[0], keys[0] = 4 * far, -4 * far
        met = terms.RowTable(rows, -far, added=self.r_r_bias)
        return [terms.QueryAdded(self.r_w_bias), met], (queries, keys)

    def _relpos_segments(self, of: _Tokens) -> tuple[Tensor, Tensor]:
        found = []
        for segments, side in ((of.q_segments, -1), (of.k_segments, 1)):
            own = torch.where(segments == self._relpos_cls, side * _WITH_ALL, segments.long())
            if self.config.separate_cls:
                own[:, 0] = side * _APART
            found.append(own)
        return found[0], found[1]


def _inputs(
    structure: nn.Module,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
) -> _Tokens:
    """Replaces init_attention_inputs."""
    length, width = inputs_embeds.shape[1], structure.config.d_model
    structure.pooling_mult, structure.seq_len = 1, length
    at, dtype = torch.arange(length, device=inputs_embeds.device), inputs_embeds.dtype
    half = width // 2
    rates = 10000 ** (torch.arange(half, device=at.device).to(dtype) / half)
    angles = torch.arange(1 - length, length, device=at.device).neg()[:, None].to(dtype) / rates
    waves = [structure.sin_dropout(angles.sin()), structure.cos_dropout(angles.cos())]
    types = token_type_ids
    return _Tokens(at, at, types, types, attention_mask, torch.cat(waves, dim=-1))


def _before_pooling(structure: nn.Module, output: Tensor, of: _Tokens) -> tuple[Tensor, _Tokens]:
    """Replaces pre_attention_pooling."""
    pooled = _queries_pooled(structure, of)
    if not structure.config.pool_q_only:
        structure.pooling_mult *= 2
        pooled = _keys_pooled(structure, pooled)
    return structure.pool_tensor(output, mode=structure.config.pooling_type), pooled


def _after_pooling(structure: nn.Module, of: _Tokens) -> _Tokens:
    """Replaces post_attention_pooling."""
    if not structure.config.pool_q_only:
        return of
    structure.pooling_mult *= 2
    return _keys_pooled(structure, of)


def _queries_pooled(structure: nn.Module, of: _Tokens) -> _Tokens:
    return of._replace(
        queries=structure.stride_pool(of.queries, 0),
        q_segments=structure.stride_pool(of.q_segments, 1),
    )


def _keys_pooled(structure: nn.Module, of: _Tokens) -> _Tokens:
    return of._replace(
        keys=structure.stride_pool(of.keys, 0),
        unit=2 * of.unit,
        k_segments=structure.stride_pool(of.k_segments, 1),
        seen=structure.pool_tensor(of.seen, mode="min"),
    )


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    structures = [part for part in owner.modules() if hasattr(part, "init_attention_inputs")]
    if not structures:
        raise Unfused("no attention_structure in its model", attention=False)
    methods = {
        "init_attention_inputs": _inputs,
        "pre_attention_pooling": _before_pooling,
        "post_attention_pooling": _after_pooling,
    }
    plan = Plan(
        "sinusoids of the distance and rows of segments in the kernel",
        _Attention,
        {"_relpos_cls": structures[0].cls_token_type_id},
        also=tuple(
            (each, {name: functools.partial(made, each) for name, made in methods.items()})
            for each in structures
        ),
    )
    prove(module, plan, _calls(module, owner, structures[0]), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module, structure: nn.Module) -> Iterator[Compared]:
    """The tokens of the module's block, and those at the pooling that leads to it."""
    own, width = copied(structure).eval(), module.config.d_model
    # With fewer tokens than its poolings need, its own code raises.
    every = [length for length in lengths(width) if length > 2**own.config.num_blocks]
    for length in every[-1:] if repeated(module, owner) else every:
        types = (torch.arange(length) > length // 2).long()
        types[0] = own.cls_token_type_id
        states = draw(2, length, width)
        given = (states, padded(2, length).float(), types.expand(2, -1))
        theirs, ours = own.init_attention_inputs(*given), _inputs(own, *given)
        for block in range(1, module.block_index + 1):
            pooled, theirs = own.pre_attention_pooling(states, theirs)
            _, ours = _before_pooling(own, states, ours)
            keys = states if own.config.pool_q_only else pooled
            call = {"query": pooled, "key": keys, "value": keys}
            if block == module.block_index:
                yield Compared(
                    {**call, "attention_inputs": theirs}, {**call, "attention_inputs": ours}
                )
            theirs, ours = own.post_attention_pooling(theirs), _after_pooling(own, ours)
            states = pooled
        call = {"query": states, "key": states, "value": states}
        yield Compared({**call, "attention_inputs": theirs}, {**call, "attention_inputs": ours})


ADAPTERS = [Adapter(("FunnelRelMultiheadAttention",), _plan)]
NO_ATTENTION = ("FunnelAttentionStructure",)
