"""torch's flex_attention, computed by relpos."""

from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import flag, number
from relpos._base.errors import wrong_value
from relpos._base.tensors import check_heads
from relpos._call.attention import attention
from relpos._flex.block_mask import seen_by
from relpos._flex.known import lowered
from relpos._flex.masks import both_masks, both_windows
from relpos._flex.pieces import ScoreMod


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, computed by relpos, without a compiler.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv]. Key and value may have one
        batch row for all.
      score_mod: what relpos.from_score_mod takes. It is traced once, and again where its code, its
        numbers or the shapes of its tensors are others.
      block_mask: a BlockMask of these lengths. Its mask_mod and its blocks are read at its first
        call.
      scale: multiplies the products before score_mod; None means 1 / sqrt(D).
      return_lse: also returns the log-sum-exp (natural log) [B, H, Lq], differentiable.
      kernel_options: not read.
      return_aux: an AuxRequest: also returns an AuxOutput, with lse. max_scores is refused.

    Returns:
      out [B, H, Lq, Dv], alone or with lse or the AuxOutput. Gradients flow to every tensor that
      score_mod captures.

    Raises ValueError for a score_mod that no term computes, with the reason and what would do.

    Source: Dong et al. 2024, Flex Attention.
    """
    check_heads(query=query, key=key, value=value)
    return_lse = flag("return_lse", return_lse)
    if return_aux is not None and (return_lse or return_aux.max_scores):
        wanted = "AuxRequest(lse=...) without return_lse, for relpos has no maximum of scores"
        raise wrong_value("return_aux", wanted, f"{return_aux}, return_lse={return_lse}")
    if key.shape[0] == 1 < query.shape[0]:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    prepare = _options
    if torch.compiler.is_compiling():  # functions of pairs are traced by make_fx, not by Dynamo
        prepare = torch.compiler.disable(prepare)
    options = prepare(query, key, score_mod, block_mask, scale)
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    results = attention(query, key, value, **options, enable_gqa=enable_gqa, return_lse=wants_lse)
    if return_aux is None:
        return results
    from torch.nn.attention.flex_attention import AuxOutput

    out, lse = results if wants_lse else (results, None)
    return out, AuxOutput(lse=lse)


def _options(
    query: Tensor, key: Tensor, score_mod: ScoreMod | None, block_mask: Any, scale: float | None
) -> dict[str, Any]:
    """Those of relpos.attention that say what the functions say."""
    options: dict[str, Any] = {"q_offset": 0}
    if scale is not None:
        options["scale"] = number("scale", scale)
    if not (query.shape[2] and key.shape[2]):  # there is no pair of which they could speak
        return options
    if score_mod is not None:
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        options |= lowered(score_mod, query.shape[1], dtype)._options_of(query, key, scale)
    if block_mask is not None:
        window, mask = seen_by(block_mask, query, key)
        options["window"] = both_windows(options.get("window"), window)
        options["attn_mask"] = both_masks(options.get("attn_mask"), mask)
    return options
