"""A Memorizing Transformer on relpos: local attention with T5's bias and an XL memory, and memories
retrieved for each query, which get no position bias (Wu et al. 2022, Memorizing Transformers).

    python examples/memorizing_transformer.py [--join gate|softmax] [--steps 60]

trains a layer to answer, at the end of a document, what was said at its beginning: out of reach for
the local context, but not for the memories.
"""

import argparse

import relpos
import torch
from torch import Tensor, nn


class Memories:
    """Keys and values [B, H, M, D] of one layer from segments past, without gradients."""

    def __init__(self, limit: int) -> None:
        self.held = relpos.KVCache(max_length=limit)

    def add(self, key: Tensor, value: Tensor) -> None:
        with torch.no_grad():
            self.held.append(key, value)

    def nearest(self, query: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """For every query of [B, H, L, D] its `count` keys of largest inner product and their
        values, [B, H, L, n, D]; n is smaller while fewer are held. 128 queries at a time."""
        if not len(self.held):
            empty = query.new_empty((*query.shape[:3], 0, query.shape[3]))
            return empty, empty
        key, value = self.held.key, self.held.value
        with torch.no_grad():
            rows = [
                (part @ key.mT).topk(min(count, len(self.held)), -1).indices
                for part in query.split(128, 2)
            ]
            index = torch.cat(rows, 2)
            flat = index.flatten(2).unsqueeze(-1)
            return tuple(
                x.gather(2, flat.expand(-1, -1, -1, x.shape[3])).unflatten(2, index.shape[2:])
                for x in (key, value)
            )


class MemorizingAttention(nn.Module):
    """[B, L, width] to the same, a segment at a time; start() begins a document.

    join: "gate" weighs local and retrieved attention with a learned number for each head, as the
    paper does; "softmax" lets one softmax run over local and retrieved keys.
    """

    def __init__(
        self, width: int, heads: int, *, retrieved: int, xl: int, limit: int, join: str = "gate"
    ) -> None:
        super().__init__()
        if join not in ("gate", "softmax"):
            raise ValueError(f"join: expected 'gate' or 'softmax', got {join!r}")
        self.heads, self.retrieved, self.xl, self.limit, self.join = (
            heads,
            retrieved,
            xl,
            limit,
            join,
        )
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        with torch.no_grad():
            self.key.weight.copy_(self.query.weight)  # alike finds alike from the first step on
        self.position = relpos.T5Bias(heads, bidirectional=False)
        self.gate = nn.Parameter(torch.zeros(heads))
        self.start()

    def start(self) -> None:
        self.local = relpos.KVCache(max_length=self.xl)
        self.memories = Memories(self.limit)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        self.local.detach_()
        near, near_lse = self.local.attend(
            query, key, value, position=self.position, return_lse=True
        )
        far, far_lse = self.recall(query)
        self.memories.add(key, value)
        if self.join == "softmax":
            joined, _ = relpos.merge([near, far], [near_lse, far_lse])
        else:
            gate = torch.sigmoid(self.gate)[:, None, None]
            joined = torch.where(
                far_lse.isneginf()[..., None], near, gate * far + (1 - gate) * near
            )
        return self.out(joined.transpose(1, 2).flatten(2))

    def recall(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of each query over memories of its own: queries become rows of the batch."""
        key, value = self.memories.nearest(query, self.retrieved)
        rows = query.transpose(1, 2).flatten(0, 1).unsqueeze(2)  # [B L, H, 1, D]
        key, value = (x.transpose(1, 2).flatten(0, 1) for x in (key, value))  # [B L, H, n, D]
        out, lse = relpos.attention(rows, key, value, return_lse=True)
        shape = (query.shape[0], query.shape[2])
        return tuple(x.squeeze(2).unflatten(0, shape).transpose(1, 2) for x in (out, lse))


NAMES, VALUES, SEGMENT, FILLERS = 16, 8, 16, 3
UNKNOWN = VALUES


def document(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """names and values [B, L], and the answers [B, SEGMENT] to the last segment's questions.

    The first segment binds every name to a value, fillers bind other names, the last one asks.
    """

    def shuffled() -> Tensor:
        return torch.rand(batch, NAMES, generator=generator).argsort(1)

    first, last = shuffled(), shuffled()
    values = torch.randint(VALUES, (batch, NAMES), generator=generator)  # of each name
    filler = (batch, FILLERS * SEGMENT)
    names = torch.cat(
        [first, torch.randint(NAMES, 2 * NAMES, filler, generator=generator), last], 1
    )
    told = [values.gather(1, first), torch.randint(VALUES, filler, generator=generator)]
    asked = torch.full((batch, NAMES), UNKNOWN)
    return names, torch.cat([*told, asked], 1), values.gather(1, last)


class Reader(nn.Module):
    """Reads a document segment by segment; returns the logits of its last one."""

    def __init__(self, width: int = 64, heads: int = 2, join: str = "gate") -> None:
        super().__init__()
        self.names = nn.Embedding(2 * NAMES, width)
        self.values = nn.Embedding(VALUES + 1, width)
        self.attend = MemorizingAttention(
            width, heads, retrieved=4, xl=SEGMENT, limit=4 * SEGMENT, join=join
        )
        self.head = nn.Linear(width, VALUES)

    def forward(self, names: Tensor, values: Tensor) -> Tensor:
        self.attend.start()
        x = self.names(names) + self.values(values)
        for segment in x.split(SEGMENT, 1):
            last = self.attend(segment)
        return self.head(last)


def train(steps: int, join: str = "gate", report: bool = False) -> list[float]:
    """The loss at every step; ln(VALUES) is a guess."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Reader(join=join)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        names, values, answers = document(32, generator)
        loss = nn.functional.cross_entropy(model(names, values).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if report and step % 10 == 0:
            print(f"step {step:4}  loss {loss.item():.3f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--join", choices=("gate", "softmax"), default="gate")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    print(f"a guess: {torch.log(torch.tensor(float(VALUES))):.3f}")
    print(f"at the end: {train(given.steps, given.join, report=True)[-1]:.3f}")
