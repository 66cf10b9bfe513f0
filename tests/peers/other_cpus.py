"""The tests marked `peers`, which compare with code of torch or transformers, again under settings
by which that code computes as on other CPUs. `make test-full` runs this, without its many cases.

.venv/bin/python -m tests.peers.other_cpus [ARGUMENTS of pytest]

Each run prints the five comparisons that came nearest to their bounds (`near.py`). The exit status
is 1 where a test fails or a comparison needs more than half of its bound.
"""

import functools
import os
import subprocess
import sys

from tests import ROOT

# Prints how torch's libraries took a setting: the branch of MKL's vector code, the vector units of
# torch's own loops, and whether torch has oneDNN.
SEEN = """
import ctypes, pathlib, torch
branch = "none"
if torch.backends.mkl.is_available():
    library = ctypes.CDLL(pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so")
    if hasattr(library, "mkl_serv_cbwr_get"):
        branch = library.mkl_serv_cbwr_get(-1)
print(branch, torch.backends.cpu.get_cpu_capability(), torch.backends.mkldnn.is_available())
"""
BRANCHES = {"COMPATIBLE": "3", "AVX2": "10", "AVX512": "12"}  # of mkl_cbwr.h


@functools.cache
def seen(**environment):
    """(branch of MKL, units of torch, whether torch has oneDNN), as text."""
    run = [sys.executable, "-c", SEEN]
    found = subprocess.run(run, env=os.environ | environment, capture_output=True, text=True)
    return found.stdout.split() if found.returncode == 0 else ["none", "none", "False"]


def why_not(name, value):
    """Why a setting would change nothing on this machine; nothing where it does."""
    _, units, onednn = seen()
    branch, found, _ = seen(**{name: value})
    if name == "MKL_CBWR" and branch != BRANCHES[value]:
        return "torch has no MKL" if branch == "none" else "MKL does not take it on this CPU"
    if name == "ATEN_CPU_CAPABILITY" and (found.lower() != value or found == units):
        return f"torch computes with {units} here"
    if name == "ONEDNN_MAX_CPU_ISA" and (onednn != "True" or units != "AVX512"):
        return "torch has no oneDNN" if onednn != "True" else f"the CPU has no more than {units}"
    return ""


CPUS = [  # each setting in one run: those of a CPU together
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"MKL_CBWR": "AVX512"},
]


def main():
    command = [sys.executable, "-m", "pytest", "tests", "-m", "peers", "--nearest", "-q"]
    command += ["--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder", *sys.argv[1:]]
    environment = {name: value for name, value in os.environ.items() if name != "RELPOS_FULL"}
    failed = []
    for settings in CPUS:
        reasons = {name: why_not(name, value) for name, value in settings.items()}
        taken = {name: value for name, value in settings.items() if not reasons[name]}
        shown = " ".join(f"{name}={value}" for name, value in taken.items())
        print(f"== tests that compare with other code, {shown or 'no setting'}", flush=True)
        for name in reasons.keys() - taken.keys():
            print(f"without {name}={settings[name]}: {reasons[name]}", flush=True)
        if taken and subprocess.run(command, env=environment | taken, cwd=ROOT).returncode:
            failed.append(shown)
    for shown in failed:
        print(f"failed: {shown}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
