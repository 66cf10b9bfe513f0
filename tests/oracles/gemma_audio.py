"""Gemma 3n and 4, audio: projected sinusoids of the distance, the slowest of them 10000 times
slower than the first."""

import torch

from tests.oracles.conformer import configs  # noqa: F401
from tests.oracles.transformer_xl import by_head, distances, sines_and_cosines

SPANS = True


def terms(options, parameters, pos_q, pos_k):
    half = options["width"] // 2
    n, at = distances(options, pos_q, pos_k)
    p = torch.arange(half, dtype=torch.float64)
    angle = n.double()[:, None] * 10000.0 ** (-p / max(half - 1, 1))
    features = sines_and_cosines(options, angle)
    return {"key_rows": by_head(parameters["pos_proj.weight"], options["heads"], features)[:, at]}
