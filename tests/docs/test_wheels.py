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

from tests import FULL, ROOT
from tests.docs.test_wheel import SITE, clean, output
from tests.support.cli_tool import TOOL, run
from tests.support.older_cpus import CPUS, selftest_passes
from tests.support.readme import first_lines

pytestmark = pytest.mark.skipif(not FULL, reason="the wheels of make wheels: RELPOS_FULL=1")
DIST = ROOT / "dist"
MOST = 4 << 20  # bytes
NATIVE = "manylinux_2_28_x86_64"
WHEELS = sorted(DIST.glob(f"relpos-{relpos.__version__}-*.whl"))
# Of a C library that any Linux has; OpenMP and the C++ library are not among them.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libc.so"}
TOOLS = ROOT / "build/wheels/tools/bin"


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
    """At most 4 MB; numpy alone is required; one library of ours and else the system's; nothing for
    C++ users."""
    assert path.stat().st_size <= MOST
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    names = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert not [name for name in names if re.search(r"\.a$|\.libs/|gomp|stdc\+\+", name)]
    assert {name for name in names if re.search(r"cmake|\.h$|/lib/", name)} == {
        "relpos/include/relpos.h",
        f"relpos/lib/librelpos.{'dylib' if 'macosx' in path.name else 'so'}",
        "relpos/lib/cmake/relpos/relposConfig.cmake",
        "relpos/lib/cmake/relpos/relposConfigVersion.cmake",
    }
    assert {"relpos/__init__.pyi", "relpos/bin/relpos"} <= names
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    wants = email.message_from_string(metadata.read_text()).get_all("Requires-Dist") or []
    needed = [re.split(r"[^\w]", want)[0] for want in wants if "extra ==" not in want]
    assert needed == ["numpy"]
    if "macosx" in path.name:
        return
    library = tmp_path / "relpos/lib/librelpos.so"
    for binary in [library, *tmp_path.glob("relpos/_core*.so"), tmp_path / "relpos/bin/relpos"]:
        dynamic = output(["readelf", "--wide", "--dynamic", binary])
        libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        assert ("librelpos.so" in libraries) == (binary != library)
        libraries = {name for name in libraries if not name.startswith(("ld-", "libc.musl"))}
        assert libraries <= {*SYSTEM, "librelpos.so"}
    shown = output(["nm", "-D", "--defined-only", library]).splitlines()
    symbols = [line.split()[-1] for line in shown]
    promised = {name for name in symbols if name.endswith("@@RELPOS_1")}
    listed = re.findall(r"^    (relpos_\w+);", (ROOT / "c/relpos.map").read_text(), re.M)
    assert promised == {f"{name}@@RELPOS_1" for name in listed}
    private = f"RELPOS_CXX_{relpos.__version__}"
    others = {*symbols} - promised - {"RELPOS_1", private}
    assert not [name for name in others if not name.endswith(f"@@{private}")]


@pytest.mark.parametrize("path", WHEELS, ids=[path.stem for path in WHEELS])
def test_auditors_accept_it(path):
    if "manylinux" in path.name:  # of musl it judges on musl alone
        said = output([TOOLS / "auditwheel", "show", path])
        assert re.search(r"manylinux_\d+_\d+_\w+", said), said
    if "abi3" in path.name:
        output([TOOLS / "abi3audit", "--strict", path])


def unpacked_tool(path, folder):
    """The tool of a wheel that no pip has installed, beside its library."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    tool = folder / "relpos/bin/relpos"
    tool.chmod(0o755)
    return tool


@pytest.mark.parametrize("target", CPUS)
def test_the_tool_runs_on_older_cpus(target, tmp_path):
    selftest_passes(target, unpacked_tool(wheel("3.11"), tmp_path), "t5")


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_the_tool_runs_on_musl(version, tmp_path):
    """On Debian's package of it, for no Python of musl's is there."""
    if not Path("/lib/ld-musl-x86_64.so.1").exists():
        pytest.skip("no musl: apt-get install musl")
    said = output([unpacked_tool(wheel(version, "musllinux_1_2_x86_64"), tmp_path), "selftest"])
    passed = re.findall(r"^(\w+) .* ok$", said, re.M)
    assert {scheme.name for scheme in relpos.schemes()} <= set(passed)


def numpy_beside(empty):
    """NumPy from the package index, for a Python that need not be this one."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        empty.bin / "python",
    ]
    output([*pip, "install", "--quiet", "--only-binary", ":all:", "numpy"])


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_first_lines_of_the_readme(version, tmp_path):
    """They run with NumPy alone and print what README says."""
    empty = Empty(tmp_path / "env", version, wheel(version))
    numpy_beside(empty)
    code, printed = first_lines()
    assert empty.run(code).strip() == printed


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
    # By NumPy: torch's own threads are gone, and torch.equal would wait for them.
    again = relpos.attention(q, q, q, position=position, is_causal=True)
    same = (again.detach().numpy() == out.detach().numpy()).all()
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


ERRORS = """
import numpy as np, relpos, relpos.numpy as rn
q = np.zeros((1, 2, 4, 8), np.float32)
for call, kind, words in (
    (lambda: rn.attention(q, q, q, position="alibi(heads=3)"), ValueError, "alibi"),
    (lambda: rn.attention(q, q.astype(np.int32), q), TypeError, "k"),
    (lambda: rn.dense("alibi(heads=2)", 1 << 40, 1 << 40, 0), (MemoryError, ValueError), ""),
):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
"""


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_errors_cross_from_the_library(version, tmp_path):
    """The library and the extension have a C++ library each; their errors are of one type."""
    empty = Empty(tmp_path / "env", version, wheel(version))
    numpy_beside(empty)
    empty.run(ERRORS)
    said = run([empty.bin / "relpos", "show", "alibu"], cwd=empty.bin, env=clean())
    assert (said.returncode, "alibi" in said.stderr) == (2, True), said.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_c_programs_use_it(compiler, tmp_path):
    """--cmake-dir gives the C library, and says that it has none for C++."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    empty = Empty(tmp_path / "env", "3.11", wheel("3.11"))
    folder = output([empty.bin / "python", "-m", "relpos", "--cmake-dir"], cwd=empty.bin).strip()
    package = empty.site / "relpos"
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    paths = [f"-I{package / 'include'}", f"-L{package / 'lib'}", f"-Wl,-rpath,{package / 'lib'}"]
    program = tmp_path / "example"
    output([compiler, *strict, ROOT / "examples/c/main.c", *paths, "-lrelpos", "-o", program])
    assert f"relpos {relpos.__version__}" in output([program])
    cmake = Path(sys.executable).with_name("cmake")
    (tmp_path / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.24)
project(example LANGUAGES C)
find_package(relpos REQUIRED COMPONENTS C)
add_executable(example {ROOT}/examples/c/main.c)
target_link_libraries(example relpos::c)
""")
    configured = [cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-Drelpos_DIR={folder}"]
    output([*configured, f"-DCMAKE_C_COMPILER={compiler}"])
    output([cmake, "--build", tmp_path / "build"])
    assert output([tmp_path / "build/example"]) == output([program])
    wrong = [cmake, "-S", ROOT / "examples/cpp", "-B", tmp_path / "cpp", f"-Drelpos_DIR={folder}"]
    assert "has the C library alone" in run(wrong).stderr
