"""Writes a file of bytes for `relpos lab --text`: what docs/which.md trains on beside chorales.

.venv/bin/python scripts/lab_data.py text FILE      the topics of Python's help, English
.venv/bin/python scripts/lab_data.py images FILE    256 bytes for each patch of 16 x 16 pixels
.venv/bin/python scripts/lab_data.py speech FILE    50 bytes a second, sounds by their number

`images` reads photographs of an installed scikit-image (pip install scikit-image==0.26.0).
`speech` needs espeak-ng: a program speaks, not people. The lab tests on the last eighth: other
topics, other photographs.
"""

import io
import pydoc_data.topics
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np

PATCH, GREYS = 16, 32
TRAINING = "astronaut brick camera coffee coins grass gravel moon rocket retina hubble_deep_field"
HELD_OUT = "chelsea motorcycle_left"
VOICES = ("en-us", "en-gb+f3", "en-gb+m7", "en-us+f5")
SPOKEN = 90_000  # characters
RATE, FRAME, SOUNDS, BANDS = 22050, 441, 64, 24


def text():
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics)).encode("latin-1", "replace")


def patches(name):
    """uint8 [patches, 256] of grey levels; the photograph is halved first."""
    from skimage import color, data

    pixels = getattr(data, name)() if hasattr(data, name) else data.stereo_motorcycle()[0]
    grey = color.rgb2gray(pixels) if pixels.ndim == 3 else pixels / 255
    rows, columns = (n // (2 * PATCH) for n in grey.shape)
    grey = grey[: 2 * PATCH * rows, : 2 * PATCH * columns]
    half = grey.reshape(PATCH * rows, 2, PATCH * columns, 2).mean((1, 3))
    level = np.minimum(half * GREYS, GREYS - 1).astype(np.uint8)
    return level.reshape(rows, PATCH, columns, PATCH).swapaxes(1, 2).reshape(-1, PATCH * PATCH)


def images():
    """The held-out photographs are the last eighth."""
    random = np.random.default_rng(0)
    seen, unseen = (
        random.permutation(np.concatenate([patches(name) for name in names.split()]))
        for names in (TRAINING, HELD_OUT)
    )
    eighth = min(len(seen) // 7, len(unseen))
    return np.concatenate([seen[: 7 * eighth], unseen[:eighth]]).tobytes()


def spoken(words, voice):
    """float [samples] of 22050 a second."""
    command = ["espeak-ng", "-v", voice, "--stdin", "--stdout"]
    sound = subprocess.run(command, input=words.encode(), stdout=subprocess.PIPE, check=True).stdout
    with wave.open(io.BytesIO(sound)) as file:
        assert file.getframerate() == RATE
        samples = file.readframes(len(sound))
    return np.frombuffer(samples, np.int16) / 32768


def energies(samples):
    """The logarithms of a frame's energy in bands that widen as those of the ear, [frames, bands],
    less their mean over time."""
    count = len(samples) // FRAME - 1
    starts = np.arange(count)[:, None] * FRAME + np.arange(2 * FRAME)
    power = np.abs(np.fft.rfft(samples[starts] * np.hanning(2 * FRAME))) ** 2
    edges = 700 * (np.geomspace(1, 1 + RATE / 2 / 700, BANDS + 1) - 1)
    bins = np.unique(np.round(edges / RATE * 2 * FRAME).astype(int))
    bands = np.log(np.add.reduceat(power, bins[:-1], axis=1) + 1e-6)
    return (bands - bands.mean(0)).astype(np.float32)


def nearest(rows, centres):
    return ((centres**2).sum(1) - 2 * rows @ centres.T).argmin(1)


def speech():
    """The sounds are the centres of k-means over all frames that the lab trains on."""
    topics = text().decode("latin-1")[:SPOKEN].split("\n\n")
    rows = [
        energies(spoken(words, VOICES[n % 4])) for n, words in enumerate(topics) if words.strip()
    ]
    rows = np.concatenate(rows)
    training = rows[: len(rows) - len(rows) // 8]
    centres = training[np.random.default_rng(0).choice(len(training), SOUNDS, replace=False)]
    for _ in range(30):
        number = nearest(training, centres)
        sums = np.zeros_like(centres)
        np.add.at(sums, number, training)
        counts = np.bincount(number, minlength=SOUNDS)[:, None]
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return nearest(rows, centres).astype(np.uint8).tobytes()


if __name__ == "__main__":
    made = {"text": text, "images": images, "speech": speech}
    if len(sys.argv) != 3 or sys.argv[1] not in made:
        raise SystemExit(__doc__)
    Path(sys.argv[2]).write_bytes(made[sys.argv[1]]())
