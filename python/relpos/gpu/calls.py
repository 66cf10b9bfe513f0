"""A call on the GPU: what relpos._core does on the CPU, by the kernels of this folder."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from relpos.gpu.device import on
from relpos.gpu.lower import Lowered
from relpos.gpu.rows import chunks
from relpos.gpu.run import Run, RunOfScores


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Any,
    out: Tensor,
    lse: Tensor | None,
    softmax: Tensor | None,
) -> None:
    """Writes out [B, H, Lq, Dv], and lse [B, H, Lq] and softmax [B, H, Lq, 2] where given; all are
    contiguous."""
    lowered = Lowered(query, key, value, call)
    if not query.numel():
        return
    with on(query.device):
        chunks.forward(Run, lowered, (query, key, value), (out, softmax, lse))


def attention_backward(given: Sequence[Any], call: Any, gradients: Sequence[Tensor | None]) -> None:
    """Writes the gradients of query, key, value, attn_mask and the parameters where they are
    wanted, from (query, key, value, out, softmax, dout, dlse)."""
    query, key, value, out, softmax, dout, dlse = given
    lowered = Lowered(query, key, value, call)
    if not query.numel():
        for wanted in gradients:
            if wanted is not None:
                wanted.zero_()
        return
    with on(query.device):
        tensors = (query, key, value), (out, softmax, dout, dlse)
        chunks.backward(Run, lowered, *tensors, gradients)


def attention_weights(
    query: Tensor, key: Tensor, softmax: Tensor, call: Any, weights: Tensor
) -> None:
    """Writes the weights [B, H, Lq, Lk] after dropout."""
    _emit(query, key, softmax, call, weights)


def scores(query: Tensor, key: Tensor, call: Any, to: Tensor) -> None:
    """Writes the scores [B, H, Lq, Lk], natural units, -inf where they are hidden."""
    _emit(query, key, None, call, to)


def _emit(query: Tensor, key: Tensor, softmax: Tensor | None, call: Any, to: Tensor) -> None:
    lowered = Lowered(query, key, None, call)
    if not to.numel():
        return
    with on(query.device):
        run = RunOfScores if softmax is None else Run
        chunks.emit(run, lowered, (query, key, key), softmax, to)


def scores_backward(given: Sequence[Any], call: Any, gradients: Sequence[Tensor | None]) -> None:
    """Writes the gradients of query, key, attn_mask and the parameters where they are wanted, from
    (query, key, dscores)."""
    query, key, dscores = given
    lowered = Lowered(query, key, None, call)
    if not query.numel():
        for wanted in gradients:
            if wanted is not None:
                wanted.zero_()
        return
    dq, dk, *others = gradients
    with on(query.device):
        chunks.backward(RunOfScores, lowered, (query, key, key), [dscores], [dq, dk, None, *others])
