"""Memory beyond inputs and outputs is linear in L and under the formula of docs/memory.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LENGTHS = [4096, 8192, 16384]
SLACK = 4 << 20  # allocator arenas, thread stacks, page rounding


def measured(length, name, *sequence):
    run = subprocess.run(
        [sys.executable, "memory_probe.py", str(length), name, *map(str, sequence)],
        cwd=Path(__file__).parent,
        env=os.environ | {"OMP_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.fixture(scope="module", params=["t5", "shaw"])
def growth(request):
    return {length: measured(length, request.param) for length in LENGTHS}


def test_peak_is_under_the_formula(growth):
    for length, found in growth.items():
        assert found["peak"] <= found["formula"] + SLACK, (length, found)


def test_formula_and_peak_are_linear(growth):
    for which in ("formula", "peak"):
        first, second, third = (growth[length][which] for length in LENGTHS)
        assert third - second <= 2.5 * max(second - first, 0) + SLACK, growth
        assert third < LENGTHS[-1] ** 2, growth  # one head's scores take 4 L^2


def test_packed_sequences_are_linear_too():
    half, whole = (measured(length, "t5", 128)["peak"] for length in LENGTHS[1:])
    assert whole <= 2.2 * half + SLACK, (half, whole)
    assert whole < LENGTHS[-1] ** 2, whole
