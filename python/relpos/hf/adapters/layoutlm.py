"""LayoutLM, versions 2 and 3: T5's buckets of distances in the text and on the page. Their tables
get no gradients, as in transformers."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos import terms
from relpos._position.buckets import Buckets
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Bias, Mask
from relpos.hf._module import attended
from relpos.hf._trial import Compared, copied, draw, lengths, padded, prove, repeated, twin

_METHODS = (
    ("_cal_1d_pos_emb", "_cal_2d_pos_emb"),
    ("_calculate_1d_position_embeddings", "_calculate_2d_position_embeddings"),
)
_BUCKET = "relative_position_bucket"


class _Places(Bias):
    """One of the model's two biases. make(scale) gives its terms."""

    def __init__(self, make: Callable[[float], list[Any]]) -> None:
        super().__init__()
        self.terms = make


class _Attention:
    """The forward of a LayoutLM's attention on relpos."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Mask | Tensor | None = None,
        rel_pos: _Places | None = None,
        rel_2d_pos: _Places | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = (
            states.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for states in self._relpos_projected(hidden_states)
        )
        scale = 1.0 / math.sqrt(self.attention_head_size)
        position = []
        for given in self._relpos_added(rel_pos, rel_2d_pos):
            position += given.terms(scale if self._relpos_scaled else 1.0)
        return attended(
            query,
            key,
            value,
            self._relpos_mask(attention_mask),
            position=position or None,
            dropout=self.dropout.p if self.training else 0.0,
            scale=scale,
            weights=bool(output_attentions),
        )


class _Second(_Attention):
    """Version 2: biases beside each other, a mask that is True where hidden."""

    _relpos_scaled = False

    def _relpos_projected(self, states: Tensor) -> Any:
        return self.compute_qkv(states)

    def _relpos_added(self, rel_pos: Any, rel_2d_pos: Any) -> list[_Places]:
        wanted = (self.has_relative_attention_bias, self.has_spatial_attention_bias)
        return [g for g, w in zip((rel_pos, rel_2d_pos), wanted, strict=True) if w]

    def _relpos_mask(self, mask: Any) -> Any:
        if not isinstance(mask, Tensor):
            return mask
        hidden = mask.to(torch.bool)
        if hidden.shape[1:3] != (1, 1):
            return ~hidden
        length = hidden.shape[-1]
        return Mask(length, length, 0, None, hidden[:, 0, 0])


class _Third(_Attention):
    """Version 3: both biases, or that of the text, divided as the scores are."""

    _relpos_scaled = True

    def _relpos_projected(self, states: Tensor) -> Any:
        return self.query(states), self.key(states), self.value(states)

    def _relpos_added(self, rel_pos: Any, rel_2d_pos: Any) -> list[_Places]:
        if not self.has_relative_attention_bias:
            return []
        return [rel_pos, rel_2d_pos] if self.has_spatial_attention_bias else [rel_pos]

    def _relpos_mask(self, mask: Any) -> Any:
        return mask


def _in_text(encoder: nn.Module, buckets: Buckets, position_ids: Tensor) -> _Places:
    return _Places(functools.partial(_text_terms, encoder, buckets, position_ids))


def _text_terms(
    encoder: nn.Module, buckets: Buckets, position_ids: Tensor, scale: float
) -> list[Any]:
    return [_term(encoder.rel_pos_bias, buckets, position_ids, scale)]


def _on_page(encoder: nn.Module, buckets: Buckets, bbox: Tensor) -> _Places:
    return _Places(functools.partial(_page_terms, encoder, buckets, bbox))


def _page_terms(encoder: nn.Module, buckets: Buckets, bbox: Tensor, scale: float) -> list[Any]:
    """Of left edges, and of lower ones."""
    tables = (encoder.rel_pos_x_bias, encoder.rel_pos_y_bias)
    return [
        _term(table, buckets, bbox[:, :, edge], scale)
        for table, edge in zip(tables, (0, 3), strict=True)
    ]


def _term(table: nn.Linear, buckets: Buckets, at: Tensor, scale: float) -> Any:
    at = at.to(torch.int64)
    return terms.DistanceBias(table.weight.detach() * scale, buckets, along=(at, at))


def _plan(mixin: type, module: nn.Module, owner: nn.Module) -> Plan:
    encoder, names = _encoder(module, owner)
    buckets = _buckets(encoder)
    lazy = {
        name: functools.partial(made, encoder, found)
        for name, made, found in zip(names, (_in_text, _on_page), buckets, strict=True)
        if found is not None
    }
    what = "T5's buckets of distances in the text and on the page, read in the kernel"
    if not (module.has_relative_attention_bias or module.has_spatial_attention_bias):
        what = "no position"
    plan = Plan(what, mixin, also=((encoder, lazy),))
    calls = _calls(module, owner, encoder, names, buckets, mixin is _Second)
    prove(module, plan, calls, implementation=NAME)
    return plan


def _encoder(module: nn.Module, owner: nn.Module) -> tuple[nn.Module, tuple[str, str]]:
    for part in owner.modules():
        names = next((names for names in _METHODS if hasattr(part, names[0])), None)
        if names and any(each is module for each in part.modules()):
            return part, names
    raise Unfused("no encoder above it that computes its biases", attention=False)


def _buckets(encoder: nn.Module) -> list[Buckets | None]:
    """Those in the text and on the page. Raises Unfused unless each distance has the bucket that
    the model's own code gives it."""
    number = getattr(encoder, _BUCKET, None) or getattr(
        sys.modules[type(encoder).__module__], _BUCKET, None
    )
    made: list[Buckets | None] = []
    for bins, reach in (("rel_pos_bins", "max_rel_pos"), ("rel_2d_pos_bins", "max_rel_2d_pos")):
        if not hasattr(encoder, bins):
            made.append(None)
            continue
        count, most = getattr(encoder, bins), getattr(encoder, reach)
        distances = torch.arange(-4 * most, 4 * most + 1)
        theirs = number(distances, num_buckets=count, max_distance=most)
        made.append(Buckets.t5(count, most))
        if not torch.equal(made[-1](distances), theirs):
            raise Unfused(f"its {count} buckets up to {most} are not those of T5", attention=False)
    return made


def _calls(
    module: nn.Module,
    owner: nn.Module,
    encoder: nn.Module,
    names: tuple[str, str],
    buckets: list[Buckets | None],
    second: bool,
) -> Iterator[Compared]:
    own = copied(encoder, children=False)
    for name in ("rel_pos_bias", "rel_pos_x_bias", "rel_pos_y_bias"):
        if hasattr(own, name):
            setattr(own, name, twin(getattr(own, name)))
    width = module.num_attention_heads * module.attention_head_size
    every = lengths(width)
    for length in every[-1:] if repeated(module, owner) else every:
        at = torch.arange(length)
        ids = torch.where(at < length // 2, at, at - length // 2).expand(2, -1)
        boxes = (at[:, None] * torch.tensor([37, 11, 53, 29]) % 1001).expand(2, -1, -1)
        given = {"hidden_states": draw(2, length, width)}
        theirs, ours = dict(given), dict(given)
        for name, key, made, of, found in (
            (names[0], "rel_pos", _in_text, ids, buckets[0]),
            (names[1], "rel_2d_pos", _on_page, boxes, buckets[1]),
        ):
            if found is not None:
                theirs[key], ours[key] = getattr(own, name)(of), made(own, found, of)
        tokens = padded(2, length)
        hidden = ~tokens[:, None, None]
        theirs["attention_mask"] = hidden if second else hidden * torch.finfo(torch.float32).min
        ours["attention_mask"] = Mask(length, length, 0, None, ~tokens)
        yield Compared(theirs, ours)


ADAPTERS = [
    Adapter(("LayoutLMv2SelfAttention",), functools.partial(_plan, _Second)),
    Adapter(("LayoutLMv3SelfAttention",), functools.partial(_plan, _Third)),
]
