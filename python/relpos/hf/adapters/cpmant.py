"""CPM-Ant: T5's buckets within a segment, and a number for each pair of segments."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos._position.position import SchemePosition
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask, NotATensor
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, draw, filled, padded, prove, sizes, twin

_LONGEST = 2**16  # of relpos.CPMAntBias
_COMPILED = 2**12  # tokens of a graph for all lengths


class _Rows(NotATensor):
    """Of [..., Lq, Lk]: the model leaves out its first queries, which a cache holds."""

    def __init__(self, what: str, start: int = 0) -> None:
        super().__init__(what)
        self.start = start

    def __getitem__(self, index: tuple[Any, ...]) -> _Rows:
        left = index[-2].start or 0
        return self._from(self.start + left)


class _Seen(_Rows):
    """In place of the model's mask. hidden: bool [B, L], tokens that are padding."""

    def __init__(self, hidden: Tensor, start: int = 0) -> None:
        super().__init__("its attention mask", start)
        self.hidden = hidden

    def _from(self, start: int) -> _Seen:
        return _Seen(self.hidden, start)


class _Segments(_Rows):
    """In place of the model's bias. module: what makes it; the segments of tokens are [B, L]."""

    def __init__(
        self, module: nn.Module, q_segments: Tensor, k_segments: Tensor, start: int = 0
    ) -> None:
        super().__init__("its position bias", start)
        self.module, self.q_segments, self.k_segments = module, q_segments, k_segments

    def _from(self, start: int) -> _Segments:
        return _Segments(self.module, self.q_segments, self.k_segments, start)

    def position(self) -> Given:
        of, keys = self.module, self.k_segments.shape[1]
        if torch.compiler.is_compiling():
            scheme = of._relpos_scheme
        else:
            scheme = _scheme_of(of, 1 << keys.bit_length())
        of_q = self.q_segments[:, self.start :].long()
        return with_values(scheme, [of.relative_attention_bias, of_q, self.k_segments.long()])


def _scheme_of(bias: nn.Module, longest: int) -> SchemePosition:
    """The scheme for calls of up to `longest` tokens."""
    longest = max(256, bias.max_distance // 2 + 1, longest)
    sizes = (bias.num_heads, bias.num_segments, bias.num_buckets, bias.max_distance)
    return _scheme(*sizes, min(longest, _LONGEST))


@functools.lru_cache(maxsize=64)
def _scheme(heads: int, segments: int, buckets: int, reach: int, longest: int) -> SchemePosition:
    """Its table is given with each call; that of its own takes no memory and no random number."""
    sizes = {"segments": segments, "buckets": buckets, "max_distance": reach}
    with torch.device("meta"):
        return relpos.CPMAntBias(heads, **sizes, max_length=longest)


class _Attention:
    """CpmAntAttention.forward on relpos."""

    def forward(
        self,
        hidden_q: Tensor,
        hidden_kv: Tensor,
        attention_mask: _Seen,
        position_bias: _Segments,
        output_attentions: bool | None = False,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        (query,) = by_head(hidden_q, self.dim_head, self.project_q)
        key, value = by_head(hidden_kv, self.dim_head, self.project_k, self.project_v)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        hidden, start = attention_mask.hidden, attention_mask.start
        if not torch.compiler.is_compiling() and not bool(hidden.any()):
            hidden = None
        out, weights = attended(
            query,
            key,
            value,
            Mask(query.shape[2], key.shape[2], start, None, hidden),
            position=position_bias.position(),
            q_start=start,
            dropout=self.dropout.p if self.training and self.dropout is not None else 0.0,
            scale=1.0 / math.sqrt(self.dim_head),
            weights=bool(output_attentions),
        )
        if hidden is not None:  # padding sees nothing, as a query, too
            rows = hidden[:, start:, None]
            out = out.masked_fill(rows, 0.0)
            weights = None if weights is None else weights.masked_fill(rows[:, None], 0.0)
        return self.attention_out(out), weights


def _lazy_mask(
    model: nn.Module, input_ids: Tensor, span: Tensor, context: Tensor, length: Tensor
) -> _Seen:
    """Replaces _prepare_attention_mask: padding is on the left, behind the prompt. The model gives
    one span, and context that every token sees."""
    tokens = input_ids.shape[1] - model.prompt_length
    left = torch.arange(tokens, 0, -1, device=input_ids.device) > length[:, None]
    return _Seen(nn.functional.pad(left, (model.prompt_length, 0)))


def _lazy_bias(
    module: nn.Module,
    key_pos: Tensor,
    query_pos: Tensor,
    key_segment: Tensor,
    query_segment: Tensor,
) -> _Segments:
    """Replaces the forward of position_bias."""
    return _Segments(module, query_segment, key_segment)


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    bias = getattr(owner, "position_bias", None)
    if not hasattr(bias, "relative_attention_bias"):
        raise Unfused("no position_bias with a table in its model", attention=False)
    _agree_on_buckets(bias)
    lazy = {"_prepare_attention_mask": functools.partial(_lazy_mask, owner)}
    of_bias = {
        "forward": functools.partial(_lazy_bias, bias),
        "_relpos_scheme": _scheme_of(bias, _COMPILED),
    }
    plan = Plan(
        f"{bias.num_buckets} buckets within a segment and pairs of segments in the kernel",
        _Attention,
        also=((owner, lazy), (bias, of_bias)),
    )
    prove(module, plan, _calls(module, owner, bias), implementation=NAME)
    return plan


def _agree_on_buckets(bias: nn.Module) -> None:
    """Raises Unfused unless each distance has the bucket that the module's own code gives it."""
    count, reach = bias.num_buckets, bias.max_distance
    far = 2 * reach
    try:
        position = relpos.T5Bias(bias.num_heads, buckets=count, max_distance=reach)
        _scheme_of(bias, far)
    except ValueError as error:
        raise Unfused(str(error), attention=False) from None
    theirs = bias._position_bucket(torch.arange(-far, far + 1), count, reach)
    if not torch.equal(position.indices(1, 2 * far + 1, far)[0], theirs.long()):
        raise Unfused("its buckets are not those of relpos.CPMAntBias", attention=False)


def _calls(module: nn.Module, owner: nn.Module, bias: nn.Module) -> Iterator[Compared]:
    own = twin(bias)
    for queries, before in sizes(module, owner):
        keys = before + queries
        tokens = torch.arange(keys).expand(2, -1)
        segments = (tokens > keys // 3).long() * min(2, own.num_segments - 1)
        places = (tokens, tokens, segments, segments)
        hidden = ~padded(2, keys)
        dense = ~(hidden[:, :, None] | hidden[:, None])
        states = draw(2, queries, module.dim_model)
        theirs, ours = (
            {
                "hidden_q": states,
                "hidden_kv": states,
                "past_key_values": filled(module, module.num_heads, before, module.dim_head),
            }
            for _ in range(2)
        )
        theirs |= {
            "attention_mask": dense[:, before:],
            "position_bias": own(*places)[:, :, before:],
        }
        ours |= {
            "attention_mask": _Seen(hidden, before),
            "position_bias": _lazy_bias(own, *places)._from(before),
        }
        yield Compared(theirs, ours)


ADAPTERS = [Adapter(("CpmAntAttention",), _plan)]
