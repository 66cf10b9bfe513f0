"""Plants each fault of faults.py in the working tree, one after the other, and runs tests until one
fails: those nearest to the file first, then all. Prints the share that tests find, and each fault
that none of them does. Ctrl-C puts the file back; after a kill -9 the next run does.

    .venv/bin/python -m tests.mutants                     # hours
    .venv/bin/python -m tests.mutants --only kernels/terms --nearest
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time

from tests import ROOT
from tests.mutants.faults import FAULTS
from tests.mutants.plant import Planted

KEPT = ROOT / "build/mutants/planted"
PROGRAM = ROOT / "build/release/relpos_tests"
PACKAGE = ROOT / "build/mutants/package"
LONGEST = 1800.0  # seconds of one command
SUITE = re.compile(r"^TEST(?:_F|_P)?\((\w+),", re.MULTILINE)
# Of a file whose path begins so; the first that fits: gtest's filter, and paths of pytest.
NEAR = {
    "src/io": ["Npy", "afetensors", "Outputs", "OutOfMemoryFiles"],
    "src/schemes": [
        *("Golden", "Refusals", "Buckets", "Slopes", "Frequencies", "Biases", "Rotary"),
        "tests/schemes/test_conformance.py",
    ],
    "src/kernels": [
        *("Terms", "Combined", "Edges", "Shifts", "Dropout", "Threefry", "Units", "FarTiles"),
        *("MaskOrder", "GuardPages"),
    ],
    "src/values": ["ClassMap", "Tensor", "Option", "Position", "Rotary", "Dense", "Terms", "Views"],
    "src/binding": [
        *("Builder", "Networks", "Registered", "GivenTerms", "SomeHeads", "Dense", "Golden"),
        *("Biases", "Rotary", "Rotations"),
    ],
    "src/call": [
        *("Rotary", "Dense", "Check", "GivenTerms", "SomeHeads", "GuardPages"),
        *("tests/call/test_masks.py", "tests/call/test_tile_mask.py", "tests/fuzz/test_fuzz.py"),
    ],
    "src/base": ["Buffer", "Tasks", "Threads", "OwnPool", "OutOfMemory"],
    "c/": ["OutOfMemory", "tests/call/test_c.py"],
    "python/relpos/_base": ["tests/call/test_call.py"],
    "python/relpos/_call/autograd": ["tests/torch/test_torch_training.py"],
    "python/relpos/_call/cache": ["tests/call/test_cache.py"],
    "python/relpos/_call/merge": ["tests/peers/test_compat.py", "tests/metamorphic"],
    "python/relpos/_call": [
        *("tests/call/test_varlen.py", "tests/call/test_packed.py", "tests/metamorphic"),
        "tests/fuzz/test_fuzz.py",
    ],
    "python/relpos/_position": ["tests/metamorphic", "tests/call/test_terms.py"],
    "python/relpos/distributed": ["tests/distributed/test_distributed.py"],
    "python/relpos/lab": ["tests/fuzz/test_musicxml.py", "tests/cli/test_lab.py"],
}
REST = ("tests/fuzz/test_fuzz.py", "tests/metamorphic", "tests/call", "tests/schemes")


def quiet(*command, **environment):
    """The exit status; 124 where a fault made the command go on for ever."""
    settings = dict(cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    try:
        return subprocess.run(command, timeout=LONGEST, **settings).returncode
    except subprocess.TimeoutExpired:
        return 124


def built(target):
    return quiet("cmake", "--build", "build/release", "--target", target)


def cpp(only):
    return quiet(str(PROGRAM), "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={only}")


def python(paths):
    """By the package of the tree, with the extension as it is built now."""
    return built("all") or quiet(
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths),
        PYTHONPATH=str(PACKAGE),
    )


def link_package():
    """relpos as Python imports it: the sources, and what the build made."""
    folder = PACKAGE / "relpos"
    folder.mkdir(parents=True, exist_ok=True)
    made = list((ROOT / "build/release").glob("_core*.so"))
    for file in [*(ROOT / "python/relpos").iterdir(), *made]:
        to = folder / file.name
        if not to.exists():
            to.symlink_to(file)


def found_by(fault, nearest_alone):
    """What finds a fault: a step's name; None where nothing does."""
    compiled = not fault.file.startswith("python/")
    if compiled and built("relpos_tests"):
        return "the compiler"
    near = next((near for at, near in NEAR.items() if fault.file.startswith(at)), [])
    paths = [name for name in near if "/" in name]
    only = ":".join(f"*{name}*" for name in near if name not in paths)
    beside = ROOT / re.sub(r"\.\w+$", "_test.cc", fault.file)
    if beside.exists():
        suites = sorted(set(SUITE.findall(beside.read_text())))
        if cpp(":".join(f"*{suite}*.*" for suite in suites)):
            return "the tests beside it"
    if only and cpp(only):
        return "near C++ tests"
    if paths and python(paths):
        return "near Python tests"
    if nearest_alone:
        return None
    if compiled and cpp("*"):
        return "all C++ tests"
    return "other Python tests" if python(REST) else None


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--only", default="", help="faults of files whose path has this text")
    parser.add_argument("--nearest", action="store_true", help="no tests but the nearest")
    parser.add_argument("--every", type=int, default=1, help="one fault in so many")
    parser.add_argument("--first", type=int, default=1, help="begins at that one of them")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    Planted.restore(KEPT)
    link_package()
    chosen = [fault for fault in FAULTS if options.only in fault.file][:: options.every]
    survivors = []
    for n, fault in enumerate(chosen[options.first - 1 :], options.first):
        begun = time.monotonic()
        with Planted(ROOT / fault.file, fault.old, fault.new, KEPT):
            step = found_by(fault, options.nearest)
        survivors += [] if step else [fault]
        spent = time.monotonic() - begun
        print(f"{n}/{len(chosen)} {fault.name}: {step or 'SURVIVES'}, {spent:.0f} s", flush=True)
    built("all")
    built("relpos_tests")
    run = len(chosen) - options.first + 1
    killed = run - len(survivors)
    print(f"mutants: {killed} of {run} found, {100 * killed / max(1, run):.1f} %")
    for fault in survivors:
        print(f"  survives: {fault.name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
