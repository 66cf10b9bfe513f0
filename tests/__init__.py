"""Tests, in rooms: each room proves one part of relpos."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
