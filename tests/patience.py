"""Timeouts of child processes, and how to make Ctrl-C reach them wherever the tests run.

A timeout exists only to end a process that hangs. It is given in seconds of an idle machine. On a
slow machine, under `nice` or beside busy processes it is longer: by the factor by which a fixed
piece of work takes longer than on an idle machine.
"""

import functools
import signal
import subprocess
import sys
import time

WORK = "sum(n * n for n in range(5_000_000))"
IDLE_SECONDS = 0.5  # of WORK and the start of its process, on an idle core
SPARE = 3  # the machine may be busier later than during the measurement


@functools.cache
def slowness():
    """How many times longer a process takes here than on an idle machine, at least 1."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", WORK], check=True)
    return max(1.0, (time.monotonic() - begin) / IDLE_SECONDS)


def timeout(seconds):
    """The timeout for a process that takes at most `seconds` on an idle machine."""
    return seconds * SPARE * slowness()


def heed_interrupts():
    """For preexec_fn: SIGINT ends the child, even if the tests themselves ignore it (nohup, cron, a
    shell's `&`). A signal that a process ignores is otherwise also ignored in its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
