"""Attention over sequences that lie on many ranks of torch.distributed: docs/distributed.md."""

from relpos.distributed._attention import ring_attention, ulysses_attention
from relpos.distributed._context import context_parallel
from relpos.distributed._exchange import Traffic, traffic
from relpos.distributed._layout import shard, unshard

__all__ = [
    "Traffic",
    "context_parallel",
    "ring_attention",
    "shard",
    "traffic",
    "ulysses_attention",
    "unshard",
]
