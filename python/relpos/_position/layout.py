"""Plain operations from the papers: the skew, and the two pair layouts of rotated weights."""

import re
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from relpos._base.errors import shape_of, wrong_value


def skew(x: Tensor) -> Tensor:
    """The Music Transformer's skew of [..., L, L]: a column of zeros on the left, reshaped to
    [..., L + 1, L], without its first row.

    Row i, column j <= i, holds x[..., i, L - 1 + j - i]. Above the diagonal are a zero and then
    another query's values, which must be masked.
    """
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        raise wrong_value("x", "[..., L, L]", shape_of(x))
    length = x.shape[-1]
    padded = torch.nn.functional.pad(x, (1, 0))
    return padded.reshape(*x.shape[:-2], length + 1, length)[..., 1:, :]


# Modules of checkpoints whose rows are heads times head_dim of rotated queries or keys: those of
# Hugging Face's Llama, Qwen, Mistral, Gemma, Phi, GPT-J and others, those of Meta's Llama, and the
# norms of queries and keys.
_ROTATED = re.compile(
    r"(?:^|\.)(?:[qk]_proj|w[qk]|[qk]_norm|(?:query|key)_layernorm|[qk]_layernorm)"
    r"\.(?P<leaf>.+)$"
)
_ROWS = re.compile(r"(?:weight|bias|lora_B(?:\.[^.]+)?\.weight)$")  # whose first axis is the output
_COLUMNS = re.compile(r"lora_A(?:\.[^.]+)?\.weight$")
_FUSED = re.compile(
    r"(?:^|\.)(?:qkv|qkv_proj|query_key_value|Wqkv|c_attn|att_proj|in_proj_weight|in_proj_bias"
    r"|kv_a_proj_with_mqa|q_b_proj)(?:\.|$)"
)


Weights = TypeVar("Weights", Tensor, Mapping[str, Tensor])


def rope_permute(
    weight: Weights, head_dim: int, *, to: str, rotary_dim: int | None = None, prefix: str = ""
) -> Weights:
    """A query or key projection, or a whole checkpoint, reordered for the other pair layout.

    Scores stay equal if queries and keys are both permuted.

    Args:
      weight: [H * head_dim, ...]: a projection's weight, its bias, or a norm's weight of one head
        or all heads; or a state dict, whose other tensors are returned unchanged and not copied.
      to: the layout of the result. "half" is made from pairs (2p, 2p + 1), "interleaved" from
        pairs (p, p + rotary_dim / 2).
      rotary_dim: how many dimensions of a head are rotated, from the first on; None means all.
      prefix: only names of a state dict that start with it are permuted. The rest, such as a
        vision encoder with heads of another size, stays.

    Returns:
      a tensor, or a dict in the order of the state dict.

    Raises ValueError where a state dict has no q_proj, k_proj or similar names, where it has only
    one of the two, where queries and keys are fused in one tensor, or where the rows of a tensor
    beside them, such as a quantisation scale, are not known.
    """
    if to not in ("half", "interleaved"):
        raise wrong_value("to", "'half' or 'interleaved'", repr(to))
    if isinstance(weight, Tensor):
        _check_rows("weight", weight, head_dim)
    dims = head_dim if rotary_dim is None else rotary_dim
    if head_dim < 1 or dims < 0 or dims > head_dim or dims % 2:
        raise wrong_value("rotary_dim", f"an even number up to {head_dim}", dims)
    rows = torch.arange(head_dim)
    pairs = rows[:dims].view(-1, 2).T if to == "half" else rows[:dims].view(2, -1).T
    order = torch.cat([pairs.reshape(-1), rows[dims:]])
    if isinstance(weight, Tensor):
        return _permuted("weight", weight, order)
    chosen = _rotated_names([name for name in weight if name.startswith(prefix)])
    return {
        name: _permuted(name, tensor, order) if name in chosen else tensor
        for name, tensor in weight.items()
    }


def _permuted(name: str, weight: Tensor, order: Tensor) -> Tensor:
    _check_rows(name, weight, len(order))
    heads = weight.unflatten(0, (-1, len(order)))
    return heads.index_select(1, order.to(weight.device)).flatten(0, 1)


def _check_rows(name: str, weight: Tensor, head_dim: int) -> None:
    if head_dim < 1 or weight.dim() < 1 or weight.shape[0] % head_dim:
        raise wrong_value(name, f"rows in multiples of head_dim {head_dim}", shape_of(weight))


def _rotated_names(names: list[str]) -> set[str]:
    """The names of tensors whose rows follow the pair layout."""
    chosen, sides = set(), set()
    for name in names:
        if _FUSED.search(name):
            raise ValueError(
                f"{name}: holds queries together with others; split it into q_proj and k_proj "
                "first, or permute its query and key rows one by one"
            )
        found = _ROTATED.search(name)
        if not found or _COLUMNS.match(found["leaf"]):
            continue
        if not _ROWS.match(found["leaf"]):
            raise ValueError(
                f"{name}: expected weight, bias or LoRA factors of a query or key projection; "
                "what its rows are cannot be told (dequantise first)"
            )
        chosen.add(name)
        sides.add("query" if "q" in found[0].removesuffix(found["leaf"]) else "key")
    if sides != {"query", "key"}:
        held = f"only the {sides.pop()} side" if sides else "neither"
        raise ValueError(
            f"weight: expected a state dict with query and key projections (q_proj, k_proj or wq, "
            f"wk), found {held} among {len(names)} names"
        )
    return chosen
