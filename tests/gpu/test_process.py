"""Runs the tests of this folder in the interpreter, and what decides whether there is one."""

import os
import re
import subprocess
import sys

import pytest
import relpos

from tests import ROOT

FOLDER = ROOT / "python/relpos/gpu"
ENV = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def ran(code, **env):
    """What a process of its own printed, and its errors."""
    found = subprocess.run(
        [sys.executable, "-c", code], env=ENV | env, cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout + found.stderr


def test_the_kernels_in_the_interpreter(summary):
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider", "--tb=short"],
        env=ENV | {"RELPOS_GPU": "interpret", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert int(passed[1]) > 50
    summary.append(f"kernels of the GPU in Triton's interpreter: {run.stdout.splitlines()[-1]}")


def test_relpos_does_not_import_triton():
    assert "False" in ran("import sys, relpos; print('triton' in sys.modules)")
    assert relpos.gpu.launches() == {}


def test_a_machine_without_triton_says_what_to_install():
    call = (
        "import sys, torch; sys.modules['triton'] = None; import relpos; q = torch.ones(1, 1, 2, 4)"
    )
    text = ran(f"{call}; relpos.attention(q, q, q)", RELPOS_GPU="interpret")
    assert "ImportError: relpos.attention on CUDA needs Triton, which is not installed" in text
    assert "pip install triton" in text


def test_the_switch_has_two_values_and_comes_before_triton():
    assert "RELPOS_GPU: expected one of auto, interpret, got 'on'" in ran(
        "import relpos", RELPOS_GPU="on"
    )
    late = "import triton, relpos"
    assert "had imported triton yet" in ran(late, RELPOS_GPU="interpret")
    assert not ran(late, RELPOS_GPU="interpret", TRITON_INTERPRET="1")


@pytest.mark.parametrize("path", FOLDER.rglob("*.py"), ids=lambda path: path.stem)
def test_sources_keep_what_makes_results_the_same(path):
    text = path.read_text()
    for word in ("atomic", "autotune", "index_add", "scatter_add", "bincount", "cumsum"):
        assert word not in text
    if path.stem != "product":  # which widens operands of 16 bits
        assert "tl.dot" not in text
        assert not re.search(r"\.to\(tl\.b?float16\)", text)
