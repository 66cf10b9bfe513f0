"""The model: a small decoder-only Transformer, whose attention `attend` computes, and how it
continues a piece, one token at a time, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relpos
from relpos.lab.positions import make_positions

TOP_P = 0.95  # of the probability, from which a token is drawn


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    layers: int = 3
    width: int = 128
    heads: int = 4
    length: int = 256  # of the training windows

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class Cache:
    """Keys and values of the tokens so far, for one layer after another."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.layers:
            key = torch.cat([self.layers[layer][0], key], dim=2)
            value = torch.cat([self.layers[layer][1], value], dim=2)
        self.layers[layer] = key, value
        return key, value


class Block(nn.Module):
    """Pre-norm attention and a four times wider MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values as [B, H, L, D] views of one product."""
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class Model(nn.Module):
    """Logits of the next token. `attend` has the signature of relpos.attention."""

    def __init__(self, shape: Shape, scheme: str, *, seed: int, attend=relpos.attention) -> None:
        super().__init__()
        self.shape, self.attend = shape, attend
        torch.manual_seed(seed)  # the same start for all schemes, since positions are drawn last
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        nn.init.normal_(self.embed.weight, std=shape.width**-0.5)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for block in self.blocks:
            for layer in (block.out, block.down):
                nn.init.normal_(layer.weight, std=0.02 / (2 * shape.layers) ** 0.5)
        positions = make_positions(
            scheme,
            layers=shape.layers,
            heads=shape.heads,
            head_dim=shape.head_dim,
            length=shape.length,
        )
        self.positions = nn.ModuleList(p for p in positions if p is not None)

    def position(self, layer: int) -> nn.Module | None:
        return self.positions[layer] if len(self.positions) else None

    def forward(
        self, tokens: Tensor, cache: Cache | None = None, past: int = 0, seen: list | None = None
    ) -> Tensor:
        """tokens int64 [B, L], the first at position `past` -> logits [B, L, vocabulary]. To `seen`
        it adds queries, keys and attention weights [B, H, L, L] of every layer."""
        x = self.embed(tokens)
        more = {} if seen is None else {"return_weights": True}
        for layer, block in enumerate(self.blocks):
            query, key, value = block.project(x)
            if cache is not None:
                key, value = cache.extend(layer, key, value)
            position = self.position(layer)
            attended = self.attend(
                query, key, value, position=position, is_causal=True, q_offset=past, **more
            )
            if seen is not None:
                attended, weights = attended
                seen.append((query, key, weights))
            x = block.finish(x, attended)
        return self.head(self.norm(x))

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean loss of each next token of int64 [B, L + 1]."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def pick(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """A random token of the most likely ones that together have TOP_P of the probability."""
    probabilities, order = torch.softmax(logits.double() / temperature, dim=-1).sort(
        descending=True
    )
    keep = int((probabilities.cumsum(-1) < TOP_P).sum()) + 1
    chosen = torch.multinomial(probabilities[:keep], 1, generator=generator)
    return int(order[chosen])


@torch.no_grad()
def continue_tokens(
    model: Model,
    prompt: np.ndarray,
    count: int,
    *,
    seed: int,
    temperature: float,
    forbidden: Sequence[int] = (),
    report: Callable[[int], None],
) -> np.ndarray:
    """The `count` tokens after `prompt`."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    cache = Cache()
    past, step = 0, torch.from_numpy(prompt)[None]
    tokens: list[int] = []
    while len(tokens) < count:
        logits = model(step, cache, past)[0, -1]
        past += step.shape[1]
        logits[list(forbidden)] = -torch.inf
        tokens.append(pick(logits, temperature, generator))
        step = torch.tensor([[tokens[-1]]])
        report(len(tokens))
    return np.array(tokens, dtype=np.int64)
