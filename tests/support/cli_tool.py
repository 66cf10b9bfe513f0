"""The built tool, and files for it, for the tests of the command line."""

import functools
import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np

from tests import ROOT
from tests.support.patience import timeout

RNG = np.random.default_rng(7)
TOOL = Path(os.environ.get("RELPOS_TOOL") or ROOT / "build" / "relpos")


def run(command, seconds=60, **options):
    """A finished process with text on pipes; `seconds` are those of an idle machine."""
    options = {"capture_output": True, "text": True, "check": False} | options
    return subprocess.run(list(map(str, command)), timeout=timeout(seconds), **options)


def ran(command, **options):
    """stdout of a process that succeeds."""
    done = run(command, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def silent():
    """An environment that says nothing about targets and colours."""
    return {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "RELPOS_TARGET")}


def call(*words, env=None, **options):
    """Runs relpos in an environment that says nothing about it."""
    return run([TOOL, *words], env=silent() | (env or {}), **options)


def interrupted(command, started, number=signal.SIGINT, **options):
    """(exit status, stdout, stderr) of a process that gets a signal once started(process) is true,
    and that hears it even where the tests themselves ignore it."""
    heed = None  # no process can ignore a kill
    if number != signal.SIGKILL:
        heed = functools.partial(signal.signal, number, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(map(str, command)), preexec_fn=heed, **pipes, **options) as process:
        until = time.monotonic() + timeout(60)
        while not started(process) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(number)
        out, errors = process.communicate(timeout=timeout(60))
    return process.returncode, out, errors


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def output(*words, **keywords):
    """stdout of a call that succeeds."""
    result = call(*words, **keywords)
    assert result.returncode == 0, result.stderr
    return result.stdout


def report(*words, **keywords):
    """What a call with --json prints."""
    return json.loads(output(*words, "--json", **keywords))


def refusal(*words, **keywords):
    """The one line on stderr of a call that must exit with 2 and print nothing else."""
    result = call(*words, **keywords)
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("relpos")
    return lines[0]


def safetensors_bytes(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy_bytes(shape, descr="<f4", data=b""):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def save(folder, **arrays):
    """Writes NAME.npy for each array; returns the paths in order."""
    paths = []
    for name, array in arrays.items():
        paths.append(folder / f"{name}.npy")
        np.save(paths[-1], array)
    return paths


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def attend(folder, **arrays):
    """Words of relpos attend with these inputs and small ones; outputs are the caller's."""
    arrays = {name: normal(1, 2, 5, 4) for name in ("query", "key", "value")} | arrays
    paths = save(folder, **arrays)
    return ["attend", *(f"--{name}={path}" for name, path in zip(arrays, paths, strict=True))]
