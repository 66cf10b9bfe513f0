"""The wheel and the sdist: what is in them, and that they work where nothing else is installed."""

import email
import importlib.util
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pathspec
import pytest
import relpos
from relpos import _core

from tests import ROOT
from tests.support.cli_tool import TOOL, ran, run

SITE = Path(importlib.util.find_spec("torch").origin).parent.parent
# Linux and g++ bring these; libgomp.so.1 is PyTorch's, too, and there is to be one in a process.
SYSTEM = {"libc.so.6", "libgcc_s.so.1", "libgomp.so.1", "libm.so.6", "libstdc++.so.6"}


def clean():
    """An environment that says nothing about Python and relpos."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RELPOS"))}


def output(command, **options):
    return ran(command, env=clean(), seconds=600, **options)


@pytest.fixture(scope="module")
def wheel():
    """The wheel that `make build` made and installed."""
    (path,) = (ROOT / "build/wheel").glob("relpos-*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def sources():
    package = ROOT / "python/relpos"
    return {path for path in files(package) if "__pycache__" not in path}


def test_wheel_has_these_files_and_no_others(unpacked):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    package = {f"relpos/{path}" for path in sources()}
    package |= {f"relpos/_core{suffix}", "relpos/__init__.pyi", "relpos/lib/librelpos.a"}
    package |= {f"relpos/include/{path}" for path in files(ROOT / "include")}
    config = {"Config", "ConfigVersion", "Targets", "Targets-release"}
    package |= {f"relpos/lib/cmake/relpos/relpos{name}.cmake" for name in config}
    package |= {"relpos/lib/pkgconfig/relpos.pc"}
    name = f"relpos-{relpos.__version__}"
    package |= {f"{name}.data/scripts/relpos"}
    package |= {f"{name}.dist-info/{path}" for path in ("METADATA", "RECORD", "WHEEL")}
    package |= {f"{name}.dist-info/licenses/{path}" for path in ("LICENSE", "NOTICE")}
    assert files(unpacked) == package


def test_wheel_asks_for_numpy_alone(unpacked):
    """torch is an extra: who installs relpos chooses the build of torch."""
    (path,) = unpacked.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text())
    wants = metadata.get_all("Requires-Dist") or []
    assert [re.split(r"[^\w]", want)[0] for want in wants if "extra ==" not in want] == ["numpy"]
    assert any(want.startswith("torch") for want in wants)


def readelf(option, path):
    return output(["readelf", "--wide", option, path])


@pytest.mark.parametrize("pattern", ["relpos/_core*.so", "*.data/scripts/relpos"])
def test_binaries_link_the_system_alone(unpacked, pattern):
    """No library of Highway, no second OpenMP, and no path of the machine that built them."""
    (binary,) = unpacked.glob(pattern)
    dynamic = readelf("--dynamic", binary)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert "libgomp.so.1" in needed
    assert {name for name in needed if not name.startswith("ld-linux")} <= SYSTEM
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    assert "hwy" not in output(["nm", "-D", "--undefined-only", binary])


@pytest.mark.parametrize("path", [TOOL.resolve(), _core.__file__], ids=["tool", "extension"])
def test_binaries_are_linked_and_compiled_against_exploitation(path):
    """What is linked in is read-only, stacks are checked, and library calls know their buffers."""
    assert "GNU_RELRO" in readelf("--program-headers", path)
    dynamic = readelf("--dynamic", path)
    assert "BIND_NOW" in dynamic or "Flags: NOW" in dynamic
    symbols = readelf("--dyn-syms", path)
    assert "__stack_chk_fail" in symbols
    assert "printf_chk" in symbols or path == _core.__file__


def test_sdist_is_the_tree(tmp_path):
    script = f"import scikit_build_core.build as b; b.build_sdist({str(tmp_path)!r})"
    output([sys.executable, "-c", script], cwd=ROOT)
    (path,) = tmp_path.glob("relpos-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert not [name for name in names if re.search(r"\.(so|a|o|pyc|whl)$|^build/|^\.venv", name)]
    ignored = pathspec.GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
    tree = {"PKG-INFO"}
    for top in ROOT.iterdir():
        if top.is_file():
            tree.add(top.name)
        elif top.name not in (".git", ".github", ".ci") and not ignored.match_file(f"{top.name}/"):
            tree |= {f"{top.name}/{path}" for path in files(top)}
    assert names == {path for path in tree if path != ".git" and not ignored.match_file(path)}


class Fresh:
    """A virtual environment with nothing in it but what a test puts there."""

    def __init__(self, folder):
        output([sys.executable, "-m", "venv", "--without-pip", folder])
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        self.site = next(folder.glob("lib/python*/site-packages"))

    def install(self, wheel):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python]
        output([*pip, "install", "--no-index", "--no-deps", "--ignore-installed", wheel])

    def run(self, script):
        return output([self.python, "-c", script], cwd=self.bin)


WITH_TORCH = """
{imports}
import pathlib, sys
assert relpos.__file__.startswith(sys.prefix), relpos.__file__
q = torch.randn(1, 8, 40, 16)
out = relpos.attention(q, q, q, position=relpos.T5Bias(8), is_causal=True)
assert out.shape == q.shape and relpos.show_config()
maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
print(*{{line.split()[-1] for line in maps if "gomp" in line}})
"""


def test_without_torch_then_with_it(wheel, tmp_path):
    """Beside torch it works in both orders of import, with one OpenMP in the process."""
    fresh = Fresh(tmp_path / "env")
    fresh.install(wheel)
    said = fresh.run("""
import relpos, sys
assert "torch" not in sys.modules and "numpy" not in sys.modules
print(*(scheme.name for scheme in relpos.schemes()))
assert relpos.show_config()["version"] == relpos.__version__
for what in (lambda: relpos.attention, lambda: relpos.T5Bias, lambda: relpos.nn, lambda: relpos.hf):
    try:
        what()
    except ImportError as error:
        assert "needs PyTorch" in str(error) and "relpos[torch]" in str(error), error
    else:
        raise AssertionError
try:
    from relpos import attention
except ImportError as error:
    assert "needs PyTorch" in str(error), error
try:
    relpos.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
""")
    assert said.split() == [scheme.name for scheme in relpos.schemes()]
    listed = output([fresh.bin / "relpos", "list"], cwd=fresh.bin)
    assert all(scheme.name in listed for scheme in relpos.schemes())
    lab = run([fresh.bin / "relpos", "lab"], cwd=fresh.bin)
    assert (lab.returncode, "needs PyTorch" in lab.stderr) == (2, True), lab.stderr
    beside = tmp_path / "beside"  # every package of this environment except relpos
    beside.mkdir()
    for entry in SITE.iterdir():
        if not entry.name.startswith("relpos"):
            (beside / entry.name).symlink_to(entry)
    (fresh.site / "beside.pth").write_text(f"{beside}\n")
    for imports in ("import relpos, torch", "import torch, relpos"):
        assert len(fresh.run(WITH_TORCH.format(imports=imports)).split()) == 1


def test_cmake_finds_it(wheel, tmp_path):
    """`python -m relpos --cmake-dir` is all that a C++ program needs of the wheel."""
    fresh = Fresh(tmp_path / "env")
    fresh.install(wheel)
    folder = output([fresh.python, "-m", "relpos", "--cmake-dir"], cwd=fresh.bin).strip()
    assert folder.startswith(str(fresh.site)), folder
    cmake = Path(sys.executable).with_name("cmake")
    build = tmp_path / "build"
    configure = [cmake, "-S", ROOT / "examples/cpp", "-B", build, f"-Drelpos_DIR={folder}"]
    output([*configure, "-DCMAKE_BUILD_TYPE=Release"])
    output([cmake, "--build", build])
    assert relpos.__version__ in output([build / "relpos_example"])


def test_the_script_of_a_wheel_becomes_the_tool(tmp_path):
    """With its words, and knowing its Python; it says where a tool was expected."""
    tool = tmp_path / "relpos/bin/relpos"
    tool.parent.mkdir(parents=True)
    (tmp_path / "relpos/__init__.py").write_text("raise AssertionError('imported')")
    script = tmp_path / "bin/relpos"
    script.parent.mkdir()
    script.write_text((ROOT / "python/tool.py").read_text())
    command = [sys.executable, script, "show", "a b"]
    environment = {**clean(), "PYTHONPATH": str(tmp_path)}
    said = run(command, env=environment)
    assert (said.returncode, str(tool) in said.stderr) == (1, True), said.stderr
    tool.write_text('#!/bin/sh\necho "$RELPOS_PYTHON|$1|$2"\nexit 3\n')
    tool.chmod(0o755)
    said = run(command, env=environment)
    assert (said.returncode, said.stdout) == (3, f"{sys.executable}|show|a b\n")
