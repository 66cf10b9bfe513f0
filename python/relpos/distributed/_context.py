"""Under context_parallel(...), relpos.attention is ring_attention."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from relpos._base.arguments import flag, one_of
from relpos._base.errors import wrong_value
from relpos._call import attention as _attention
from relpos.distributed._attention import ring_attention, ulysses_attention
from relpos.distributed._layout import check_layout, shard

MODES = ("ring", "all_gather", "ulysses")


@contextlib.contextmanager
def context_parallel(
    mesh: Any = None,
    *,
    layout: str = "contiguous",
    mode: str = "ring",
    reduce_position: bool = False,
    buffers: Sequence[Tensor] = (),
    buffer_seq_dims: Sequence[int] = (),
) -> Iterator[None]:
    """Within it, relpos.attention and all that calls it, relpos.nn.MultiheadAttention too, take
    this rank's shard of a sequence that lies on the ranks of `mesh`.

    Args:
      mesh: a DeviceMesh of one axis, or of two (ring, heads); a ProcessGroup; None: all ranks.
      layout, reduce_position: as in ring_attention.
      mode: "ring", "all_gather" or "ulysses".
      buffers: tensors that every rank holds whole, without requires_grad. Within, each holds this
        rank's shard along the axis of buffer_seq_dims in their order; afterwards what it held.

    The offset of positions is that of the whole sequence's first token; what a call says of its
    queries and keys (key_padding_mask, key_range, positions) is of this rank's. Nested, the inner
    one holds; all threads of the process are within. A backward pass may run outside, unless it
    calls attention anew (checkpointing).
    """
    check_layout(layout)
    one_of("mode", mode, MODES)
    if len(buffers) != len(buffer_seq_dims):
        wanted = f"one for each of {len(buffers)} buffers"
        raise wrong_value("buffer_seq_dims", wanted, len(buffer_seq_dims))
    for n, buffer in enumerate(buffers):
        if buffer.requires_grad:
            then = "shard() is differentiable"
            raise wrong_value(f"buffers[{n}]", "one without requires_grad", "one with it", then)
    reduce_position = flag("reduce_position", reduce_position)
    common = {"group": mesh, "layout": layout, "reduce_position": reduce_position}

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if mode == "ulysses":
            return ulysses_attention(query, key, value, **common, **options)
        return ring_attention(query, key, value, mode=mode, **common, **options)

    whole = [buffer.data for buffer in buffers]
    shards = [
        shard(buffer, layout=layout, dim=dim, group=mesh)
        for buffer, dim in zip(buffers, buffer_seq_dims, strict=True)
    ]
    _attention.ELSEWHERE.append(attend)
    try:
        for buffer, own in zip(buffers, shards, strict=True):
            buffer.data = own
        yield
    finally:
        _attention.ELSEWHERE.remove(attend)
        for buffer, data in zip(buffers, whole, strict=True):
            buffer.data = data
