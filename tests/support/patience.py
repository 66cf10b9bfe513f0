"""How long to wait for a process, and how it hears Ctrl-C wherever the tests run.

A timeout only ends what hangs. It is given in seconds of an idle machine and grows with the time
that a fixed piece of work takes here and now: on a slow machine, under `nice`, beside busy
processes.
"""

import functools
import signal
import subprocess
import sys
import time

WORK = "sum(n * n for n in range(5_000_000))"
IDLE_SECONDS = 0.5  # of WORK and the start of its process, on an idle core
SPARE = 3  # for what becomes busier after the measurement


@functools.cache
def slowness():
    """How many times an idle machine's time a process takes here, at least 1. Measured once."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", WORK], check=True)
    return max(1.0, (time.monotonic() - begin) / IDLE_SECONDS)


def timeout(seconds):
    """The timeout for what takes at most `seconds` on an idle machine."""
    return seconds * SPARE * slowness()


def heed_interrupts():
    """As preexec_fn: SIGINT ends the child even where the tests themselves must ignore it (nohup,
    cron, a shell's `&`), for an ignored signal stays ignored in children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
