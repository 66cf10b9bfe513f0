"""The wheel for ARM in dist/ on Debian's Python for ARM, under qemu. `make test-arm` runs this."""

import os
import subprocess
import sys

import numpy as np
import pytest
import relpos
import torch

from tests import ROOT
from tests.call.accuracy_fuzz import DrawnCall
from tests.call.test_accuracy import BENIGN
from tests.support.arrays import arrays, parameters_of
from tests.support.promise import missed, promised
from tests.support.readme import first_lines

pytestmark = pytest.mark.skipif(
    os.environ.get("RELPOS_ARM") != "1", reason="make test-arm runs it: RELPOS_ARM=1"
)
WHEEL = ROOT / f"dist/relpos-{relpos.__version__}-cp311-cp311-manylinux_2_28_aarch64.whl"
PYTHON = ROOT / "build/arm/python"
# README's lines without torch, on arrays that are given.
EXAMPLE = """
import sys
sys.path[:0] = sys.argv[1:3]
import numpy as np, platform, relpos, relpos.numpy as rn
assert platform.machine() == "aarch64" and relpos.__file__.startswith(sys.argv[1])
print(rn.show_config())
given = dict(np.load(sys.argv[3]))
q, k, v, table, dout = (given[name] for name in ("q", "k", "v", "table", "dout"))
call = {"position": str(given["position"]), "parameters": [table], "is_causal": True}
out, lse, softmax = rn.attention(q, k, v, return_lse=True, return_softmax=True, **call)
found = rn.attention_backward(dout, q, k, v, out=out, softmax=softmax, **call)
np.savez(sys.argv[4], out, lse, *found[:3], *found.parameters)
"""


def readme_call():
    """README's, with a drawn table and gradient of the output."""
    parts = [("rope", {"head_dim": 64, "layout": "half"})]
    parts.append(("t5", {"heads": 8, "bidirectional": False}))
    sizes = {"heads": (8, 8), "queries": 1024, "keys": 1024, "lse": False}
    return DrawnCall(BENIGN | sizes | {"parts": parts})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not WHEEL.exists():
        pytest.skip(f"dist/{WHEEL.name} is not there: make wheels")
    subprocess.run([ROOT / "scripts/arm_python.sh"], check=True)
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    pip += ["--no-deps", "--only-binary", ":all:", "--python-version", "3.11"]
    pip += ["--platform", "manylinux_2_28_aarch64", "--target", folder, WHEEL]
    subprocess.run(pip, check=True)
    return folder


def on_arm(*arguments):
    command = ["qemu-aarch64", "-L", PYTHON, PYTHON / "usr/bin/python3.11", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_readmes_example_keeps_the_promise(site, tmp_path):
    """Forward and every gradient, against the formula in float64."""
    call = readme_call()
    text, given = parameters_of(call)
    ((name, table),) = given
    q, k, v, dout, table = arrays((*call.inputs, call.dout, table))
    np.savez(tmp_path / "given.npz", q=q, k=k, v=v, dout=dout, table=table, position=text)
    said = on_arm(
        "-c", EXAMPLE, site, PYTHON / "site", tmp_path / "given.npz", tmp_path / "found.npz"
    )
    assert "neon" in said
    found = np.load(tmp_path / "found.npz").values()
    names = ["out", "lse", *(f"gradient of {each}" for each in "qkv"), name]
    promises = promised(call)[0]
    assert set(names) == set(promises)
    for each, result in zip(names, found, strict=True):
        assert not missed(each, torch.from_numpy(result), promises[each])


def run_on(site, code):
    path = f"import sys\nsys.path[:0] = [{str(site)!r}, {str(PYTHON / 'site')!r}]\n"
    return on_arm("-c", path + code)


def test_the_first_lines_of_the_readme(site):
    code, printed = first_lines()
    assert run_on(site, code).strip() == printed


def test_numpys_example_runs(site):
    assert run_on(site, (ROOT / "examples/numpy/attention.py").read_text())
