"""Resident memory of this process, in MB, as /proc tells it.

The peak of getrusage is not used, since a new process starts with that of its parent.
"""

from __future__ import annotations

from pathlib import Path


def memory_mb(field: str) -> float:
    """VmRSS (resident now) or VmHWM (its peak); 0 where /proc has none."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    line = next((x for x in status.splitlines() if x.startswith(field + ":")), None)
    return int(line.split()[1]) / 1024 if line else 0.0


def forget_memory_peak() -> None:
    """Lowers VmHWM to VmRSS."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
