"""What ranks run in tests/distributed/test_distributed_use.py."""

import ctypes
import functools
import gc
import os
import signal
from pathlib import Path

import relpos
import torch
import torch.distributed as dist
from relpos import distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.support.ring_case import draw

LENGTH, WIDTH, HEADS = 48, 16, 4


def call(bad_rank, name, change, **options):
    """ring_attention of tensors of ones, changed on one rank; what was raised, and what it sent."""
    said = {"query": (1, 4, 12, 8), "key": (1, 4, 12, 8), "value": (1, 4, 12, 8)}
    dtype = torch.float32
    if dist.get_rank() == bad_rank:
        if name in said:
            said[name] = change
        elif name == "dtype":
            dtype = change
        else:
            options[name] = change
    if "position" in options:
        options["position"] = relpos.ALiBi(4)
    before = distributed.traffic().sent_bytes
    try:
        distributed.ring_attention(*(torch.ones(s, dtype=dtype) for s in said.values()), **options)
    except Exception as error:
        return type(error).__name__, str(error), distributed.traffic().sent_bytes - before
    return None


def die(**options):
    """Rank 1 is killed in its backward pass; what the others raise."""
    q, k, v = (draw(n, 1, 4, 16, 8).requires_grad_() for n in range(3))
    out = distributed.ring_attention(q, k, v, **options)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        out.sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


class Model(nn.Module):
    """One block with a T5 bias, causal."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        position = relpos.T5Bias(HEADS, bidirectional=False)
        self.attention = relpos.nn.MultiheadAttention(
            WIDTH, HEADS, batch_first=True, position=position
        )
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(x + self.attention(x, x, x, is_causal=True)[0])


def whole_gradients():
    """Of the mean of squares over the whole sequence, by one process."""
    model, x = Model(), draw(5, 2, LENGTH, WIDTH)
    loss = model(x).square().mean()
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in model.named_parameters()}


def gradients(model):
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        full = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        found[name.removeprefix("module.")] = full.numpy()
    return found


def trained(wrap, layout, mode):
    """A step under context_parallel; (loss over all ranks, gradients) on every rank."""
    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if wrap == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)
    x = draw(5, 2, LENGTH, WIDTH)
    with distributed.context_parallel(
        mesh, layout=layout, mode=mode, buffers=[x], buffer_seq_dims=[1]
    ):
        # DDP and FSDP2 average over the ranks: each says the mean over its own tokens.
        loss = model(x).square().mean()
        assert x.shape[1] < LENGTH
        loss.backward()
    assert x.shape[1] == LENGTH
    if wrap == "none":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size(), gradients(model)


def dtensors(placement):
    """(shards that come out, gradient of the query) of DTensors with a sharded sequence."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    where = Shard(placement) if placement is not None else Replicate()
    q, k, v = (distribute_tensor(draw(n, 1, 4, 30, 8), mesh, [where]) for n in range(3))
    q.requires_grad_()
    try:
        out = distributed.ring_attention(q, k, v, position=relpos.ALiBi(4), is_causal=True)
    except ValueError as error:
        return str(error)
    out.square().sum().backward()
    return out.full_tensor().detach().numpy(), q.grad.full_tensor().numpy()


def grouped_heads(attend, cut, name, seed):
    """out, gradients of q, k, v, each `cut`, and of the table."""
    position = relpos.T5Bias(4, bidirectional=False)
    with torch.no_grad():
        position.relative_attention_bias.weight.copy_(draw(9, 32, 4))
    leaves = [cut(draw(n, 2, h, 48, 8)).requires_grad_() for n, h in enumerate((4, 2, 2))]
    torch.manual_seed(seed)
    dropout_p = 0.25 if name == "dropout" else 0.0
    options = {"is_causal": True, "enable_gqa": True, "dropout_p": dropout_p}
    out = attend(*leaves, position=position, **options)
    out.square().sum().backward()
    return [
        out.detach(),
        *(x.grad for x in leaves),
        position.relative_attention_bias.weight.grad,
    ]


def on_mesh(layout, name):
    """(out, gradients of q, k, v and the table) of a 2 x 2 mesh, whole, on every rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "heads"))
    on_ranks = {"layout": layout, "group": mesh}
    attend = functools.partial(distributed.ring_attention, **on_ranks)
    cut = functools.partial(distributed.shard, dim=2, **on_ranks)
    *found, table = grouped_heads(attend, cut, name, seed=5 + dist.get_rank())
    dist.all_reduce(table)
    joined = [distributed.unshard(x, dim=2, **on_ranks) for x in found]
    return [x.numpy() for x in (*joined, table)]


def traffic(layout, window=None, dtype=torch.float32):
    """Bytes that this rank sent, forward and backward."""
    whole = [draw(n, 1, 4, 64, 8, dtype=dtype) for n in range(3)]
    leaves = [distributed.shard(x, layout=layout, dim=2).requires_grad_() for x in whole]
    before = distributed.traffic().sent_bytes
    out = distributed.ring_attention(*leaves, layout=layout, window=window)
    forward = distributed.traffic().sent_bytes - before
    out.sum().backward()
    return forward, distributed.traffic().sent_bytes - before - forward


def round_trip(layout, length):
    x = draw(1, 2, length, 3).requires_grad_()
    own = distributed.shard(x, layout=layout, dim=1)
    back = distributed.unshard(own, layout=layout, dim=1)
    (back * draw(2, *back.shape)).sum().backward()
    return bool(torch.equal(back, x)), x.grad.numpy()


MEMORY_HEADS = 16


def memory(layout, length):
    """(growth of the resident set at its peak, formula) of a forward and a backward pass."""
    from relpos._call.attention import workspace_bytes

    from tests.support.memory_probe import status

    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed is given back, so growth is seen
    position = relpos.T5Bias(MEMORY_HEADS, bidirectional=False)
    own = length // dist.get_world_size()
    call = {"position": position}

    def step(tokens):
        leaves = [torch.randn(1, MEMORY_HEADS, tokens, 64).requires_grad_() for _ in range(3)]
        dout = torch.randn(1, MEMORY_HEADS, tokens, 64)
        gc.collect()
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        before = status("VmRSS")
        distributed.ring_attention(*leaves, layout=layout, **call).backward(dout)
        return status("VmHWM") - before, leaves

    step(384)
    peak, leaves = step(own)
    unit = leaves[0].nbytes
    kept = 1 + 3  # out, dq, dk, dv
    travelling = 2 * 4  # keys, values and their gradients of two blocks
    sums = 8 * MEMORY_HEADS * own * 6  # log-sum-exps in double, and what merging makes of them
    q, k, v = leaves
    rows = own if layout == "contiguous" else own // 2  # of a piece, whose keys are half as many
    piece = q[:, :, :rows], k[:, :, : rows // 2], v[:, :, : rows // 2]
    work = max(workspace_bytes(*piece, backward=b, q_offset=0, **call) for b in (False, True))
    return peak, (kept + travelling) * unit + sums + work + SLACK


SLACK = 4 << 20  # of allocators and of the sockets' buffers
