"""The same model on PyTorch's own attention, for comparison.

There a learned bias is a dense [H, Lq, Lk] mask that requires a gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import relpos
from relpos.lab.model import Model, Shape


class NoBias(ValueError):
    """The scheme cannot be given to PyTorch's attention as a mask."""


def torch_attention(query, key, value, *, position=None, is_causal=False, q_offset=0):
    """relpos.attention for a bias per head, computed by PyTorch's scaled_dot_product_attention."""
    heads, q_length, k_length = query.shape[1], query.shape[2], key.shape[2]
    if position is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    bias = position.dense(q_length, k_length, q_offset)
    if torch.is_tensor(bias) and bias.dim() == 3 and len(bias) == 1:
        bias = bias.expand(heads, -1, -1)
    if not torch.is_tensor(bias) or bias.shape != (heads, q_length, k_length):
        raise NoBias(
            "--compare: PyTorch's attention takes a bias per head, which "
            f"{type(position).__name__} is not; compare t5, bias_rpe or alibi"
        )
    if is_causal:
        at_query = torch.arange(q_length)[:, None] + q_offset
        bias = bias.masked_fill(torch.arange(k_length) > at_query, -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])


IMPLEMENTATIONS = {"relpos": relpos.attention, "torch": torch_attention}


def check_scheme(scheme: str, shape: Shape) -> None:
    """Raises NoBias if torch_attention cannot compute the scheme."""
    position = Model(shape, scheme, seed=0).position(0)
    query = torch.zeros(1, shape.heads, 2, shape.head_dim)
    torch_attention(query, query, query, position=position)


def summary(row: dict) -> str:
    ours, theirs = row["relpos"], row["torch"]
    return (
        f"a training step with {row['scheme']}, {row['batch']} x {row['length']} tokens: "
        f"relpos {ours['ms']:.0f} ms and {ours['extra_mb']:.0f} MB, "
        f"PyTorch's own attention {theirs['ms']:.0f} ms and {theirs['extra_mb']:.0f} MB; "
        f"{equality(row)}"
    )


def difference(row: dict) -> float:
    pairs = zip(row["relpos"]["losses"], row["torch"]["losses"], strict=True)
    return max(abs(a - b) for a, b in pairs)


def equal(row: dict) -> bool:
    return difference(row) < 1e-4


def equality(row: dict) -> str:
    word = "equal losses" if equal(row) else "losses DIFFER"
    largest = difference(row)
    how = f"to {largest:.0e}" if largest else "to the last bit"
    return f"{word} ({how}, {len(row['relpos']['losses'])} steps)"
