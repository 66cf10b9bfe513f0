"""Functions of PyTorch and FlashAttention with the same arguments, layouts and alignments, computed
by relpos. Each but flex_attention is also available as relpos.<its name>."""

import math
import sys
from typing import Any, Literal, overload

import torch
from torch import Tensor

from relpos._base.arguments import flag, number
from relpos._base.errors import shape_of, wrong_value
from relpos._base.tensors import check_rank, check_shape
from relpos._call.attention import attention
from relpos._call.varlen import attention_varlen
from relpos._flex.attention import flex_attention
from relpos._mask.tile_mask import TileMask
from relpos._position.part import Given

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flex_attention", "sdpa"]


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | TileMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by relpos.

    Args:
      query: [N, ..., Hq, Lq, D], key [N, ..., Hk, Lk, D], value [N, ..., Hk, Lk, Dv]; heads and
        leading axes may be missing or broadcast.
      attn_mask: bool, True = attend, or floating-point, added; broadcastable to
        [N, ..., Hq, Lq, Lk]. A causal bias of torch.nn.attention.bias is used without a mask. A
        relpos.TileMask is of [B, H, Lq, Lk], B being all leading axes side by side.
      is_causal: query i sees keys j <= i, also where Lq and Lk differ.

    Returns:
      out [N, ..., Hq, Lq, Dv]. A query that sees no key gets 0. A hidden NaN changes no result.

    Raises what relpos.attention raises, and ValueError where attn_mask and is_causal are both
    given, as PyTorch documents it.
    """
    is_causal = flag("is_causal", is_causal)
    if attn_mask is not None and is_causal:
        raise ValueError(
            "attn_mask: expected None where is_causal is True, as PyTorch documents it; AND the "
            "triangle into the mask, or call relpos.attention, which takes both"
        )
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_rank(name, tensor, 2, "[N, ..., H, L, D]", or_more=True)
    q_offset = 0
    if _is_causal_bias(attn_mask):
        queries, keys = query.shape[-2], key.shape[-2]
        made_for = attn_mask.seq_len_q, attn_mask.seq_len_kv
        if made_for != (queries, keys):
            wanted = f"a causal bias of {queries} queries and {keys} keys"
            raise wrong_value("attn_mask", wanted, f"one made for {made_for[0]} and {made_for[1]}")
        if attn_mask.variant.name == "LOWER_RIGHT":
            q_offset = keys - queries
        attn_mask, is_causal = None, True

    inputs = (query, key, value)
    rank = max(x.dim() for x in inputs)
    lead = query.shape[:-3]
    if not lead == key.shape[:-3] == value.shape[:-3]:
        lead = torch.broadcast_shapes(*(x.shape[:-3] for x in inputs))
    heads = max(x.shape[-3] if x.dim() > 2 else 1 for x in inputs)
    q, k, v = (_folded(x, lead, None if enable_gqa else heads) for x in inputs)
    if isinstance(attn_mask, Tensor) and attn_mask.dim() > 3:
        if attn_mask.dim() > rank:
            wanted = f"at most rank {rank}, that of the inputs"
            raise wrong_value("attn_mask", wanted, shape_of(attn_mask))
        if rank > 4:
            attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-3:]).flatten(0, -4)
    out = attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        q_offset=q_offset if is_causal else None,
    )
    if rank == 2:
        return out[0, 0]
    return out if len(lead) == 1 else out.view(*lead, *out.shape[1:])


@overload
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    *,
    return_attn_probs: Literal[True],
) -> tuple[Tensor, Tensor, Tensor]: ...
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """FlashAttention 2's flash_attn_func, computed by relpos.

    Args:
      q: [B, Lq, H, D], k [B, Lk, Hk, D], v [B, Lk, Hk, Dv]; Hk divides H.
      causal: query i sees keys j <= i + Lk - Lq, so that the last query sees all keys.
      window_size: (left, right) keys around i + Lk - Lq; -1 means no bound.
      softcap: c > 0: scores become c tanh(score / c); 0: no cap. Not with alibi_slopes, which
        FlashAttention adds after the cap, relpos before it.
      alibi_slopes: [H] or [B, H]: adds -slope |i + Lk - Lq - j|. It has a gradient here.
      deterministic: not read, since relpos always is.
      return_attn_probs: also returns softmax_lse and the weights. Not with dropout, where
        FlashAttention marks dropped weights by a negative sign.

    Returns:
      out [B, Lq, H, Dv], or (out, softmax_lse [B, H, Lq], weights [B, H, Lq, Lk]). The weights are
      dense and detached. softmax_lse has a gradient here, and is -inf for a query that sees no key.
    """
    return_attn_probs = flag("return_attn_probs", return_attn_probs)
    options = _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    if return_attn_probs and dropout_p > 0:
        raise ValueError(
            "return_attn_probs: expected False where dropout_p > 0, got True: FlashAttention gives "
            "dropped weights a negative sign, relpos makes them 0; relpos.attention(..., "
            "return_weights=True) returns those"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_rank(name, tensor, 4, "[B, L, H, D]")
    batch, _, heads = q.shape[:3]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if alibi_slopes is not None:
        check_shape("alibi_slopes", alibi_slopes, (heads,), (batch, heads))
    per_row = alibi_slopes is not None and alibi_slopes.dim() == 2
    if per_row:
        q, k, v = (x.reshape(1, -1, *x.shape[2:]) for x in (q, k, v))
        alibi_slopes = alibi_slopes.flatten()
    position = None if alibi_slopes is None else _alibi(alibi_slopes, q.shape[1])
    results = attention(
        q,
        k,
        v,
        position=position,
        **options,
        q_offset=k.shape[2] - q.shape[2],
        return_lse=return_attn_probs,
        return_weights=return_attn_probs,
    )
    out, *rest = results if return_attn_probs else (results,)
    if per_row:
        out, *rest = (x.reshape(batch, heads, *x.shape[2:]) for x in (out, *rest))
    out = out.transpose(1, 2).contiguous()
    return (out, *rest) if return_attn_probs else out


@overload
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    block_table: Tensor | None = None,
) -> Tensor: ...
@overload
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    *,
    return_attn_probs: Literal[True],
    block_table: Tensor | None = None,
) -> tuple[Tensor, Tensor, None]: ...
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """FlashAttention 2's flash_attn_varlen_func, computed by relpos.attention_varlen.

    Args:
      q: [Tq, H, D], k [Tk, Hk, D], v [Tk, Hk, Dv], sequences one after another, which start at
        cu_seqlens_q and cu_seqlens_k, int32 or int64 [S + 1].
      max_seqlen_q, max_seqlen_k: not needed here, and not read.
      alibi_slopes: [H]; different slopes for each sequence raise an error.
      block_table: must be None, since relpos has no paged cache.
      The others are those of relpos.flash_attn_func; causal and window_size are aligned at each
      sequence's end.

    Returns:
      out [Tq, H, Dv], or (out, softmax_lse [H, Tq], None), since packed weights are not computed.
    """
    return_attn_probs = flag("return_attn_probs", return_attn_probs)
    options = _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    if block_table is not None:
        raise ValueError("block_table: expected None, for relpos has no paged cache, got a table")
    check_rank("q", q, 3, "[Tq, H, D]")
    position = None if alibi_slopes is None else _alibi(alibi_slopes, q.shape[1])
    results = attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        position=position,
        **options,
        q_offset=cu_seqlens_k.diff() - cu_seqlens_q.diff(),
        return_lse=return_attn_probs,
    )
    return (*results, None) if return_attn_probs else results


def _is_causal_bias(attn_mask: Any) -> bool:
    """A caller who has one has imported its module; importing it here imports torch._dynamo."""
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(attn_mask, module.CausalBias)


def _folded(x: Tensor, lead: torch.Size, heads: int | None) -> Tensor:
    """[N, ..., H, L, D] as [B, H, L, D]; a head axis of 1 becomes `heads`, where given."""
    if x.dim() < 3:
        x = x.unsqueeze(0)
    own = heads if heads is not None and x.shape[-3] == 1 else x.shape[-3]
    shape = (*lead, own, *x.shape[-2:])
    wide = x if x.shape == shape else x.expand(shape)
    return wide if len(lead) == 1 else wide.reshape(math.prod(lead), *wide.shape[-3:])


def _options(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
) -> dict[str, Any]:
    """The arguments of FlashAttention as options of relpos.attention."""
    softcap = number("softcap", softcap)
    if softcap and alibi_slopes is not None:
        why = "FlashAttention adds them after the cap, relpos adds positions before it"
        raise wrong_value("softcap", "0.0 beside alibi_slopes", softcap, why)
    return {
        "dropout_p": dropout_p,
        "is_causal": flag("causal", causal),
        "scale": None if softmax_scale is None else number("softmax_scale", softmax_scale),
        "softcap": softcap or None,
        "enable_gqa": True,
        "window": tuple(window_size),
    }


def _alibi(slopes: Tensor, heads: int) -> Given:
    check_shape("alibi_slopes", slopes, (heads,))
    return Given(f"alibi(heads={heads})", [slopes])
