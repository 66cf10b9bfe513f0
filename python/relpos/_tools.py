"""Plain operations from the papers: the skew, and the two pair layouts of rotated weights."""

import torch
from torch import Tensor


def skew(x: Tensor) -> Tensor:
    """The Music Transformer's skew of [..., L, L]: a column of zeros on the left, reshaped to
    [..., L + 1, L], without its first row.

    Row i, column j <= i, holds x[..., i, L - 1 + j - i]. Above the diagonal stand a zero and then
    another query's values: they must be masked.
    """
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"x: expected [..., L, L], got {list(x.shape)}")
    length = x.shape[-1]
    padded = torch.nn.functional.pad(x, (1, 0))
    return padded.reshape(*x.shape[:-2], length + 1, length)[..., 1:, :]


def rope_permute(
    weight: Tensor, head_dim: int, *, to: str, rotary_dim: int | None = None
) -> Tensor:
    """A query or key projection of one pair layout, permuted to the other.

    `weight` is [H * head_dim, ...]: the projection's weight, its bias, or a norm's weight of one
    head. `to` is the layout that it is meant for afterwards: "half" takes rows from pairs
    (2p, 2p + 1), "interleaved" from pairs (p, p + rotary_dim / 2). Scores stay equal when queries
    and keys are both permuted.
    """
    if to not in ("half", "interleaved"):
        raise ValueError(f"to: expected 'half' or 'interleaved', got {to!r}")
    if head_dim < 1 or weight.dim() < 1 or weight.shape[0] % head_dim:
        raise ValueError(
            f"weight: expected rows in multiples of head_dim {head_dim}, got {list(weight.shape)}"
        )
    dims = head_dim if rotary_dim is None else rotary_dim
    if dims < 0 or dims > head_dim or dims % 2:
        raise ValueError(f"rotary_dim: expected an even number up to {head_dim}, got {dims}")
    rows = torch.arange(head_dim, device=weight.device)
    pairs = rows[:dims].view(-1, 2).T if to == "half" else rows[:dims].view(2, -1).T
    order = torch.cat([pairs.reshape(-1), rows[dims:]])
    heads = weight.unflatten(0, (-1, head_dim))
    return heads.index_select(1, order).flatten(0, 1)
