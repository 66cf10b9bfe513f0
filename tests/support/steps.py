"""A call with its gradients, and results that are the same to the bit."""

import relpos
import torch

from tests.support.oracle import gradients
from tests.support.threads import threads


def step(q, k, v, dout, position=None, dlse=None, also=(), **call):
    """out, lse, and the gradients of q, k, v, every table of the position, and of `also`."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    tables = position.parameters() if isinstance(position, torch.nn.Module) else ()
    out, lse = relpos.attention(*leaves, position=position, return_lse=True, **call)
    found = gradients([out, lse], [dout, dlse], [*leaves, *tables, *also])
    return [out.detach(), lse.detach(), *found]


def same_bits(got, want):
    """Of two lists of tensors, NaN included."""
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        assert torch.equal(a.contiguous().view(width), b.contiguous().view(width))


def same_at_any_thread_count(compute, counts=(1, 2, 4)):
    """The results of `compute`, which have the same bits at each count of threads."""
    found = []
    for count in counts:
        with threads(count):
            found.append(compute())
        same_bits(found[-1], found[0])
    return found[0]
