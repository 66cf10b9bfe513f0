"""CONTRIBUTING's words are enough: its three blocks make a scheme that everything finds.

The tree is copied, the blocks are put where the text says, and the copy is built. The build stays
in build/toy, so that a second run compiles only what changed.
"""

import json
import os
import re
import sys

import pytest

from tests import ROOT
from tests.schemes.test_conformance import WORKER
from tests.support.cli_tool import ran

WORK = ROOT / "build/toy"
STEP = re.compile(r"^\d\. The (\w+),[^`]*`([^`]+)`.*?^```\w*\n(.*?)^```$", re.M | re.S)


def blocks():
    """{"source": (path, text), "test": ..., "row": ...} of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split("## Add a scheme", 1)[1]
    return {what: (path, block) for what, path, block in STEP.findall(section)}


def with_row(table, row):
    """The document with the row at the end of its first table."""
    lines = table.splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if line.startswith("|"))
    end = next(n for n in range(first, len(lines)) if not lines[n].startswith("|"))
    return "".join([*lines[:end], row, *lines[end:]])


@pytest.fixture(scope="module")
def copy():
    """(tool, environment, tree) of a build with the toy scheme."""
    overlay = WORK / "overlay"
    for what, (path, block) in blocks().items():
        target = overlay / path
        text = with_row((ROOT / path).read_text(), block) if what == "row" else block
        if not target.exists() or target.read_text() != text:  # its time says what to compile
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    command = [
        ROOT / "scripts/build_copy.sh",
        WORK,
        overlay,
        "-DRELPOS_BUILD_TESTS=OFF",
        "-DRELPOS_ONE_TARGET=ON",
        "-DBUILD_SHARED_LIBS=ON",  # as in a wheel: no other build of `make test` hides names
        "-DRELPOS_THREADS=std",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    ]
    ran(command, seconds=3600)
    environment = os.environ | {"PYTHONPATH": str(WORK / "site")}
    return WORK / "build/relpos", environment, WORK / "tree"


def test_contributing_has_the_three_steps():
    assert {what: path for what, (path, _) in blocks().items()} == {
        "source": "src/schemes/toy.cc",
        "test": "tests/oracles/toy.py",
        "row": "docs/schemes.md",
    }


def test_the_tool_finds_it(copy):
    tool, environment, _ = copy
    listed = ran([tool, "list"], env=environment)
    assert re.search(r"^\s*toy\b", listed, re.M), listed
    sizes = ["--heads", "2", "--query", "3", "--key", "3", "--reach", "1", "--what", "index"]
    shown = json.loads(ran([tool, "show", "toy", *sizes, "--json"], env=environment))
    assert "[[1, 2, -1], [0, 1, 2], [-1, 0, 1]]" in json.dumps(shown)


def test_python_finds_it(copy):
    _, environment, _ = copy
    script = """
import inspect, pathlib, relpos
assert "class Toy(" in pathlib.Path(relpos.__file__).with_name("__init__.pyi").read_text()
assert "/build/toy/site/" in relpos.__file__, relpos.__file__
toy = relpos.Toy(2, reach=3)
assert toy.near.shape == (2, 7) and toy.near.requires_grad
assert list(inspect.signature(relpos.Toy).parameters) == ["heads", "reach"]
print([scheme.name for scheme in relpos.schemes()])
"""
    assert "'toy'" in ran([sys.executable, "-c", script], env=environment)


def test_conformance_tries_it(copy):
    _, environment, tree = copy
    script = """
from tests.support.cases import all_cases
from tests.schemes.test_conformance import TARGETS
print([case for case in all_cases(TARGETS)[0] if "toy#" in case["position"]])
"""
    here = {"env": environment, "cwd": tree}
    cases = ran([sys.executable, "-c", script], **here)
    found = json.loads(ran([sys.executable, "-m", WORKER], **here, input=cases, seconds=600))
    assert found["count"] > 4
    assert found["problems"] == []

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["tests/schemes/test_conformance.py", "tests/docs/test_docs_schemes.py"]
    command += ["-k", "toy or docs"]
    summary = ran(command, **here, seconds=600).splitlines()[-1]
    assert int(re.search(r"(\d+) passed", summary)[1]) > 4, summary
