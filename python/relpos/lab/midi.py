"""Writes notes as a standard MIDI file of format 1: a track for the tempo, then one per voice."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from relpos.lab.chorales import STEPS_PER_QUARTER, VOICES, Note

TICKS_PER_QUARTER = 480
TEMPO = 84  # quarters a minute
VOICE_NAMES = ("Soprano", "Alto", "Tenor", "Bass")
_TICKS_PER_STEP = TICKS_PER_QUARTER // STEPS_PER_QUARTER
_PROGRAM = 19  # church organ, counted from 0
_VELOCITY = (92, 78, 78, 86)


def midi_bytes(notes: Sequence[Note], *, title: str) -> bytes:
    tracks = [_tempo_track(title)]
    tracks += [_voice_track([n for n in notes if n.voice == v], v) for v in range(VOICES)]
    header = struct.pack(">4sIHHH", b"MThd", 6, 1, len(tracks), TICKS_PER_QUARTER)
    return header + b"".join(_chunk(track) for track in tracks)


def _chunk(events: bytes) -> bytes:
    events += _variable(0) + b"\xff\x2f\x00"  # end of track
    return struct.pack(">4sI", b"MTrk", len(events)) + events


def _tempo_track(title: str) -> bytes:
    microseconds = round(60_000_000 / TEMPO)
    return _text(0x03, title) + _variable(0) + b"\xff\x51\x03" + microseconds.to_bytes(3, "big")


def _voice_track(notes: Sequence[Note], voice: int) -> bytes:
    events = _text(0x03, VOICE_NAMES[voice]) + _variable(0) + bytes([0xC0 | voice, _PROGRAM])
    moments = []  # (tick, off before on, event)
    for note in notes:
        begin = note.start * _TICKS_PER_STEP
        end = begin + note.length * _TICKS_PER_STEP
        moments.append((begin, 1, bytes([0x90 | voice, note.pitch, _VELOCITY[voice]])))
        moments.append((end, 0, bytes([0x80 | voice, note.pitch, 0])))
    now = 0
    for tick, _, event in sorted(moments):
        events += _variable(tick - now) + event
        now = tick
    return events


def _text(kind: int, text: str) -> bytes:
    data = text.encode("ascii", "replace")
    return _variable(0) + bytes([0xFF, kind]) + _variable(len(data)) + data


def _variable(number: int) -> bytes:
    """A MIDI variable-length quantity: seven bits a byte, the high bit on all but the last."""
    digits = [number & 0x7F]
    while number := number >> 7:
        digits.append(0x80 | number & 0x7F)
    return bytes(reversed(digits))
