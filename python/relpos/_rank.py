"""The check of a tensor argument's rank."""

from typing import Any

from torch import Tensor


def check_rank(name: str, tensor: Any, rank: int, layout: str, *, or_more: bool = False) -> None:
    """Raises unless `tensor` is one of rank `rank`, or more where said, laid out as `layout`."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_nested:
        raise TypeError(
            f"{name}: expected a dense tensor, got a nested one; relpos.attention_varlen takes "
            "sequences of many lengths, one after another"
        )
    if tensor.dim() != rank and not (or_more and tensor.dim() > rank):
        expected = f"rank {rank} or more" if or_more else f"rank {rank}"
        raise ValueError(f"{name}: expected {expected}, {layout}, got {list(tensor.shape)}")
