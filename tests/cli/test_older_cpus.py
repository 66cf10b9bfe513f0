"""relpos on CPUs that offer less than this one, as qemu emulates them.

RELPOS_TARGET=avx2 computes with AVX2 on a CPU that has AVX-512, where nobody notices an instruction
of AVX-512 that runs in any case. On a CPU without AVX-512 it ends the process.
"""

import platform
import sys

import pytest
import relpos

from tests import FULL
from tests.support.cli_tool import TOOL
from tests.support.older_cpus import CPUS, emulated, selftest_passes

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUs of x86-64")

SCHEMES = [scheme.name for scheme in relpos.schemes()] if FULL else ["t5", "shaw", "rope", "xpos"]
PYTHON = """
import sys
sys.modules["torch"] = None  # the front for NumPy alone
import numpy as np
import relpos.numpy
assert relpos.show_config()["target"] == sys.argv[1], relpos.show_config()
q, k, v = np.random.default_rng(1).standard_normal((3, 1, 2, 70, 24), np.float32)
out = relpos.numpy.attention(q, k, v, position="alibi(heads=2)", is_causal=True)
distance = np.arange(70) - np.arange(70)[:, None]
bias = np.float64(2.0) ** -np.array([4.0, 8.0])[:, None, None] * distance
scores = np.where(distance > 0, -np.inf, q.astype(np.float64) @ k.swapaxes(2, 3) / 24**0.5 + bias)
weights = np.exp(scores - scores.max(-1, keepdims=True))
want = weights / weights.sum(-1, keepdims=True) @ v
assert np.abs(out - want).max() < 1e-5, np.abs(out - want).max()
"""


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tool(scheme, target):
    selftest_passes(target, TOOL, scheme)


@pytest.mark.parametrize("target", CPUS)
def test_python(target):
    emulated(target, [sys.executable, "-c", PYTHON, target])
