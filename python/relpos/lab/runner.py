"""Runs each job of the lab in its own process, so that Ctrl-C ends a job and not the lab."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import relpos
from relpos.lab.kept import forget_job, read_arrays, write_arrays, write_json

# By default glibc returns large buffers to the system at once, and every step has page faults. With
# these settings a step of the default size takes 278 ms instead of 318 on one thread.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}

# No file in the current folder can replace a module.
_ROOT = str(Path(relpos.__file__).parents[1])
_STARTER = str(Path(__file__).with_name("starter.py"))
_START = (
    f"import sys; sys.path[:] = [*filter(None, sys.path), {_ROOT!r}]; import runpy; "
    f"runpy.run_path({_STARTER!r}, run_name='__main__')"
)


class JobFailed(RuntimeError):
    """A job did not start, or ended without a result; the text ends with the reason."""


class Jobs:
    """Runs jobs in folders below `folder`, one after the other, on at most `threads` threads.

    To import PyTorch takes seconds, so that one process, the starter, does so for all jobs, which
    are forks of it (starter.py). They are one group of processes, which leaving this context ends.
    The fork server of multiprocessing has no environment and no group of its own.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self._threads = threads
        self._starter: subprocess.Popen | None = None

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(
        self,
        name: str,
        job: dict,
        data: dict[str, np.ndarray],
        *,
        title: str,
        on_event: Callable[[dict], None],
    ) -> tuple[dict, dict[str, np.ndarray]]:
        """Result and arrays of a job, or those that are in its folder if it was the same job. A
        JobFailed begins with the title. KeyboardInterrupt ends the job and is raised again."""
        folder, what = self.folder / name, f"{title}: the {job['kind']} job"
        try:
            done = self._is_done(folder, job, data)
        except OSError as error:
            raise JobFailed(f"{what} does not start: {error}") from error
        if not done:
            try:
                status, why = self._work(folder, on_event)
            except BaseException:
                self._end()
                raise
            if not (folder / "result.json").exists():
                why = _after_colon(why or self._said(folder))
                raise JobFailed(f"{what} ended with status {status}{why}")
        return json.loads((folder / "result.json").read_text()), read_arrays(folder / "arrays.npz")

    def _is_done(self, folder: Path, job: dict, data: dict[str, np.ndarray]) -> bool:
        """Whether a job is done. If not, its folder is made and there is a starter; what another
        job left there, one of other code for instance, is removed."""
        asked = folder / "job.json"
        if asked.exists() and json.loads(asked.read_text()) != json.loads(json.dumps(job)):
            forget_job(folder)
        if (folder / "result.json").exists():
            return True
        folder.mkdir(exist_ok=True)
        (folder / "stderr").unlink(missing_ok=True)
        write_json(asked, job)
        write_arrays(folder / "data.npz", data)
        self._starter = self._starter or self._started()
        return False

    def _work(self, folder: Path, on_event: Callable[[dict], None]) -> tuple[int, str]:
        """The status of a job, or of the starter where that one ended first, and why the job says
        that it failed."""
        why = ""
        # A starter that has ended is known by the end of its stdout. What a buffer of stdin held
        # back would be written, and fail, once more when it is closed.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._starter.stdin.fileno(), f"{folder.name}\n".encode())
        for line in self._starter.stdout:
            event = json.loads(line)
            if event["event"] == "end":
                return event["status"], why
            if event["event"] == "failed":
                why = event["why"]
            else:
                on_event(event)
        return self._end(), why

    def _started(self) -> subprocess.Popen:
        with (self.folder / "stderr").open("wb") as errors:
            try:
                return subprocess.Popen(
                    [sys.executable, "-c", _START, str(self.folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**_ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(self._threads)},
                    start_new_session=True,  # Ctrl-C comes to this process alone
                    text=True,
                )
            except OSError as error:
                raise OSError(f"{sys.executable} does not run: {error.strerror}") from error

    def _end(self) -> int:
        """Ends the starter and its job, if there is one, and waits for both; the starter's status.

        Their group is killed before the starter is waited for: until then its number is no other
        group's.
        """
        starter, self._starter = self._starter, None
        if starter is None:
            return 0
        with starter:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # that of macOS: ended
                os.killpg(starter.pid, signal.SIGKILL)
            starter.stdout.read()  # to its end, which comes when nobody is left to write
        return starter.returncode

    def _said(self, folder: Path) -> str:
        """The end of what a job wrote to stderr, or else of what the starter did."""
        for file in (folder / "stderr", self.folder / "stderr"):
            text = file.read_text(errors="replace").strip() if file.exists() else ""
            if text:
                return text
        return ""


def _after_colon(text: str) -> str:
    """The end of a text in lines of its own, or beside the colon where it is one line."""
    lines = text.splitlines()[-12:]
    if len(lines) < 2:
        return f": {text}" if text else ""
    return "\n".join([":", *lines])
