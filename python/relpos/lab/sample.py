"""A trained model continues a piece, one token at a time, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from relpos.lab.model import Cache, Model

TOP_P = 0.95


def pick(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
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
