"""vcpkg's port, Conan's recipe and cibuildwheel's configuration: they say what the tree is; Conan
packs it, and cibuildwheel takes the wheels of scripts/wheels.sh.

With RELPOS_FULL=1 Conan builds, with Debian's Highway and nlohmann/json in the place of
ConanCenter's, and cibuildwheel reads its configuration. Its containers are not run. vcpkg is not on
the package index: its port is read, not run.
"""

import json
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
import relpos

from tests import FULL, ROOT
from tests.docs.test_wheel import clean, files, output
from tests.support.cli_tool import ran

PORT = ROOT / "packaging/vcpkg/relpos"
CONAN = "conan==2.34.0"
CIBUILDWHEEL = "4.3.5"
full = pytest.mark.skipif(not FULL, reason="RELPOS_FULL=1")
QUICK = {
    "RELPOS_ONE_TARGET": "ON",
    "RELPOS_QUICK": "ON",
    "CMAKE_CXX_FLAGS_RELEASE": "-O1 -DNDEBUG",
}
PROFILE = f"""
[settings]
os=Linux
arch=x86_64
compiler=gcc
compiler.version=12
compiler.libcxx=libstdc++11
compiler.cppstd=20
build_type=Release
[platform_requires]
highway/1.2.0
nlohmann_json/3.11.3
[conf]
tools.cmake.cmaketoolchain:extra_variables={QUICK}
"""


def test_the_port_of_vcpkg_says_what_the_tree_is():
    port = json.loads((PORT / "vcpkg.json").read_text())
    assert port["version"] == relpos.__version__
    cmake = (ROOT / "CMakeLists.txt").read_text()
    text = (PORT / "portfile.cmake").read_text()
    options = re.findall(r"\b(RELPOS_[A-Z_]+)\b", text)
    assert options
    assert [name for name in options if f"option({name} " not in cmake] == []
    assert port["features"].keys() == {"tool"}
    assert "FEATURES tool RELPOS_BUILD_CLI" in text
    config = re.search(r"CONFIG_PATH (\S+)\)", text)[1]
    assert config == "lib/cmake/relpos"
    assert (PORT / "../../..").resolve() == ROOT


def environment(folder, package):
    """The programs of a package of the index, alone."""
    output([sys.executable, "-m", "venv", folder])
    output([folder / "bin/python", "-m", "pip", "install", "--quiet", package])
    return folder / "bin"


@full
def test_conan_packs_the_tree(tmp_path):
    """The package has the library of C++ and that of C; examples/cpp is built against it."""
    programs = environment(tmp_path / "env", CONAN)
    profile = tmp_path / "profile"
    profile.write_text(PROFILE)
    variables = {**clean(), "CONAN_HOME": str(tmp_path / "conan")}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"  # CMake
    options = ["--no-remote", "--profile:all", profile]

    def conan(*words):
        command = [programs / "conan", *words, *options]
        return ran(command, env=variables, seconds=1800, cwd=tmp_path)

    conan("create", ROOT)
    version = f"relpos/{relpos.__version__}"
    conan("install", "--requires", version, "--deployer=full_deploy")
    (package,) = (tmp_path / "full_deploy/host/relpos").glob("*/Release/x86_64")
    packed = files(package)
    headers = {f"include/{path}" for path in files(ROOT / "include")}
    assert headers <= packed
    assert {"lib/librelpos.a", "lib/librelpos.so", "licenses/LICENSE", "licenses/NOTICE"} <= packed
    build, cmake = tmp_path / "build", Path(sys.executable).with_name("cmake")
    output([cmake, "-S", ROOT / "examples/cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={package}"])
    output([cmake, "--build", build])
    assert relpos.__version__ in output([build / "relpos_example"])


def test_the_recipe_of_conan_names_what_it_needs():
    """Every folder that CMake reads is exported; the options exist."""
    recipe = (ROOT / "conanfile.py").read_text()
    exported = set(re.findall(r'"([\w.]+)(?:/\*)?"', recipe.split("exports_sources")[1][:300]))
    assert {"CMakeLists.txt", "c", "cli", "cmake", "include", "src"} <= exported
    cmake = (ROOT / "CMakeLists.txt").read_text()
    options = re.findall(r'"(RELPOS_[A-Z_]+)"', recipe)
    assert options
    assert [name for name in options if f"option({name} " not in cmake] == []


def test_cibuildwheel_takes_the_wheels_of_the_script(tmp_path):
    """Those that dist/ has; it calls the script, for this system, where dist/ has none."""
    own = tmp_path / "packaging/cibuildwheel"
    shutil.copytree(ROOT / "packaging/cibuildwheel", own)
    (wheel,) = (ROOT / "build/wheel").glob("relpos-*.whl")
    script = tmp_path / "scripts/wheels.sh"
    script.parent.mkdir()
    made = f"echo $@ >>calls && mkdir dist && cp {wheel} dist"
    script.write_text(f"#!/bin/sh\ncd {tmp_path} && {made}\n")
    script.chmod(0o755)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    for times in range(2):
        output([*pip, "--no-build-isolation", "-w", tmp_path / f"out{times}", own])
        assert (tmp_path / f"out{times}" / wheel.name).read_bytes() == wheel.read_bytes()
    assert (tmp_path / "calls").read_text().split() == [platform.machine()]


@full
def test_the_configuration_of_cibuildwheel(tmp_path):
    """It knows every option, and what it runs on Linux is every Python on both C libraries."""
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    assert f"pypa/cibuildwheel@v{CIBUILDWHEEL}\n" in workflow
    programs = environment(tmp_path / "env", f"cibuildwheel=={CIBUILDWHEEL}")
    command = [programs / "cibuildwheel", "--print-build-identifiers", "--platform", "linux"]
    for machine, systems in (("x86_64", ("many", "musl")), ("aarch64", ("many",))):
        shown = output([*command, "--archs", machine, "packaging/cibuildwheel"], cwd=ROOT)
        assert sorted(shown.split()) == sorted(
            f"cp3{minor}-{system}linux_{machine}" for minor in range(11, 15) for system in systems
        )
