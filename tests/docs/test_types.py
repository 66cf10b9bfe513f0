"""The types of the public API: what is right passes mypy --strict, and what is wrong does not.
scripts/lint.sh compares the stubs with what is there at run time."""

import os
import re
import subprocess
import sys
from pathlib import Path

import relpos

from tests import ROOT

TYPED = ROOT / "tests/docs/typing"


def mypy(*arguments):
    environment = {k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", "mypy", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_right_calls_pass_and_wrong_ones_do_not():
    wanted = {
        ("bad.py", number, line.rsplit("# ", 1)[1])
        for number, line in enumerate((TYPED / "bad.py").read_text().splitlines(), 1)
        if "  # " in line
    }
    assert len(wanted) > 10
    ran = mypy("--no-error-summary", TYPED / "good.py", TYPED / "bad.py")
    found = re.findall(r"^.*?(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", ran.stdout, re.M)
    found = {(file, int(line), code) for file, line, code in found}
    assert found == wanted, ran.stdout + ran.stderr


def test_installed_as_typed():
    package = Path(relpos.__file__).parent
    assert (package / "py.typed").is_file()
    assert (package / "__init__.pyi").is_file()
