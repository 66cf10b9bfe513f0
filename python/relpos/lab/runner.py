"""Runs each job of the lab in its own process, so that Ctrl-C ends a job and not the lab."""

from __future__ import annotations

import json
import os
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


def run_job(
    folder: Path,
    job: dict,
    data: dict[str, np.ndarray],
    *,
    on_event: Callable[[dict], None],
) -> tuple[dict, dict[str, np.ndarray]]:
    """Result and arrays of one worker, or those that are in its folder. KeyboardInterrupt ends the
    worker and is raised again."""
    if not (folder / "result.json").exists():
        _work(folder, job, data, on_event)
    return json.loads((folder / "result.json").read_text()), read_arrays(folder / "arrays.npz")


def _work(
    folder: Path, job: dict, data: dict[str, np.ndarray], on_event: Callable[[dict], None]
) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / "job.json", job)
    write_arrays(folder / "data.npz", data)
    with (
        (folder / "stderr").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _START, str(folder)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**_ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(job["threads"])},
            start_new_session=True,  # Ctrl-C comes to this process alone
            text=True,
        ) as process,
    ):
        try:
            for line in process.stdout:
                on_event(json.loads(line))
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status != 0:
        tail = (folder / "stderr").read_text(errors="replace").strip().splitlines()[-12:]
        raise JobFailed(f"the {job['kind']} job ended with status {status}:\n" + "\n".join(tail))
