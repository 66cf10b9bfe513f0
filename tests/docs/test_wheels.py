"""The wheels of `make wheels` in dist/: what is in them, and that they run in empty environments.

RELPOS_FULL=1 runs these, for the wheels take a quarter of an hour to build. A wheel or a Python
that is not there is skipped by name.
"""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import relpos

from tests import ROOT
from tests.docs.test_wheel import SITE, clean, output
from tests.support.cli_tool import TOOL

pytestmark = pytest.mark.skipif(
    os.environ.get("RELPOS_FULL") != "1", reason="the wheels of make wheels: RELPOS_FULL=1"
)
DIST = ROOT / "dist"
MOST = 4 << 20  # bytes
NATIVE = "manylinux_2_28_x86_64"
WHEELS = sorted(DIST.glob(f"relpos-{relpos.__version__}-*.whl"))
# Of a C library that any Linux has; OpenMP and the C++ library are not among them.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libc.so"}
TOOLS = ROOT / "build/wheels/tools-3.12/bin"


def wheel(python, platform=NATIVE):
    """The wheel for a Python, 3.11 or newer, on a platform."""
    tag = "cp311-cp311" if python == "3.11" else "cp312-abi3"
    path = DIST / f"relpos-{relpos.__version__}-{tag}-{platform}.whl"
    if not path.exists():
        pytest.skip(f"dist/{path.name} is not there: make wheels")
    return path


def interpreter(version):
    """A Python of this version that runs; shims of pyenv may be there and fail."""
    installed = Path.home() / ".pyenv/versions"
    found = [*installed.glob(f"{version}.*/bin/python"), shutil.which(f"python{version}")]
    for path in filter(None, found):
        script = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([path, "-c", script], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return path
    pytest.skip(f"Python {version} is not there")


class Empty:
    """An environment of a Python with a wheel and nothing else."""

    def __init__(self, folder, version, path):
        output([interpreter(version), "-m", "venv", "--without-pip", folder])
        self.bin = folder / "bin"
        self.site = next(folder.glob("lib/python*/site-packages"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        pip += ["--python", self.bin / "python", "install", "--no-index", "--no-deps"]
        output([*pip, path])

    def run(self, script, **more):
        command = [self.bin / "python", "-c", script]
        said = subprocess.run(
            command, env={**clean(), **more}, cwd=self.bin, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr
        return said.stdout


@pytest.mark.parametrize("path", WHEELS, ids=[path.stem for path in WHEELS])
def test_contents(path, tmp_path):
    """At most 4 MB; numpy alone is required; no library but the system's, none for C++ users."""
    assert path.stat().st_size <= MOST
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    names = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert not [name for name in names if re.search(r"\.a$|\.libs/|cmake|gomp|stdc\+\+", name)]
    assert "relpos/__init__.pyi" in names
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    wants = email.message_from_string(metadata.read_text()).get_all("Requires-Dist") or []
    needed = [re.split(r"[^\w]", want)[0] for want in wants if "extra ==" not in want]
    assert needed == ["numpy"]
    if "macosx" in path.name:
        return
    for binary in [*tmp_path.glob("relpos/_core*.so"), *tmp_path.glob("*.data/scripts/relpos")]:
        dynamic = output(["readelf", "--wide", "--dynamic", binary])
        libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        assert {name for name in libraries if not name.startswith(("ld-", "libc.musl"))} <= SYSTEM


@pytest.mark.parametrize("path", WHEELS, ids=[path.stem for path in WHEELS])
def test_auditors_accept_it(path):
    if "macosx" not in path.name:
        said = output([TOOLS / "auditwheel", "show", path])
        assert re.search(r"(many|musl)linux_\d+_\d+_\w+", said), said
    if "abi3" in path.name:
        output([TOOLS / "abi3audit", "--strict", path])


CONFIG = """
import json, sys
import relpos
from relpos import _core
assert relpos.__file__.startswith(sys.prefix)
print(json.dumps({str(key): str(value) for key, value in relpos.show_config().items()}))
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_runs_where_nothing_else_is(version, tmp_path):
    """Import and tool, on our own pool; the targets are those of the build by g++."""
    empty = Empty(tmp_path / "env", version, wheel(version))
    config = json.loads(empty.run(CONFIG))
    assert config["version"] == relpos.__version__
    mine = {str(key): str(value) for key, value in relpos.show_config().items()}
    targets = [key for key in mine if "target" in key]
    assert targets
    assert {key: config[key] for key in targets} == {key: mine[key] for key in targets}
    assert config["thread backend"] == "own pool"
    for threads in ("1", "3"):
        said = json.loads(empty.run(CONFIG, OMP_NUM_THREADS=threads))
        assert int(said["threads"]) == min(int(threads), len(os.sched_getaffinity(0)))
    one = min(os.sched_getaffinity(0))
    said = empty.run(f"import os; os.sched_setaffinity(0, {{{one}}})\n{CONFIG}")
    assert json.loads(said)["threads"] == "1"
    arguments = ["attend", "--help"]
    assert output([empty.bin / "relpos", *arguments], cwd=empty.bin) == output([TOOL, *arguments])
    assert output([empty.bin / "relpos", "list"], cwd=empty.bin) == output([TOOL, "list"])
    assert "ok" in output([empty.bin / "relpos", "selftest"], cwd=empty.bin)


BESIDE_TORCH = """
{imports}
import os, pathlib
q = torch.randn(1, 8, 300, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
position = relpos.T5Bias(8)
out = relpos.attention(q, q, q, position=position, is_causal=True)
out.square().sum().backward()
config = relpos.show_config()
assert config["thread backend"].startswith("OpenMP: "), config
for threads in (1, 2):
    torch.set_num_threads(threads)
    assert int(relpos.show_config()["threads"]) == min(threads, len(os.sched_getaffinity(0)))
    assert torch.equal(relpos.attention(q, q, q, position=position, is_causal=True), out)
pid = os.fork()
if pid == 0:
    same = torch.equal(relpos.attention(q, q, q, position=position, is_causal=True), out)
    same = same and relpos.show_config()["thread backend"] == "own pool"
    os._exit(0 if same else 3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
print(*{{line.split()[-1] for line in maps if "gomp" in line or "omp.so" in line}})
"""


@pytest.mark.parametrize("imports", ["import relpos, torch", "import torch, relpos"])
def test_beside_torch_there_is_one_openmp(imports, tmp_path):
    """torch's, in both orders of import; torch.set_num_threads counts, and a child computes."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("torch is installed for another Python")
    empty = Empty(tmp_path / "env", "3.11", wheel("3.11"))
    beside = tmp_path / "beside"
    beside.mkdir()
    for entry in SITE.iterdir():
        if not entry.name.startswith("relpos"):
            (beside / entry.name).symlink_to(entry)
    (empty.site / "beside.pth").write_text(f"{beside}\n")
    assert len(empty.run(BESIDE_TORCH.format(imports=imports)).split()) == 1
