"""Comparisons that remember how near they came, and `pytest --nearest`, which judges them."""

import os
import subprocess
import sys

import pytest
import torch

from tests import ROOT
from tests.peers import other_cpus
from tests.support import near


def test_each_comparison_has_its_bound(monkeypatch):
    monkeypatch.setattr(near, "ratios", {})
    one = torch.ones(3, dtype=torch.float64)
    near.close([one, -torch.inf * one], [one + 1e-10, -torch.inf * one], 1e-10)
    near.close_to_largest(one, one + torch.tensor([0.0, 1e-5, 0.0]), 2e-5)
    (ratio,) = near.ratios.values()
    assert ratio == pytest.approx(0.5, rel=1e-4)
    for wrong in (one + 3e-10, one.float(), one[:2], torch.nan * one):
        with pytest.raises(AssertionError):
            near.close(one, wrong, 1e-10)
    with pytest.raises(AssertionError, match="error: 2, which exceeds 1"):
        near.within(2.0, 1.0)
    with pytest.raises(AssertionError):
        near.within(float("nan"), 1.0)


COMPARISONS = """
from tests.support import near

def test_one():
    near.within(0.4, 1.0)

def test_other():
    near.within(0.2, 1.0)
    near.within({error}, 1.0)
"""


@pytest.mark.parametrize(("error", "status", "processes"), [(0.5, 0, 0), (0.6, 1, 2)])
def test_more_than_half_of_a_bound_fails(error, status, processes, tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(COMPARISONS.format(error=error))
    command = [sys.executable, "-m", "pytest", "--nearest", f"-n{processes}", "-q", "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout
    told = [line.strip() for line in done.stdout.splitlines() if "of the bound" in line]
    assert told[0].startswith(f"{error:.3f} of the bound")
    assert told[0].endswith("::test_other")
    assert told[1] == "0.400 of the bound: test_it.py::test_one"
    assert ("more than half" in told[0]) == (status == 1)


def test_files_that_read_transformers_are_run_again():
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text()
        if "\nimport transformers" in text or "from transformers" in text:
            assert "mark.peers" in text, f"{file.name} compares with transformers unmarked"


def test_settings_that_change_nothing_are_told():
    assert other_cpus.why_not("MKL_CBWR", "COMPATIBLE") in ("", "torch has no MKL")
    units = torch.backends.cpu.get_cpu_capability().lower()
    assert (
        other_cpus.why_not("ATEN_CPU_CAPABILITY", units)
        == f"torch computes with {other_cpus.seen()[1]} here"
    )
