"""The position of each run of the lab. Only this file of the lab names schemes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import relpos


@dataclass(frozen=True)
class Run:
    label: str
    make: Callable[[int, int, int], object] | None  # (heads, head_dim, training length) -> position
    says: str
    colour: str  # in the report; colour-blind readers can distinguish them, on white and on black
    shared: bool = False  # one table for all layers


# Tables cover the distances of the training windows; no run is trained beyond them.
RUNS = {
    "none": Run("no position", None, "the causal order alone", "#8b919c"),
    "rope": Run(
        "RoPE",
        lambda heads, dim, length: relpos.RoPE(dim, layout="half"),
        "turns queries and keys by an angle that grows with the position",
        "#e0602c",
    ),
    "alibi": Run(
        "ALiBi",
        lambda heads, dim, length: relpos.ALiBi(heads),
        "a fixed penalty that grows with the distance",
        "#2b7bd0",
    ),
    "t5": Run(
        "T5 bias",
        lambda heads, dim, length: relpos.T5Bias(
            heads, buckets=32, max_distance=min(128, length), bidirectional=False
        ),
        "a learned number per bucket of distances; far ones share a bucket",
        "#12a079",
        shared=True,
    ),
    "shaw": Run(
        "Shaw",
        lambda heads, dim, length: relpos.Shaw(min(64, length), dim),
        "learned rows for keys and values; distances are clamped",
        "#c86aa6",
    ),
    "music_transformer": Run(
        "Music Transformer",
        lambda heads, dim, length: relpos.MusicTransformer(length, dim),
        "a learned row per distance, asked by the query; nothing beyond the table",
        "#d99a0b",
    ),
    "bias_rpe": Run(
        "bias RPE",
        lambda heads, dim, length: relpos.BiasRPE(heads, length),
        "a learned number per distance; beyond the table the last one",
        "#7a6ff0",
    ),
}


def make_positions(name: str, *, layers: int, heads: int, head_dim: int, length: int) -> list:
    """One position per layer (None for the run without)."""
    run = RUNS[name]
    if run.make is None:
        return [None] * layers
    if run.shared:
        return [run.make(heads, head_dim, length)] * layers
    return [run.make(heads, head_dim, length) for _ in range(layers)]
