"""Positions written in Python, as users write them, and plain torch for any of them."""

import math

import relpos
import torch
from torch import nn

from tests.oracles import t5

HEADS, DIM = 4, 8


class Kerple(relpos.Position):
    """A logarithmic bias (Chi et al. 2022)."""

    def __init__(self, heads=HEADS):
        super().__init__()
        self.p, self.a = (nn.Parameter(torch.rand(heads, 1) + 0.5) for _ in range(2))

    def bias(self, distance):
        return -self.p * torch.log1p(self.a * distance.abs())


class Network(relpos.Position):
    """A network of the logarithmic distance."""

    def __init__(self, heads=HEADS):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, heads))

    def bias(self, distance):
        return self.net((distance.sign() * distance.abs().log1p())[:, None]).mT


class Shaw(relpos.Position):
    """Rows that meet the query, and rows that join the value, of near distances."""

    reach = (-7, 5)

    def __init__(self, dim=DIM):
        super().__init__()
        self.key, self.value = (nn.Embedding(13, dim) for _ in range(2))

    def rows(self, distance):
        return self.key(distance + 7)

    def values(self, distance):
        return self.value(distance + 7)


class Gated(relpos.Position):
    """Rows that meet gates of the query and of a hidden state [B, Lq, width]."""

    def __init__(self, dim=DIM, width=16, rank=3):
        super().__init__()
        self.features = nn.Linear(1, rank)
        self.of_query, self.of_hidden = nn.Linear(dim, rank), nn.Linear(width, rank)

    def rows(self, distance):
        return torch.tanh(self.features(distance[:, None].to(self.features.weight.dtype) / 8))

    def gate(self, query, hidden):
        return torch.sigmoid(self.of_query(query) + self.of_hidden(hidden)[:, None])


class KeyGated(relpos.Position):
    """Columns of each head that meet gates of the key, and a bias of T5's buckets."""

    def __init__(self, heads=HEADS, dim=DIM):
        super().__init__()
        self.buckets = relpos.Buckets.t5(8, 20)
        self.table = nn.Parameter(torch.randn(heads, self.buckets.classes))
        self.row = nn.Parameter(torch.randn(heads, 2))
        self.of_key = nn.Linear(dim, 2)

    def bias(self, distance):
        return self.table[:, self.buckets(distance)]

    def columns(self, distance):
        return self.row[:, None] * torch.cos(distance.to(self.row.dtype) / 5)[:, None]

    def key_gate(self, key):
        return self.of_key(key)


class Picture(relpos.Position):
    """A bias of offsets in a picture of 3 rows of 4 tokens."""

    grid = (3, 4)

    def __init__(self, heads=HEADS):
        super().__init__()
        self.y, self.x = nn.Parameter(torch.randn(heads, 5)), nn.Parameter(torch.randn(heads, 7))

    def bias(self, dy, dx):
        return self.y[:, dy + 2] + self.x[:, dx + 3]


MADE = {"kerple": Kerple, "shaw": Shaw, "gated": Gated, "key_gated": KeyGated}


def drawn(make, seed=3, **sizes):
    """A position with numbers of their own, the same in every process, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(**sizes).double()


def numbers(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def inputs_of(position, hidden):
    return {name: hidden for name in position._methods.inputs}


def given(position, hidden):
    """The position of a call: with this hidden state, where it takes one."""
    if isinstance(position, relpos.Sum):
        wanted = sum(len(part._inputs) for part in position.parts)
        return position(*wanted * [hidden]) if wanted else position
    named = inputs_of(position, hidden)
    return position(**named) if named else position


def parts_of(position):
    return list(position.parts) if isinstance(position, relpos.Sum) else [position]


def t5_bucket(distance, buckets, max_distance, bidirectional=True):
    """int64 [Lq, Lk], by the oracle of T5."""
    options = {"buckets": buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    found = t5.bucket(options, distance.new_zeros(1), distance.flatten())
    return found[0].unflatten(0, distance.shape)


def plain(position, query, key, value, distance, visible=None, hidden=None, scale=None):
    """(out, lse) of attention with a position, or with a sum of them, by its own methods at every
    pair. distance: int64 [Lq, Lk]; visible: bool, broadcastable to [B, H, Lq, Lk]."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(groups, 1) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    scores = scale * query @ keys.mT
    added = torch.zeros((), dtype=value.dtype)
    for part in parts_of(position):
        if isinstance(part, relpos.T5Bias):
            bucket = t5_bucket(distance, part.buckets, part.max_distance, part.bidirectional)
            scores = scores + part.relative_attention_bias.weight[bucket].movedim(-1, 0)
            continue
        more, rows = _of_part(part, query, keys, groups, key, distance, hidden, scale)
        scores = scores + more
        if rows is not None:
            added = added + rows
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    if visible is not None:
        weights = weights.masked_fill(~visible, 0.0)
    out = weights @ values
    if added.dim():
        out = out + torch.einsum("bhij,...ijd->bhid", weights, added)
    return out, lse


def _of_part(part, query, keys, groups, key, distance, hidden, scale):
    """(what joins the scores, rows that join the values or None)."""
    if part.reach is not None:
        distance = distance.clamp(*part.reach)

    def at_pairs(method):
        return method(distance.flatten()).unflatten(-2, distance.shape)

    scores = torch.zeros((), dtype=query.dtype)
    if isinstance(part, Picture):
        side = part.grid[1]
        i, j = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
        return part.bias(j // side - i // side, j % side - i % side), None
    if hasattr(part, "bias"):
        scores = scores + part.bias(distance.flatten()).unflatten(-1, distance.shape)
    if hasattr(part, "rows"):
        gate = part.gate(query, **inputs_of(part, hidden)) if hasattr(part, "gate") else None
        met = scale * query if gate is None else gate
        scores = scores + torch.einsum("bhir,...ijr->bhij", met, at_pairs(part.rows))
    if hasattr(part, "columns"):
        gate = part.key_gate(key) if hasattr(part, "key_gate") else None
        met = scale * keys if gate is None else gate.repeat_interleave(groups, 1)
        table = at_pairs(part.columns)
        table = table if table.dim() == 4 else table.expand(query.shape[1], *table.shape)
        scores = scores + torch.einsum("bhjr,hijr->bhij", met, table)
    return scores, at_pairs(part.values) if hasattr(part, "values") else None


def distances(queries, keys, q_offset=None):
    offset = keys - queries if q_offset is None else q_offset
    return torch.arange(keys) - (offset + torch.arange(queries)[:, None])


def gradients(loss, leaves):
    """Of a loss, zeros where a leaf has none."""
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
