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
from relpos.lab.kept import read_arrays, write_arrays, write_json

# By default glibc returns large buffers to the system at once, and every step has page faults. With
# these settings a step of the default size takes 278 ms instead of 318 on one thread.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}

# As `-m relpos.lab.worker`, but no file in the current folder can replace a module.
_ROOT = str(Path(relpos.__file__).parents[1])
_START = (
    f"import sys; sys.path[:] = [*filter(None, sys.path), {_ROOT!r}]; import runpy; "
    "runpy.run_module('relpos.lab.worker', run_name='__main__', alter_sys=True)"
)


class JobFailed(RuntimeError):
    """A job ended without a result; the text ends with what it wrote to stderr."""


class Jobs:
    """Runs jobs in folders below `folder`, each on `threads` threads; a context that ends the
    process which starts them. To import PyTorch takes seconds, so that one process does so for all
    of them (worker.py)."""

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
        on_event: Callable[[dict], None],
    ) -> tuple[dict, dict[str, np.ndarray]]:
        """Result and arrays of a job, or those that are in its folder. KeyboardInterrupt ends the
        job and is raised again."""
        folder = self.folder / name
        if not (folder / "result.json").exists():
            folder.mkdir(exist_ok=True)
            write_json(folder / "job.json", job)
            write_arrays(folder / "data.npz", data)
            try:
                status = self._work(folder, on_event)
            except BaseException:
                self._end()
                raise
            if status != 0:
                raise JobFailed(
                    f"the {job['kind']} job ended with status {status}:\n{self._said(folder)}"
                )
        return json.loads((folder / "result.json").read_text()), read_arrays(folder / "arrays.npz")

    def _work(self, folder: Path, on_event: Callable[[dict], None]) -> int:
        """The status of a job, or of the starter where that one ended."""
        (folder / "stderr").unlink(missing_ok=True)
        if self._starter is None or self._starter.poll() is not None:
            self._end()
            self._starter = self._started()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._starter.stdin.fileno(), f"{folder.name}\n".encode())
        for line in self._starter.stdout:
            event = json.loads(line)
            if event["event"] == "end":
                return event["status"]
            on_event(event)
        return self._starter.wait()

    def _started(self) -> subprocess.Popen:
        with (self.folder / "stderr").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-c", _START, str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**_ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(self._threads)},
                start_new_session=True,  # Ctrl-C comes to this process alone
                text=True,
            )

    def _end(self) -> None:
        """Ends the starter and its job."""
        if self._starter is None:
            return
        with self._starter as starter:
            if starter.poll() is None:
                os.killpg(starter.pid, signal.SIGKILL)
        self._starter = None

    def _said(self, folder: Path) -> str:
        """The end of what a job wrote to stderr; of what the starter did, if the job did not
        begin."""
        job, starter = folder / "stderr", self.folder / "stderr"
        text = (job if job.exists() else starter).read_text(errors="replace")
        return "\n".join(text.strip().splitlines()[-12:])
