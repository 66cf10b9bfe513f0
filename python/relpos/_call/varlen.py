"""relpos.attention_varlen: sequences of different lengths, packed one after another."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from relpos._base.arguments import flag
from relpos._base.tensors import check_device, check_rank, check_shape
from relpos._call.attention import attention, refuse_elsewhere
from relpos._call.distances import lowered_within, refuse_grid
from relpos._call.options import OfSoftmax, check_names
from relpos._call.packing import bounds_of, pack
from relpos._call.typed import attending_packed
from relpos._position.part import reads_positions

_PLACED = "positions start at 0 again in each sequence; q_offset says where its queries start"
_SEEN = (
    "cu_seqlens_q and cu_seqlens_k say which keys queries see, with is_causal and window; for "
    "other keys call relpos.attention on each sequence by itself, or on all rows at once, "
    "[1, H, Tq, D], with {name}, q_positions and k_positions"
)
_INSTEAD = {
    "attn_mask": _SEEN.format(name="attn_mask or key_range"),
    "key_range": _SEEN.format(name="key_range"),
    "key_padding_mask": "leave out the rows of padding, and give cu_seqlens_k without them",
    **dict.fromkeys(("k_offset", "q_positions", "k_positions"), _PLACED),
}


@attending_packed
def attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    return_lse: bool = False,
    **options: Unpack[OfSoftmax],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention within each of S packed sequences, in one call. Positions start again in each.

    Equal to relpos.attention on each sequence by itself. No Lq x Lk tensor is built, and keys of
    other sequences are read only where two sequences share a group of 64 keys. A position that
    depends on the length of a call must fix it by its option length=.

    Args:
      query: [Tq, H, D], key [Tk, Hk, D], value [Tk, Hk, Dv]: the sequences one after another.
      cu_seqlens_q, cu_seqlens_k: int32 or int64 [S + 1]: where each sequence starts, then Tq (Tk):
        0, l_0, l_0 + l_1, ... Sequences may be empty. cu_seqlens_k=None: the same as for queries.
      is_causal, window: as in relpos.attention, between positions within a sequence.
      q_offset: position of each sequence's first query, an int or int64 [S]; its first key is at
        0. It must be given where positions matter and a sequence has more or fewer keys than
        queries (under torch.compile: where cu_seqlens_k is given).
      sinks: [H] or [H, Tq].
      The others are those of relpos.attention.

    Returns:
      out [Tq, H, Dv], or (out, lse [H, Tq]).
    """
    check_names("attention_varlen", options, _INSTEAD)
    refuse_elsewhere("attention_varlen", "give ring_attention cu_seqlens")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_rank(name, tensor, 3, "[Tq, H, D]" if name == "query" else "[Tk, Hk, D]")
    starts = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for name, tensor in starts.items():
        if isinstance(tensor, Tensor):
            check_device(name, tensor, query)
    position, q_offset = options.pop("position", None), options.pop("q_offset", None)
    is_causal = flag("is_causal", options.pop("is_causal", False))
    bounds = bounds_of(options.pop("window", None), is_causal)
    sizes = {"query": query.shape[0], "key": key.shape[0]}
    refuse_grid(position, "packed sequences are several", "each of its pictures as a batch row")
    packing = pack(starts, sizes, position, q_offset, bounds)
    rows, columns = (torch.arange(x.shape[0], device=x.device) for x in (query, key))
    positions = {}
    if reads_positions(position):
        positions = {"q_positions": packing.queries(rows), "k_positions": packing.keys(columns)}
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    position = lowered_within(q, k, {"position": position, **positions}, bounds)
    results = attention(
        q,
        k,
        v,
        position=packing.restarted(position),
        sinks=_of_batch(options.pop("sinks", None), query),
        key_range=packing.key_range(rows, columns, *bounds),
        return_lse=return_lse,
        **positions,
        **options,
    )
    out, lse = results if return_lse else (results, None)
    out = out.squeeze(0).transpose(0, 1).contiguous()
    return out if lse is None else (out, lse.squeeze(0))


def _of_batch(sinks: Any, query: Tensor) -> Any:
    """[H] or [H, Tq] as relpos.attention takes them."""
    if not isinstance(sinks, Tensor) or sinks.dim() == 1:
        return sinks
    tokens, heads = query.shape[:2]
    check_shape("sinks", sinks, (heads,), (heads, tokens))
    return sinks.unsqueeze(0)
