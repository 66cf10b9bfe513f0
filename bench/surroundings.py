"""Busy programs and limits of the system, for what computes beside or within them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Until it is killed, or the process that it is told of is no longer its parent.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"
PERIOD = 100_000  # microseconds


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[list[subprocess.Popen]]:
    """Programs that compute all the time, as the workers of a loader do."""
    running: list[subprocess.Popen] = []
    words = [sys.executable, "-c", BUSY, str(os.getpid())]
    try:
        for _ in range(count):
            running.append(subprocess.Popen(words, start_new_session=True))
        yield running
    finally:
        for program in running:
            program.kill()
            program.wait()


def _control_group(name: str) -> tuple[Path, str, str] | None:
    """(folder, file, text) of a new group that gets half a core: of cgroup v1 or of v2."""
    for root, file, text in (
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", f"{PERIOD // 2}"),
        ("/sys/fs/cgroup", "cpu.max", f"{PERIOD // 2} {PERIOD}"),
    ):
        folder = Path(root, name)
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / file).exists():
                return folder, file, text
            folder.rmdir()
    return None


@contextlib.contextmanager
def half_a_core() -> Iterator[Callable[[], object] | None]:
    """preexec_fn of processes that together get half of one core; None where the system lets nobody
    set such a limit."""
    group = _control_group(f"relpos-{os.getpid()}")
    if group is None:
        yield None
        return
    folder, file, text = group
    try:
        (folder / file).write_text(text)
        yield lambda: (folder / "cgroup.procs").write_text("0")
    finally:
        folder.rmdir()
