"""Conversion of a MusicXML chorale to tokens, and of tokens to notes.

The grid has one row of four tokens (soprano, alto, tenor, bass) for each sixteenth note. A token is
the start of a pitch, HOLD (the note before continues), REST, or START (four of them begin a piece).
"""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

VOICES = 4
STEPS_PER_QUARTER = 4
START, REST, HOLD, FIRST_PITCH = 0, 1, 2, 3
LOWEST_PITCH, HIGHEST_PITCH = 33, 88  # MIDI numbers: A1 to E6
VOCABULARY = FIRST_PITCH + HIGHEST_PITCH - LOWEST_PITCH + 1

_MAX_XML_BYTES = 16 << 20
_MAX_STEPS = 1 << 16  # over an hour of music
_DAMAGE = (  # what zipfile, ElementTree and the numbers in a score raise on a damaged file
    zipfile.BadZipFile,
    zlib.error,
    ElementTree.ParseError,
    EOFError,
    ArithmeticError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)
_SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


class Note(NamedTuple):
    """One sounding note; times in grid steps."""

    voice: int
    pitch: int
    start: int
    length: int


class NotAChorale(ValueError):
    """The file cannot be written as four voices on the grid."""


def find_corpus() -> Path | None:
    """The folder of Bach chorales inside an installed music21, which is not imported."""
    spec = importlib.util.find_spec("music21")
    for root in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(root) / "corpus" / "bach"
        if any(folder.glob("*.mxl")):
            return folder
    return None


def read_chorale(path: Path) -> np.ndarray:
    """Tokens [steps, 4] of one compressed MusicXML file; raises NotAChorale with the reason."""
    with path.open("rb") as file:
        try:
            return _grid(ElementTree.fromstring(_score_bytes(file, path.name)), path.name)
        except NotAChorale:
            raise
        except _DAMAGE as error:
            raise NotAChorale(f"{path.name}: not a compressed MusicXML file ({error})") from error


def _grid(root: ElementTree.Element, name: str) -> np.ndarray:
    parts = root.findall("part")
    if len(parts) != VOICES:
        raise NotAChorale(f"{name}: expected {VOICES} parts, found {len(parts)}")
    voices = [_read_part(part, name) for part in parts]
    steps = max(len(voice) for voice in voices)
    if steps == 0:
        raise NotAChorale(f"{name}: no notes")
    grid = np.full((steps, VOICES), REST, dtype=np.int64)
    for column, voice in enumerate(voices):
        grid[: len(voice), column] = voice
    return grid


def _score_bytes(file: IO[bytes], name: str) -> bytes:
    with zipfile.ZipFile(file) as archive:
        container = ElementTree.fromstring(_member(archive, "META-INF/container.xml"))
        rootfile = next((e for e in container.iter() if e.tag.endswith("rootfile")), None)
        if rootfile is None:
            raise NotAChorale(f"{name}: META-INF/container.xml names no score")
        return _member(archive, rootfile.get("full-path", ""))


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotAChorale(f"{name}: expected plain or deflated bytes, as MusicXML has them")
    with archive.open(name) as member:
        data = member.read(_MAX_XML_BYTES + 1)
    if len(data) > _MAX_XML_BYTES:
        raise NotAChorale(f"{name}: larger than {_MAX_XML_BYTES} bytes")
    if b"\0" in data:  # in UTF-16 the search for entities would find none
        raise NotAChorale(f"{name}: has zero bytes, expected UTF-8 or ASCII")
    if b"<!ENTITY" in data:
        raise NotAChorale(f"{name}: declares XML entities, which are refused")
    return data


def _read_part(part: ElementTree.Element, name: str) -> list[int]:
    """Tokens of one part: its first voice, the first note of a chord."""
    tokens: list[int] = []
    divisions = 1
    now = 0.0  # quarters since the start of the piece
    for measure in part.findall("measure"):
        in_second_voice = False
        for element in measure:
            if element.tag == "attributes":
                divisions = int(element.findtext("divisions") or divisions)
            elif element.tag == "backup":
                in_second_voice = True
            elif (
                element.tag in ("note", "forward")
                and not in_second_voice
                and element.find("chord") is None
            ):
                begin = round(now * STEPS_PER_QUARTER)
                quarters = float(element.findtext("duration") or 0) / divisions  # 0 of a grace note
                if quarters < 0:
                    raise NotAChorale(f"{name}: a note ends before it begins")
                now += quarters
                steps = round(now * STEPS_PER_QUARTER) - begin
                if begin + steps > _MAX_STEPS:
                    raise NotAChorale(f"{name}: longer than {_MAX_STEPS} sixteenths")
                if steps > 0:
                    first = _token(element, name)
                    tokens += [first] + [REST if first == REST else HOLD] * (steps - 1)
    return tokens


def _token(note: ElementTree.Element, name: str) -> int:
    if note.tag == "forward" or note.find("rest") is not None:
        return REST
    if any(tie.get("type") == "stop" for tie in note.findall("tie")):
        return HOLD
    pitch = note.find("pitch")
    if pitch is None:
        raise NotAChorale(f"{name}: a note without a pitch")
    number = (
        12 * (int(pitch.findtext("octave") or 0) + 1)
        + _SEMITONES[pitch.findtext("step") or "C"]
        + round(float(pitch.findtext("alter") or 0))
    )
    if not LOWEST_PITCH <= number <= HIGHEST_PITCH:
        raise NotAChorale(f"{name}: pitch {number} outside {LOWEST_PITCH}..{HIGHEST_PITCH}")
    return FIRST_PITCH + number - LOWEST_PITCH


def notes_of(grid: np.ndarray) -> list[Note]:
    """The notes of tokens [steps, 4], sorted by start and voice; START is silent."""
    notes: list[Note] = []
    for voice in range(grid.shape[1]):
        begin = pitch = None
        for step, token in enumerate([*grid[:, voice].tolist(), REST]):
            if token == HOLD:
                continue
            if pitch is not None:
                notes.append(Note(voice, pitch, begin, step - begin))
            begin = step
            pitch = token - FIRST_PITCH + LOWEST_PITCH if token >= FIRST_PITCH else None
    return sorted(notes, key=lambda note: (note.start, note.voice))
