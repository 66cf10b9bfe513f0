"""The built tool, and files for it, for the tests of the command line."""

import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
from patience import timeout

ROOT = Path(__file__).resolve().parent.parent
TOOL = Path(os.environ.get("RELPOS_TOOL") or ROOT / "build" / "relpos")


def call(*words, cwd=None, env=None, seconds=60):
    """Runs relpos with its output on pipes. `seconds` is the timeout on an idle machine."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "RELPOS_TARGET")}
    environment.update(env or {})
    return subprocess.run(
        [TOOL, *map(str, words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout(seconds),
        check=False,
    )


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
