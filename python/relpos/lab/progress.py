"""Progress of a job: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import os
import sys
import time

_WIDTH = 24
_BETWEEN_DRAWS = 0.1  # seconds
_SPARSE_LINES = 4  # per job, where stderr is no terminal


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def show(text: str, end: str = "\n") -> None:
    """Prints on stderr. A log that cannot be written ends no run; a reader that has gone does."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        pass


def leave_unwritten() -> None:
    """Drops what stdout or stderr cannot write, for which Python would end with status 120."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  to the end of the process


class Progress:
    """Progress of one job of `total` steps; `title` says which."""

    def __init__(self, title: str, total: int, *, quiet: bool = False) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self.terminal = sys.stderr.isatty()
        self.began: float | None = None
        self.drawn = 0.0

    def update(self, done: int, loss: float | None = None) -> None:
        now = time.monotonic()
        if self.began is None:  # the first step includes the start; rates count from its end
            self.began, self.first = now, done
        if not self.terminal:
            if done % max(1, self.total // _SPARSE_LINES) == 0:
                self._show(self._line(done, loss, now), "\n")
        elif now - self.drawn >= _BETWEEN_DRAWS or done == self.total:
            self.drawn = now
            self._show(self._line(done, loss, now))

    def say(self, text: str) -> None:
        """Shows a text in place of the bar."""
        if self.terminal:
            self._show(f"{self.title}  {text}")

    def close(self, text: str) -> None:
        """Removes the bar and prints one line about the job."""
        self._show(f"{self.title}  {text}", "\n")

    def _show(self, text: str, end: str = "") -> None:
        if not self.quiet:
            start = "\r\x1b[2K" if self.terminal else ""
            show(start + text, end)

    def _line(self, done: int, loss: float | None, now: float) -> str:
        filled = _WIDTH * done // self.total
        bar = "━" * filled + "─" * (_WIDTH - filled)
        parts = [self.title, f"{bar} {done}/{self.total}"]
        elapsed = now - self.began
        if done > self.first and elapsed > 0:
            rate = (done - self.first) / elapsed
            parts += [f"{rate:.1f} steps/s", f"{clock((self.total - done) / rate)} left"]
        if loss is not None:
            parts.append(f"loss {loss:.3f}")
        return "  ".join(parts)
