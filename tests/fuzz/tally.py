"""What a long run has seen, in a file."""

import json
import os
import time
from pathlib import Path

EVERY = 5.0  # seconds between writes


class Tally:
    """How many cases are done, and the lines of those that failed."""

    def __init__(self, path, seed):
        self.path, self.seed = Path(path), seed
        self.done, self.failures, self.note, self.written = 0, [], "", 0.0

    @classmethod
    def at(cls, path, seed):
        """That of a file, if it is of the same seed; else a new one."""
        tally = cls(path, seed)
        if tally.path.exists():
            held = json.loads(tally.path.read_text())
            if held["seed"] == seed:
                tally.done, tally.failures, tally.note = (
                    held["done"],
                    held["failures"],
                    held["note"],
                )
        return tally

    def add(self, failure, note):
        self.done += 1
        self.failures += [failure] if failure else []
        self.note = note or self.note
        if time.monotonic() - self.written > EVERY:
            self.write()

    def write(self):
        held = {
            "seed": self.seed,
            "done": self.done,
            "note": self.note,
            "failures": self.failures,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(held, indent=1))
        os.replace(beside, self.path)
        self.written = time.monotonic()

    def verdict(self):
        return f"{self.done} cases, {len(self.failures)} failed; {self.note}"
