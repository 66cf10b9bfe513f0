"""The tokens for training and those that are kept for the test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relpos.lab import chorales

SCORED = 128  # tokens at the end of each test window that count
HELD_OUT_SHARE = 32  # of 256, by the first byte of a piece's hash


class MissingData(RuntimeError):
    """The data is missing; the text says what to do."""


@dataclass(frozen=True)
class Corpus:
    kind: str  # "chorales" or "text"
    name: str
    train: np.ndarray  # int64 [n], pieces one after another
    test: np.ndarray
    vocabulary: int
    align: int  # windows begin at multiples of this
    prompt: np.ndarray  # the opening of a held-out piece, for the continuation
    prompt_name: str


def held_out(name: str) -> bool:
    """Whether the piece of this file name is for testing: about one in eight, always the same."""
    return hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_SHARE


def load_chorales(folder: Path | None, prompt_steps: int) -> Corpus:
    """The four-part chorales of `folder`, by default of the installed music21."""
    folder = folder or chorales.find_corpus()
    if folder is None:
        raise MissingData(
            "the Bach chorales are missing: they are read from an installed music21 package.\n"
            "  with a network:     pip install --no-deps music21==10.5.1\n"
            "  without a network:  relpos lab --chorales FOLDER   (a folder of .mxl files)\n"
            "  on your own text:   relpos lab --text FILE"
        )
    pieces = {}
    for path in sorted(folder.glob("*.mxl")):
        try:
            pieces[path.name] = chorales.read_chorale(path)
        except chorales.NotAChorale:  # more or fewer than four parts
            continue
    train = [grid for name, grid in pieces.items() if not held_out(name)]
    test = {name: grid for name, grid in pieces.items() if held_out(name)}
    if not train or not test:
        raise MissingData(
            f"{folder} holds {len(pieces)} four-part chorales (.mxl), {len(test)} of them for the "
            "test: expected at least one for training and one for the test"
        )
    prompt_name = next((n for n, g in test.items() if len(g) >= 2 * prompt_steps), next(iter(test)))
    return Corpus(
        kind="chorales",
        name=f"{len(train)} Bach chorales for training, {len(test)} others for the test",
        train=_stream(train),
        test=_stream(test.values()),
        vocabulary=chorales.VOCABULARY,
        align=chorales.VOICES,
        prompt=_stream([test[prompt_name][:prompt_steps]]),
        prompt_name=prompt_name.removesuffix(".mxl"),
    )


def load_text(path: Path, prompt_bytes: int, align: int = 1) -> Corpus:
    """The bytes of a file: the first seven eighths for training, the rest for the test. The test
    begins at a multiple of `align`."""
    try:
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8).astype(np.int64)
    except OSError as error:
        raise MissingData(f"--text: cannot read {path}: {error.strerror}") from error
    cut = (len(data) - len(data) * HELD_OUT_SHARE // 256) // align * align
    return Corpus(
        kind="text",
        name=f"{path.name}, {len(data):,} bytes",
        train=data[:cut],
        test=data[cut:],
        vocabulary=256,
        align=align,
        prompt=data[cut : cut + prompt_bytes],
        prompt_name=path.name,
    )


def batch_starts(corpus: Corpus, *, steps: int, batch: int, length: int, seed: int) -> np.ndarray:
    """First token of every training window, [steps, batch]: the same for all schemes."""
    room = (len(corpus.train) - length - 1) // corpus.align
    if room < 0:
        raise MissingData(
            f"training needs at least {length + 1} tokens, {corpus.name} has {len(corpus.train)}: "
            "use a larger file or a shorter --length"
        )
    rng = np.random.default_rng(seed)
    return rng.integers(0, room + 1, size=(steps, batch)) * corpus.align


def window_ends(corpus: Corpus, *, longest: int, windows: int) -> np.ndarray:
    """Where the test windows end. Windows of all lengths end at the same places, so the same tokens
    are scored at each length, with more or fewer before them. There are fewer than `windows` if the
    test part is short."""
    first, last = longest, (len(corpus.test) - 1) // corpus.align * corpus.align
    if last < first:
        raise MissingData(
            f"a test at {longest} tokens needs {longest + 1} held-out tokens, {corpus.name} has "
            f"{len(corpus.test)}: use a larger file or shorter --tests"
        )
    count = min(windows, (last - first) // SCORED + 1)
    return np.linspace(first, last, count).astype(np.int64) // corpus.align * corpus.align


def unigram_loss(corpus: Corpus, ends: np.ndarray) -> float:
    """Mean loss of the scored tokens when they are predicted from the training frequencies only."""
    counts = np.bincount(corpus.train, minlength=corpus.vocabulary) + 1.0
    scored = np.concatenate([corpus.test[end - SCORED + 1 : end + 1] for end in ends])
    return float(-np.log(counts / counts.sum())[scored].mean())


def _stream(grids) -> np.ndarray:
    head = np.full(chorales.VOICES, chorales.START, dtype=np.int64)
    return np.concatenate([part for grid in grids for part in (head, grid.reshape(-1))])
