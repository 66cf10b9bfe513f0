"""House rules that a glance can miss."""

import ast
import graphlib
import pathlib
import re

from tests import ROOT

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# What each room may include beside itself: rooms, and single headers; `relpos/` are the public
# ones. A folder that is not named belongs to the room above it.
DATA = ["relpos/cancel.h", "relpos/error.h", "relpos/tensor.h", "relpos/terms.h"]
CONTRACT = ["kernels", "kernels/reference/reference.h", "kernels/simd/targets.h"]
ROOMS = {
    "base": ["relpos/cancel.h", "relpos/error.h", "relpos/export.h", "relpos/tensor.h"],
    "io": ["base", "relpos/error.h", "relpos/export.h", "relpos/tensor.h"],
    "values": ["base", "relpos/"],
    "kernels": ["base", "values", *DATA],
    "kernels/block": ["base", "values", "kernels", *DATA],
    "kernels/plan": ["base", "values", "kernels", "kernels/block", *DATA],
    "kernels/reference": ["base", "values", "kernels", "kernels/block", "kernels/plan", *DATA],
    "kernels/terms": ["base", "values", "kernels", "kernels/block", "kernels/plan", *DATA],
    "kernels/simd": ["base", "kernels", "kernels/block", "kernels/plan", *DATA],
    "kernels/units": ["base", "kernels", "kernels/block", *DATA],
    "kernels/drive": [
        *["base", "values", "kernels", "kernels/block", "kernels/plan", "kernels/terms"],
        *DATA,
    ],
    "binding": ["base", "values", "relpos/"],
    "schemes": ["relpos/"],
    "conventions": ["schemes/common/", "relpos/"],
    "notebooks": ["base", "values", "binding", "schemes/common/", "relpos/"],
    "call": ["base", "values", "binding", *CONTRACT, "conventions", "notebooks", "relpos/"],
}


def room_of(path):
    """The innermost room of a path below src/."""
    folders = [str(folder) for folder in pathlib.PurePath(path).parents]
    return next((folder for folder in folders if folder in ROOMS), None)


def includes(room):
    """(file, name) of every include of a room's own files, tests and what they share aside."""
    for file in sorted((ROOT / "src" / room).rglob("*")):
        own = room_of(file.relative_to(ROOT / "src")) == room
        if own and file.suffix in (".h", ".cc") and not file.name.endswith("_test.cc"):
            for name in INCLUDE.findall(file.read_text()):
                yield file.relative_to(ROOT), name


def may_include(room, name):
    """An entry is a room, a header, or a folder with all below it, which ends in a slash."""
    return room_of(name) in (room, *ROOMS[room]) or any(
        name == entry or (entry.endswith("/") and name.startswith(entry)) for entry in ROOMS[room]
    )


def test_rooms_include_no_more_than_they_use():
    for room in ROOMS:
        for file, name in includes(room):
            assert may_include(room, name), f"{file} includes {name}"


def test_the_tool_uses_public_headers():
    """Beside them: base, and the readers and writers of files, which are the tool's alone."""
    for file in sorted((ROOT / "cli").rglob("*.*")):
        for name in INCLUDE.findall(file.read_text()):
            assert name.startswith(("cli/", "base/", "io/", "relpos/")), f"{file} includes {name}"


def test_the_c_library_uses_the_public_api():
    for file in (ROOT / "c").glob("*.cc"):
        for name in INCLUDE.findall(file.read_text()):
            assert name.startswith(("relpos.h", "relpos/")), f"{file} includes {name}"


def test_every_file_of_src_has_a_room():
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".h", ".cc")]
    homeless = [
        path
        for path in (str(file.relative_to(ROOT / "src")) for file in files)
        if room_of(path) is None and not path.startswith("testing/")
    ]
    assert not homeless
    assert len([path for path in (ROOT / "src").iterdir() if path.is_file()]) <= 3


def test_no_circle_of_rooms_or_files():
    rooms = {room: {room_of(name) for _, name in includes(room)} - {room, None} for room in ROOMS}
    headers = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*.h")}
    files = {
        header: set(INCLUDE.findall((ROOT / "src" / header).read_text())) & headers
        for header in headers
    }
    for graph in (rooms, files):
        tuple(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_folders_are_small():
    """At most 20 units side by side; schemes and adapters are lists, one file each."""
    for top, suffixes in (("src", (".cc", ".h")), ("cli", (".cc", ".h")), ("python", (".py",))):
        for folder in [ROOT / top, *(ROOT / top).rglob("*/")]:
            units = {
                path.stem.removesuffix("_test")
                for path in folder.iterdir()
                if path.suffix in suffixes
            }
            assert len(units) <= 20 or folder.name in ("schemes", "adapters"), folder


def test_files_of_the_product_are_short():
    for top in ("src", "include", "cli", "c", "python"):
        for path in (ROOT / top).rglob("*"):
            product = not path.name.endswith("_test.cc") and path.parent.name != "testing"
            if product and path.suffix in (".cc", ".h", ".py"):
                lines = len(path.read_text().splitlines())
                assert lines <= 400, f"{path.relative_to(ROOT)}: {lines} lines"


def test_schemes_leave_check_and_steps_to_others():
    files = [p for p in (ROOT / "src/schemes").rglob("*") if p.suffix in (".cc", ".h")]
    assert len(files) > 10
    elsewhere = re.compile(r"\b(check|steps?)\b|conventions/|notebooks/", re.IGNORECASE)
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not elsewhere.search(line), f"{path.name}:{number}: {line.strip()}"


def modules_below(folder):
    """{name: file} of the modules below a folder, as they are imported."""
    files = (ROOT / folder).rglob("*.py")
    modules = {".".join(f.relative_to(ROOT / folder).with_suffix("").parts): f for f in files}
    return {name.removesuffix(".__init__"): file for name, file in modules.items()}


def imports_of(path, modules):
    """Those of the modules that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules.keys()
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (names & modules.keys()) or {node.module}


def test_python_imports_go_one_way():
    modules = {n: f for n, f in modules_below("python").items() if n.startswith("relpos")}
    graph = {
        name: {each for each in imports_of(file, modules) if each not in ("relpos", name)}
        for name, file in modules.items()
    }
    assert graph["relpos._call.attention"]
    graphlib.TopologicalSorter(graph).prepare()  # raises at a circle
    for lower, upper in ("_base", "_position"), ("_base", "_call"), ("_position", "_call"):
        for name, used in graph.items():
            if name.startswith(f"relpos.{lower}"):
                assert not [each for each in used if each.startswith(f"relpos.{upper}")], name


def test_rooms_of_tests_share_support_and_oracles_alone():
    """An oracle imports oracles alone, nothing of what judges calls; its tests import both."""
    modules = {f"tests.{name}": file for name, file in modules_below("tests").items()}
    for name, file in modules.items():
        room, _, module = name.removeprefix("tests.").partition(".")
        shared = {room, "oracles"}
        if room != "oracles" or module.startswith("test_"):
            shared.add("support")
        for used in imports_of(file, modules):
            assert used.split(".")[1] in shared, f"{name} imports {used}"
    loose = sorted(path.name for path in (ROOT / "tests").glob("*.py"))
    assert loose == ["__init__.py", "conftest.py", "test_house.py"]


def test_benches_go_one_way():
    """Their timers include the kernels and the tool's machine; no bench imports a test."""
    modules = modules_below("bench")
    graph = {name: set(imports_of(file, modules)) for name, file in modules.items()}
    assert graph["bench"]
    graphlib.TopologicalSorter(graph).prepare()  # raises at a circle
    tests = re.compile(r"^\s*(from|import) tests\b", re.MULTILINE)
    assert not [name for name, file in modules.items() if tests.search(file.read_text())]
    rooms = ("base/", "cli/machine/", "kernels/", "relpos/", "testing/")
    for file in (ROOT / "bench").glob("*.cc"):
        for name in INCLUDE.findall(file.read_text()):
            assert name.startswith(rooms), f"{file.name} includes {name}"


def test_comments_name_files_that_are_there():
    def below(*tops):
        return [path.as_posix() for top in tops for path in (ROOT / top).rglob("*.*")]

    known = below("src", "include", "cli", "python", "tests")
    named = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:h|cc|py))\b")
    elsewhere = ("NAME.cc", "hwy/highway.h")
    for file in below("src", "include", "cli", "c"):
        for line in pathlib.Path(file).read_text().splitlines():
            _, _, comment = line.partition("//")
            for name in named.findall(comment):
                there = any(path.endswith(f"/{name}") for path in known)
                assert there or name.endswith(elsewhere), f"{file}: {name}"


def test_the_lock_has_what_requirements_name():
    """`python scripts/lock.py` writes it anew. torch's build for CPUs adds +cpu to its version."""

    def pins(text):
        found = re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)
        return {(name.lower().replace("_", "-"), version) for name, version in found}

    def read(path):
        return (ROOT / path).read_text()

    alone = re.search(r"^ALONE=\((.*)\)", read("scripts/setup.sh"), re.MULTILINE)[1]
    wanted = pins(read("requirements.txt")) | pins(alone.replace(" ", "\n"))
    assert pins(read("requirements.lock")) == wanted
    entries = read("requirements.lock").splitlines()[1:]
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}$", entry) for entry in entries)
