"""What a trained model has learned about distance.

There are two pictures for every scheme: how a head's score changes with the distance alone, and how
its attention is distributed over distance.
"""

from __future__ import annotations

import numpy as np
import torch

import relpos
from relpos.lab.model import Model

PICTURE_LENGTH = 1024  # tokens of the window that is looked at, where the tests go so far
TRIANGLE = 64  # tokens in the picture of single weights
_QUERIES = 128


def distance_edges(length: int) -> np.ndarray:
    """Edges of classes of backward distances: 0, 1, ..., then four for each doubling."""
    grown = np.unique(np.round(2 ** (np.arange(0, 4 * np.log2(length) + 1) / 4)).astype(int))
    return np.concatenate([[0], grown[grown < length], [length]])


@torch.no_grad()
def score_over_distance(model: Model, seen: list, distances: np.ndarray) -> np.ndarray:
    """What the position adds to the score of the mean query and the mean key, [layers, H, n].

    For a bias per head this is the bias. For row tables and rotations it is what they add to the
    scores of average content.
    """
    reach = int(distances[-1]) + 1
    curves = np.zeros((len(seen), model.shape.heads, len(distances)))
    for layer, (query, key, _) in enumerate(seen):
        position = model.position(layer)
        if position is None:
            continue
        mean_query = query.mean(dim=(0, 2), keepdim=True)
        mean_key = key.mean(dim=(0, 2), keepdim=True).expand(1, -1, reach, -1)
        plain = relpos.scores(mean_query, mean_key, q_offset=reach - 1)
        placed = relpos.scores(mean_query, mean_key, position=position, q_offset=reach - 1)
        added = (placed - plain)[0, :, 0].flip(-1)  # [H, reach], by backward distance
        curves[layer] = added[:, torch.from_numpy(distances)].double().numpy()
    return curves


@torch.no_grad()
def attention_over_distance(seen: list, edges: np.ndarray) -> np.ndarray:
    """The share of attention that the last queries give to each class of distances,
    [layers, H, len(edges) - 1]."""
    shares = []
    for _, _, weights in seen:
        length = weights.shape[-1]
        count = min(_QUERIES, length // 2)
        rows = weights[:, :, -count:].double().mean(dim=0)  # [H, count, L]
        by_distance = torch.stack(
            [
                rows[:, i, : length - count + i + 1].flip(-1)[:, : length - count]
                for i in range(count)
            ]
        ).mean(dim=0)
        sums = torch.cumsum(torch.nn.functional.pad(by_distance, (1, 0)), dim=-1)
        at = torch.from_numpy(np.minimum(edges, length - count))
        shares.append(torch.diff(sums[:, at]).numpy())
    return np.stack(shares)


def triangle(seen: list) -> np.ndarray:
    """The weights of the first TRIANGLE tokens, [layers, H, n, n]."""
    return np.stack([w[0, :, :TRIANGLE, :TRIANGLE].numpy() for _, _, w in seen])
