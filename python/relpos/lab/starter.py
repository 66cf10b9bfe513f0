"""Starts the jobs of a run of the lab as forks of itself; runner.py runs this file with the run's
folder.

It imports PyTorch once for all jobs, and relpos not at all: a fork of a process that has relpos
computes on other threads than PyTorch's, by which a step takes 10 to 15 % longer.

Each line of stdin is the name of a folder below, of which worker.py does the job. What a job tells
goes to stdout; after it {"event": "failed", "why": ...} where the job raised something, which no
full disk can lose, and {"event": "end", "status": of its process}.

On macOS, whose libraries do not survive a fork, this process does one job itself and ends.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import sys
import traceback
from pathlib import Path

import torch._dynamo  # noqa: F401  an optimizer of each job would otherwise


def own_process(folder: Path, events: int) -> None:
    """Runs a job and ends this process, without what the starter has registered for its exit."""
    status, why = 1, ""
    try:
        stderr = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        from relpos.lab import kept, worker  # not in the starter

        try:
            worker.run_job(folder, functools.partial(tell, events))
            status = 0
        except kept.CannotWrite as error:
            why = str(error)
    except BaseException:
        why = traceback.format_exc()
    finally:
        with contextlib.suppress(BaseException):
            if why:
                tell(events, event="failed", why=why)
            sys.stderr.flush()
        os._exit(status)


def tell(events: int, **event: object) -> None:
    os.write(events, f"{json.dumps(event)}\n".encode())


def main(run: Path) -> None:
    events = os.dup(1)  # which programs that a job starts do not have
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # what positions of one's own print
    forks = sys.platform != "darwin"
    gc.freeze()  # what is imported: a collection in a job would copy its 60 MB page by page
    for line in sys.stdin:
        process = os.fork() if forks else 0
        if process == 0:
            own_process(run / line.rstrip("\n"), events)
        _, status = os.waitpid(process, 0)
        tell(events, event="end", status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
