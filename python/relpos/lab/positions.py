"""The position of each run of the lab. Only this file of the lab names schemes."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import torch

import relpos
from relpos._position.named import is_named, made_of, named_class, parts_of, summary_of


@dataclass(frozen=True)
class Run:
    label: str
    text: str | None  # of the position; NEAR and FAR are distances, at most the training length
    says: str
    colour: str  # in the report; colour-blind readers can distinguish them, on white and on black
    shared: bool = False  # one table for all layers


# Tables cover the distances of the training windows; no run is trained beyond them.
RUNS = {
    "none": Run("no position", None, "the causal order alone", "#8b919c"),
    "rope": Run(
        "RoPE", "rope", "turns queries and keys by an angle that grows with the position", "#e0602c"
    ),
    "alibi": Run("ALiBi", "alibi", "a fixed penalty that grows with the distance", "#2b7bd0"),
    "t5": Run(
        "T5 bias",
        "t5(buckets=32, max_distance=FAR, bidirectional=false)",
        "a learned number per bucket of distances; far ones share a bucket",
        "#12a079",
        shared=True,
    ),
    "shaw": Run(
        "Shaw",
        "shaw(max_distance=NEAR)",
        "learned rows for keys and values; distances are clamped",
        "#c86aa6",
    ),
    "music_transformer": Run(
        "Music Transformer",
        "music_transformer",
        "a learned row per distance, asked by the query; nothing beyond the table",
        "#d99a0b",
    ),
    "bias_rpe": Run(
        "bias RPE",
        "bias_rpe",
        "a learned number per distance; beyond the table the last one",
        "#7a6ff0",
    ),
}
_NEAR, _FAR = 64, 128


# Of positions given by their text, in this order.
_COLOURS = ("#3aa6b9", "#a5572b", "#8a9a1e", "#b0457a", "#5b6fae", "#2f8f4e", "#c4582f", "#937bc2")
_LONGEST_LABEL = 18  # characters, beside the curves of the report


class CannotRun(ValueError):
    """A text that is no position, or a position that the model of the lab cannot use."""


def split_texts(text: str) -> list[str]:
    """Texts of positions, divided at the commas that stand outside brackets and quotes."""
    texts, depth, quote = [""], 0, ""
    for c in text:
        if c == "," and depth <= 0 and not quote:
            texts.append("")
            continue
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        depth += (c in "([") - (c in ")]")
        texts[-1] += c
    return list(dict.fromkeys(t.strip() for t in texts if t.strip()))


def runs_of(texts: Iterable[str]) -> dict[str, Run]:
    """The run of each text: one of RUNS, or of any position by its text."""
    found: dict[str, Run] = {}
    for text in texts:
        if text in RUNS:
            found[text] = RUNS[text]
            continue
        colour = _COLOURS[sum(other not in RUNS for other in found) % len(_COLOURS)]
        label = text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"
        same = sum(other.label.startswith(label) for other in found.values())
        label = f"{label} ({same + 1})" if same else label
        found[text] = Run(label, text, _summary(text), colour)
    return found


def _summary(text: str) -> str:
    names = {scheme.name: scheme.summary for scheme in relpos.schemes()}
    parts = [
        summary_of(named_class(part))
        if is_named(part)
        else names.get(part.partition("(")[0].strip(), "")
        for part in parts_of(text)
    ]
    return f"{text}: " + "; ".join(part for part in parts if part)


def code_of(text: str) -> list[str]:
    """A hash of the module of each class of one's own in a text."""
    classes = [named_class(part) for part in parts_of(text) if is_named(part)]
    return [hashlib.sha256(_source(made).encode()).hexdigest() for made in classes]


def _source(made: type) -> str:
    try:
        return inspect.getsource(sys.modules[made.__module__])
    except (OSError, TypeError):  # it has none that can be read
        return ""


def _make(text: str, heads: int, head_dim: int, length: int) -> object:
    """What a text leaves out: the sizes of the model, layout half, and for other required sizes the
    training length."""
    sizes = {"heads": heads, "head_dim": head_dim, "layout": "half"}
    for option in [o for scheme in relpos.schemes() for o in scheme.options]:
        if option.required and option.type == "int":
            sizes.setdefault(option.name, length)
    of_model = {"heads": heads, "head_dim": head_dim, "length": length}
    parts = []
    for name, part in made_of(text, of_model, sizes):
        _refuse_inputs(name, [given.name for given in part._inputs])
        parts.append(part)
    return parts[0] if len(parts) == 1 else relpos.Sum(*parts)


def _refuse_inputs(name: str, inputs: list[str]) -> None:
    if inputs:
        raise CannotRun(
            f"{name} needs its input {inputs[0]} in each call, which the lab does not "
            "make: expected a scheme without inputs"
        )


def check(text: str, *, heads: int, head_dim: int, lengths: Iterable[int]) -> None:
    """Raises CannotRun if the lab's model cannot use the position at one of the lengths; the first
    is that of the training."""
    try:
        lengths = list(lengths)
        sizes = {"heads": heads, "head_dim": head_dim, "length": lengths[0]}
        (position,) = make_positions(text, layers=1, **sizes)
        for length in lengths:
            row = torch.zeros(1, heads, length, head_dim)
            last = {"is_causal": True, "q_offset": length - 1}
            relpos.attention(row[:, :, -1:], row, row, position=position, **last)
    except (ValueError, TypeError) as error:
        raise CannotRun(f"{text!r}: {error}; or one of {', '.join(RUNS)}") from error
    except Exception as error:
        if not any(is_named(part) for part in parts_of(text)):
            raise
        raise CannotRun(f"{text!r}: {type(error).__name__}: {error}") from error  # of its own code


def make_positions(text: str, *, layers: int, heads: int, head_dim: int, length: int) -> list:
    """One position per layer (None for the run without)."""
    run = runs_of([text])[text]
    if run.text is None:
        return [None] * layers
    text = run.text.replace("=NEAR", f"={min(_NEAR, length)}")
    text = text.replace("=FAR", f"={min(_FAR, length)}")
    made = [_make(text, heads, head_dim, length) for _ in range(1 if run.shared else layers)]
    return made * (layers // len(made))
