"""Rules about which parts of the code may know each other."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# The headers of other parts that each part may include.
ROOMS = {
    "include/relpos/terms.h": {"relpos/tensor.h"},
    "src/base": {"relpos/cancel.h", "relpos/error.h", "relpos/tensor.h", "relpos/terms.h"},
    "src/kernels": {
        "base/",
        "relpos/cancel.h",
        "relpos/error.h",
        "relpos/tensor.h",
        "relpos/terms.h",
    },
    "src/io": {"base/", "relpos/error.h", "relpos/tensor.h"},
    "src/schemes": {"base/", "relpos/scheme.h", "relpos/error.h", "relpos/terms.h"},
}


def sources(room):
    path = ROOT / room
    files = [path] if path.is_file() else sorted(path.rglob("*.h")) + sorted(path.rglob("*.cc"))
    return [file for file in files if not file.name.endswith(("_test.cc", "testing.h"))]


def test_rooms_include_no_more_than_they_use():
    for room, allowed in ROOMS.items():
        own = room.removeprefix("src/") + "/"
        for file in sources(room):
            for name in INCLUDE.findall(file.read_text()):
                known = name.startswith(own) or any(
                    name == entry or (entry.endswith("/") and name.startswith(entry))
                    for entry in allowed
                )
                assert known, f"{file.relative_to(ROOT)} includes {name}"


def test_schemes_leave_check_and_steps_to_others():
    files = [p for p in (ROOT / "src/schemes").rglob("*") if p.suffix in (".cc", ".h")]
    assert len(files) > 10
    elsewhere = re.compile(r"\b(check|steps?)\b|conventions/|notebooks/", re.IGNORECASE)
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not elsewhere.search(line), f"{path.name}:{number}: {line.strip()}"


def test_conventions_and_notebooks_know_no_scheme_file():
    files = [p for part in ("conventions", "notebooks") for p in (ROOT / "src" / part).iterdir()]
    assert len(files) > 10
    for path in files:
        if not path.name.endswith("_test.cc"):
            included = re.findall(r'#include "(schemes/[^"]+)"', path.read_text())
            assert all(name.startswith("schemes/common/") for name in included), path.name
