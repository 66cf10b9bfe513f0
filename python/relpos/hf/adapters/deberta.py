"""DeBERTa, versions 1 to 3, and SEW-D, whose attention has the same class name in three files: rows
of distances meet queries and keys. Which version a module is, its projections say."""

import functools
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos._position.position import SchemePosition
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, copied, draw, lengths, padded, prove, repeated

_BUCKET = "make_log_bucket_position"
_TERMS = {(True, True): "both", (True, False): "c2p", (False, True): "p2c"}


class _Disentangled:
    """DisentangledSelfAttention.forward on relpos; attention_mask is what _lazy_mask makes."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Mask | Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if relative_pos is not None or query_states is not None:
            raise NotImplementedError(
                "relpos.hf: expected a DeBERTa whose queries are its tokens at the distances that "
                "they have, got query_states or relative_pos: use the model before relpos.hf.fuse"
            )
        query, key, value = self._relpos_projected(hidden_states)
        position = None
        if self._relpos_options is not None and rel_embeddings is not None:
            position = self._relpos_position(hidden_states.shape[1], rel_embeddings)
        out, weights = attended(
            query,
            key,
            value,
            attention_mask,
            position=position,
            dropout=_rate(self.dropout) if self.training else 0.0,
            scale=1.0 / math.sqrt(query.shape[-1] * self._relpos_terms),
            weights=bool(output_attentions),
        )
        hidden = attention_mask.padding if isinstance(attention_mask, Mask) else None
        if self._relpos_averages and hidden is not None:
            # Padding as a query sees no key; the model's softmax is then even over all keys.
            out = torch.where(hidden[..., None], value.mean(2).flatten(1)[:, None], out)
        return out, weights

    def _relpos_position(self, length: int, rel_embeddings: Tensor) -> Given:
        """The rows that distances below `length` reach, projected."""
        options, scheme = dict(self._relpos_options), self._relpos_scheme
        span = options["buckets"] or options["max_distance"]
        each = options["buckets"] // 2 or span  # up to it, every distance has its own row
        if length <= each and not torch.compiler.is_compiling():
            reach = max(length, 2)
            rows = rel_embeddings[span - reach : span + reach]
            options |= {"buckets": 0, "max_distance": reach}
            scheme = _scheme(tuple(options.items()))
        else:
            rows = rel_embeddings[: 2 * span]
        tables = self._relpos_tables(self.pos_dropout(rows))
        wanted = {"both": (0, 1), "c2p": (0,), "p2c": (1,)}[options["terms"]]
        return with_values(scheme, [tables[i] for i in wanted])


class _First(_Disentangled):
    """Version 1: one projection, whose outputs are query, key and value of each head in turn."""

    def _relpos_projected(self, states: Tensor) -> list[Tensor]:
        heads = self.num_attention_heads
        query, key, value = self.in_proj(states).unflatten(-1, (heads, -1)).chunk(3, dim=-1)
        query, value = (
            x + bias.unflatten(0, (heads, -1))
            for x, bias in ((query, self.q_bias), (value, self.v_bias))
        )
        return [x.transpose(1, 2) for x in (query, key, value)]

    def _relpos_tables(self, rows: Tensor) -> list[Tensor | None]:
        return _projected(self, rows, ("pos_proj", "pos_q_proj"))


class _Later(_Disentangled):
    """Versions 2 and 3, and SEW-D; share_att_key: positions are projected as tokens are."""

    def _relpos_projected(self, states: Tensor) -> list[Tensor]:
        return by_head(
            states, self.attention_head_size, self.query_proj, self.key_proj, self.value_proj
        )

    def _relpos_tables(self, rows: Tensor) -> list[Tensor | None]:
        own = ("key_proj", "query_proj")
        return _projected(self, rows, own if self.share_att_key else [f"pos_{n}" for n in own])


def _projected(module: nn.Module, rows: Tensor, names: Any) -> list[Tensor | None]:
    """[heads, rows, head_dim] of each projection, None where the module has none."""
    made = (getattr(module, name, None) for name in names)
    heads = module.num_attention_heads
    return [m and m(rows).unflatten(-1, (heads, -1)).transpose(0, 1) for m in made]


@functools.lru_cache(maxsize=1024)
def _scheme(options: tuple[tuple[str, Any], ...]) -> SchemePosition:
    """Its tables are given with each call; those of its own take no memory and no random number."""
    with torch.device("meta"):
        return relpos.DeBERTa(**dict(options))


def _rate(dropout: nn.Module) -> float:
    return dropout.drop_prob if hasattr(dropout, "drop_prob") else dropout.p


def _lazy_mask(encoder: nn.Module, attention_mask: Tensor) -> Mask | Tensor:
    """Replaces get_attention_mask."""
    if attention_mask.dim() != 2:
        return type(encoder).get_attention_mask(encoder, attention_mask).bool()
    hidden = attention_mask == 0
    if not torch.compiler.is_compiling() and not bool(hidden.any()):
        hidden = None
    length = attention_mask.shape[1]
    return Mask(length, length, 0, None, hidden)


def _no_distances(*_: Any, relative_pos: Tensor | None = None, **__: Any) -> Tensor | None:
    """Replaces get_rel_pos, which builds them for all pairs of tokens."""
    return relative_pos


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    encoder = _encoder(module, owner)
    if getattr(module, "talking_head", False):
        raise Unfused("its heads mix their scores (talking_head)", attention=False)
    kinds = tuple(kind in module.pos_att_type for kind in ("c2p", "p2c"))
    first = hasattr(module, "in_proj")
    found = None
    if module.relative_attention and any(kinds):
        found = tuple(
            {
                "heads": module.num_attention_heads,
                "head_dim": module.attention_head_size,
                "buckets": max(getattr(module, "position_buckets", 0), 0),
                "max_distance": module.max_relative_positions,
                "terms": _TERMS[kinds],
            }.items()
        )
        _agree_on_rows(module, found)
    averages = encoder.get_attention_mask(torch.ones(1, 2)).shape[-2] != 1
    state = {
        "_relpos_options": found,
        "_relpos_scheme": found and _scheme(found),
        "_relpos_terms": 1 + (len(module.pos_att_type) if first else sum(kinds)),
        "_relpos_averages": averages,
    }
    lazy = {
        "get_attention_mask": functools.partial(_lazy_mask, encoder),
        "get_rel_pos": _no_distances,
    }
    what = "no position" if found is None else f"{_scheme(found)._text} in the kernel"
    plan = Plan(what, _First if first else _Later, state, also=((encoder, lazy),))
    prove(module, plan, _calls(module, owner, encoder), implementation=NAME)
    return plan


def _encoder(module: nn.Module, owner: nn.Module) -> nn.Module:
    for part in owner.modules():
        makes = hasattr(part, "get_attention_mask") and hasattr(part, "get_rel_pos")
        if makes and any(each is module for each in part.modules()):
            return part
    raise Unfused("no encoder above it that makes its mask and its distances", attention=False)


def _agree_on_rows(module: nn.Module, options: tuple[tuple[str, Any], ...]) -> None:
    """Raises Unfused unless each distance meets the row that the module's own code gives it."""
    try:
        position = relpos.DeBERTa(**dict(options))
    except ValueError as error:
        raise Unfused(str(error), attention=False) from None
    buckets, reach = (dict(options)[name] for name in ("buckets", "max_distance"))
    span, far = buckets or reach, 4 * reach
    distances = torch.arange(far, -far - 1, -1)  # query - key
    if buckets:
        number = getattr(sys.modules[type(module).__module__], _BUCKET, None)
        if number is None:
            raise Unfused(f"no {_BUCKET} beside its class", attention=False)
        distances = number(distances, buckets, reach).to(torch.int64)
    theirs = (distances + span).clamp(0, 2 * span - 1)
    if not torch.equal(position.indices(1, 2 * far + 1, far)[0], theirs):
        raise Unfused(f"its rows are not those of {position._text}", attention=False)


def _calls(module: nn.Module, owner: nn.Module, encoder: nn.Module) -> Iterator[Compared]:
    own = copied(encoder, children=False)
    reach = getattr(module, "max_relative_positions", 1)
    width = module.num_attention_heads * module.attention_head_size
    rows = None
    if module.relative_attention:
        rows = draw(2 * (max(getattr(module, "position_buckets", 0), 0) or reach), width)
    every = lengths(width, {"max_position_embeddings": reach})
    for length in every[-1:] if repeated(module, owner) else every:
        states, tokens = draw(2, length, width), padded(2, length).to(torch.int64)
        given = {"hidden_states": states, "rel_embeddings": rows}
        theirs = {
            "attention_mask": own.get_attention_mask(tokens),
            "relative_pos": own.get_rel_pos(states),
        }
        yield Compared({**given, **theirs}, {**given, "attention_mask": _lazy_mask(own, tokens)})


ADAPTERS = [Adapter(("DisentangledSelfAttention",), _plan)]
