"""Tests, in rooms: each room proves one part of relpos."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FULL = os.environ.get("RELPOS_FULL") == "1"  # make test-full: all cases
