"""Positions of one's own as ranks run them in tests/distributed/test_distributed_own.py, and in
plain torch."""

import relpos
import torch
import torch.distributed as dist
from relpos import distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.distributed import ring_tasks
from tests.support.own_positions import (
    DIM,
    HEADS,
    MADE,
    Gated,
    Kerple,
    Picture,
    distances,
    drawn,
    given,
    gradients,
    numbers,
    plain,
)

MORE = {
    "picture": lambda: drawn(Picture),
    "sum": lambda: drawn(relpos.T5Bias, heads=HEADS, buckets=8, max_distance=20) + drawn(Gated),
    "terms": lambda: drawn(Terms),
    "added": lambda: drawn(Added),
}
NAMES = [*MADE, *MORE]
MORE["turned"] = lambda: drawn(Turned)  # which has heads of keys, so that it fits no other number


class Terms(relpos.Position):
    """Terms of all shapes: of heads, of queries, of keys, a rotation and a sink."""

    def __init__(self):
        super().__init__()
        self.slopes, self.sinks = nn.Parameter(torch.rand(HEADS)), nn.Parameter(torch.rand(HEADS))
        self.frequency = nn.Parameter(torch.rand(DIM // 2))
        self.added = nn.Parameter(torch.randn(HEADS, DIM))
        self.of_hidden = nn.Linear(16, HEADS)

    def terms(self, distance, hidden):
        return [
            relpos.terms.Slopes(self.slopes, -self.slopes),
            relpos.terms.Sink(self.sinks),
            relpos.terms.Rotation(self.frequency, layout="half"),
            relpos.terms.QueryAdded(self.added),
            relpos.terms.KeyBias(self.of_hidden(hidden).transpose(1, 2)),
        ]


class Added(relpos.Position):
    """Rows that the query meets with a vector of each head added."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(HEADS, 9, DIM))
        self.added = nn.Parameter(torch.randn(HEADS, DIM))
        self.shared = nn.Parameter(torch.randn(5, DIM))

    def terms(self, distance):
        return [
            relpos.terms.RowTable(self.table, -6, added=self.added, scale=0.4),
            relpos.terms.RowTable(self.shared, relpos.Buckets.window(-3, 1), added=2 * self.added),
        ]


class Turned(relpos.Position):
    """Angles of each of 2 key heads, from the hidden states of the tokens."""

    def __init__(self, kv_heads=2):
        super().__init__()
        self.angles = nn.Linear(16, kv_heads * DIM // 2)

    def terms(self, distance, hidden):
        angle = self.angles(hidden).unflatten(-1, (-1, DIM // 2)).transpose(1, 2)
        both = angle.cos(), angle.sin()
        return relpos.terms.RotaryTables(*both, *both, layout="half")


def made(name):
    return MORE[name]() if name in MORE else drawn(MADE[name])


class Case:
    """The whole tensors of a case; the same in every process."""

    def __init__(self, name, queries=24, keys=None, heads_of_keys=2, batch=2, dtype=torch.float64):
        keys = queries if keys is None else keys
        self.position = made(name).to(dtype)
        shapes = [(HEADS, queries, DIM), (heads_of_keys, keys, DIM), (heads_of_keys, keys, DIM)]
        self.whole = [numbers(n, batch, *s, dtype=dtype) for n, s in enumerate(shapes)]
        self.whole.append(numbers(4, batch, queries, 16, dtype=dtype))
        self.seeds = [numbers(5, batch, *shapes[0]), numbers(6, batch, *shapes[0][:2])]

    def plain(self, visible, at=None, only=None):
        """{name: result} of one process, by plain formulas; only: of relpos.attention."""
        leaves = [x.requires_grad_() for x in self.whole]
        q, k, v, hidden = leaves
        at = distances(q.shape[2], k.shape[2]) if at is None else at
        if only is None:
            found = plain(self.position, q, k, v, at, visible(at), hidden=hidden)
        else:
            found = relpos.attention(
                q, k, v, position=given(self.position, hidden), return_lse=True, enable_gqa=True,
                **only,
            )  # fmt: skip
        return self.results(found, leaves, self.seeds)

    def results(self, found, leaves, seeds):
        loss = sum((x * seed).sum() for x, seed in zip(found, seeds, strict=True))
        parameters = dict(self.position.named_parameters())
        derived = gradients(loss, [*leaves, *parameters.values()])
        names = ["out", "lse", "dq", "dk", "dv", "dhidden", *(f"parameter {n}" for n in parameters)]
        return {n: x.detach() for n, x in zip(names, [*found, *derived], strict=True)}

    def on_rank(self, function, cut, lengths=None, **options):
        def shard(x, dim):
            if lengths is not None:
                return x.split(lengths, dim)[dist.get_rank()].contiguous()
            return distributed.shard(x, dim=dim, **cut)

        leaves = [shard(x, 1 if n == 3 else 2).requires_grad_() for n, x in enumerate(self.whole)]
        for name in ("q_positions", "k_positions"):
            if name in options:
                options[name] = shard(options[name], -1)
        found = getattr(distributed, function)(
            *leaves[:3], position=given(self.position, leaves[3]), return_lse=True,
            enable_gqa=True, **cut, **options,
        )  # fmt: skip
        return self.results(found, leaves, [shard(x, 2) for x in self.seeds])


AXES = {"dhidden": 1}


def attend(function="ring_attention", layout="contiguous", mesh=None, sizes=None, **options):
    """Results of all ranks joined, the same on each: gradients of parameters summed, unless they
    are already."""
    cut = {"layout": layout}
    if mesh is not None:
        cut["group"] = init_device_mesh("cpu", mesh, mesh_dim_names=("ring", "heads"))
    case = Case(**(sizes or {}))
    found, joined = case.on_rank(function, cut, **options), {}
    for name, x in found.items():
        if name.startswith("parameter"):
            if not options.get("reduce_position"):
                dist.all_reduce(x)
            joined[name] = x.numpy()
        else:
            joined[name] = distributed.unshard(x, dim=AXES.get(name, 2), **cut).numpy()
    return joined


def evaluations(**options):
    """How often, and for how many distances, the method of each rank ran."""
    case, counts = Case("kerple"), []
    bias = case.position.bias
    case.position.bias = lambda distance: counts.append(len(distance)) or bias(distance)
    case.on_rank("ring_attention", {"layout": "contiguous"}, **options)
    return counts


def refused(bad_rank, kind):
    """What a rank raises where one gives another position."""
    rank = dist.get_rank()
    case = Case("gated" if kind == "inputs" else "kerple")
    position = case.position
    if rank == bad_rank:
        position = {
            "other": lambda: drawn(Gated)(case.whole[3]),
            "built-in": lambda: relpos.ALiBi(HEADS),
            "none": lambda: None,
            "text": lambda: "kerple",
            "frozen": lambda: drawn(Kerple).requires_grad_(False),
            "inputs": lambda: position,
            "heads": lambda: drawn(Kerple, heads=2),
        }[kind]()
    elif kind == "inputs":
        position = position(distributed.shard(case.whole[3], dim=1))
    q, k, v = (distributed.shard(x, dim=2) for x in case.whole[:3])
    try:
        distributed.ring_attention(q, k, v, position=position, enable_gqa=True)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


class Model(nn.Module):
    """A block with a position of one's own, causal."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.attention = relpos.nn.MultiheadAttention(
            HEADS * DIM, HEADS, batch_first=True, position=drawn(Kerple), dtype=torch.float64
        )

    def forward(self, x):
        return x + self.attention(x, x, x, is_causal=True)[0]


def step_of_model(x):
    model = Model()
    loss = model(x).square().mean()
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters()}


def trained(wrap, layout, mode):
    """Gradients of a step under context_parallel."""
    model, x = Model(), numbers(8, 2, 24, HEADS * DIM)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if wrap == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)
    with distributed.context_parallel(
        mesh, layout=layout, mode=mode, buffers=[x], buffer_seq_dims=[1]
    ):
        model(x).square().mean().backward()
    if wrap == "none":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    return ring_tasks.gradients(model)
