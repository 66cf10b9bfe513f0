"""XLNet: sinusoids of the distance, and rows for tokens of one segment and of two."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos import terms
from relpos._position.buckets import Buckets
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME, attend
from relpos.hf._lazy import Mask
from relpos.hf._trial import Compared, copied, draw, lengths, padded, prove, repeated

_SEGMENTS = Buckets.runs([0, 1], [1, 0, 1])  # row 0: one segment, row 1: two


class _Waves:
    """The sinusoids of a call [M, 1, width], from the distance klen of query and key down, and what
    the model keeps as Lq x Lk tensors: padding [B, Lk], True = hidden, and segments [B, Lq] and
    [B, Lk], or None."""

    def __init__(
        self, waves: Tensor, padding: Tensor | None, segments: tuple[Tensor, Tensor] | None
    ) -> None:
        self.waves, self.padding, self.segments = waves, padding, segments

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        """The model's dropout of sinusoids, drawn once for the batch."""
        if function is not nn.functional.dropout:
            return NotImplemented
        of = args[0]
        return cls(function(of.waves, *args[1:], **(kwargs or {})), of.padding, of.segments)


class _Attention:
    """XLNetRelativeAttention.forward on relpos where r is a _Waves; with tensors, its own."""

    def forward(
        self,
        h: Tensor,
        g: Tensor | None,
        attn_mask_h: Tensor | None,
        attn_mask_g: Tensor | None,
        r: _Waves | Tensor,
        seg_mat: Tensor | None,
        mems: Tensor | None = None,
        target_mapping: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple:
        if not isinstance(r, _Waves):
            return super().forward(
                h, g, attn_mask_h, attn_mask_g, r, seg_mat, mems, target_mapping, output_attentions
            )
        past = mems if mems is not None and mems.dim() > 1 else h[:0]
        every = torch.cat([past, h])
        query, key, value = (
            torch.einsum("ibh,hnd->bnid", states, weight)
            for states, weight in ((h, self.q), (every, self.k), (every, self.v))
        )
        rows = torch.einsum("mh,hnd->nmd", r.waves[:, 0].type(self.r.dtype), self.r)
        position = [
            terms.QueryAdded(self.r_w_bias),
            terms.RowTable(rows, -every.shape[0], added=self.r_r_bias),
        ]
        if r.segments is not None:
            table, added = self.seg_embed.transpose(0, 1), self.r_s_bias
            position.append(terms.RowTable(table, _SEGMENTS, added=added, along=r.segments))
        options = {"position": position, "q_start": past.shape[0], "scale": self.scale}
        options["dropout"] = self.dropout.p if self.training else 0.0
        if output_attentions:
            seen = None if r.padding is None else _dense(r.padding, h.shape[0])
            out, weights = attend(query, key, value, seen, weights=True, **options)
        elif r.padding is None:
            out = attend(query, key, value, None, **options)
        else:
            mask = Mask(query.shape[2], key.shape[2], past.shape[0], None, r.padding)
            out, lse = attend(query, key, value, mask, lse=True, **options)
            out = self._relpos_with_itself(query, key, value, out, lse, rows, r)
        output = self.post_attention(h, out.permute(2, 0, 1, 3))
        return (output, None, weights.permute(2, 3, 0, 1)) if output_attentions else (output, None)

    def _relpos_with_itself(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        rows: Tensor,
        r: _Waves,
    ) -> Tensor:
        """Padding sees itself, too: its own score joins the softmax of the others'."""
        start = key.shape[2] - query.shape[2]
        key, value = key[:, :, start:], value[:, :, start:]

        def met(added: Tensor, row: Tensor) -> Tensor:
            return ((query + added[:, None]) * row).sum(-1)

        score = met(self.r_w_bias, key)
        score = score + met(self.r_r_bias, rows[:, start + query.shape[2], None])
        if r.segments is not None:
            score = score + met(self.r_s_bias, self.seg_embed[0, :, None])
        share = torch.sigmoid(score * self.scale - lse)[..., None].to(value.dtype)
        hidden = r.padding[:, None, start:, None]
        return torch.where(hidden, out + share * (value - out), out)


def _dense(padding: Tensor, queries: int) -> Tensor:
    """bool [B, 1, Lq, Lk], True = attend; a token always sees itself."""
    keys = padding.shape[1]
    own = torch.eye(keys, dtype=torch.bool, device=padding.device)[keys - queries :]
    return (~padding)[:, None, None] | own


def _forward(
    model: nn.Module,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    mems: Any = None,
    perm_mask: Tensor | None = None,
    target_mapping: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    input_mask: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    **others: Any,
) -> Any:
    """Replaces XLNetModel.forward, which makes Lq x Lk tensors of padding and segments. What is
    given as such (perm_mask and target_mapping) the model's own code computes."""
    given = {"input_ids": input_ids, "mems": mems, "inputs_embeds": inputs_embeds, **others}
    padding = input_mask if attention_mask is None else 1 - attention_mask
    both = input_mask is not None and attention_mask is not None
    if perm_mask is not None or target_mapping is not None or both:
        return type(model).forward(
            model,
            attention_mask=attention_mask,
            perm_mask=perm_mask,
            target_mapping=target_mapping,
            token_type_ids=token_type_ids,
            input_mask=input_mask,
            **given,
        )
    # The own forward, with a method that is about this call alone.
    called = object.__new__(type(model))
    vars(called).update(vars(model))
    vars(called)["relative_positional_encoding"] = functools.partial(
        _waves, model, padding, token_type_ids
    )
    return type(model).forward(called, **given)


def _waves(
    model: nn.Module,
    padding: Tensor | None,
    segments: Tensor | None,
    qlen: int,
    klen: int,
    **_: Any,
) -> _Waves:
    """Replaces relative_positional_encoding. Memories are no padding, and of segment 0."""
    waves = type(model).relative_positional_encoding(model, qlen, klen)
    if padding is not None:
        padding = nn.functional.pad(padding > 0, (klen - qlen, 0))
        if not torch.compiler.is_compiling() and not bool(padding.any()):
            padding = None
    both = None
    if segments is not None:
        both = (segments.long(), nn.functional.pad(segments.long(), (klen - qlen, 0)))
    return _Waves(waves, padding, both)


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    if not hasattr(owner, "relative_positional_encoding"):
        raise Unfused("no relative_positional_encoding in its model", attention=False)
    if owner.attn_type != "bi" or owner.bi_data:
        raise Unfused(
            "its model has attn_type='uni' or bi_data=True, where masks are Lq x Lk or rows of the "
            "batch count backwards",
            attention=False,
        )
    what = "sinusoids of the distance and rows of segments in the kernel"
    plan = Plan(what, _Attention, also=((owner, {"forward": functools.partial(_forward, owner)}),))
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    own = copied(owner, children=False)
    every = lengths(module.d_model)
    for length in every[-1:] if repeated(module, owner) else every:
        for before, segmented in ((0, True), (3, False), (5, True)):
            keys = before + length
            h, mems = draw(length, 2, module.d_model), draw(before, 2, module.d_model)
            tokens = ~padded(2, length)
            types = (torch.arange(length) > length // 2).long().expand(2, -1)
            types = types if segmented else None
            ours = _waves(own, tokens, types, length, keys)
            hidden = nn.functional.pad(tokens, (before, 0))
            seen = _dense(hidden, length)[:, 0].permute(1, 2, 0)[..., None]
            other = None
            if segmented:
                of_q, of_k = ours.segments
                other = (of_q[:, :, None] != of_k[:, None]).long().permute(1, 2, 0)
                other = nn.functional.one_hot(other, 2).float()
            given = {"h": h, "g": None, "attn_mask_g": None, "mems": mems}
            theirs = {
                "r": own.relative_positional_encoding(length, keys, bsz=2),
                "attn_mask_h": (~seen).float(),
                "seg_mat": other,
            }
            yield Compared(
                {**given, **theirs}, {**given, "r": ours, "attn_mask_h": None, "seg_mat": None}
            )


ADAPTERS = [Adapter(("XLNetRelativeAttention",), _plan)]
