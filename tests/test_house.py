"""House rules that a glance can miss."""

import pathlib
import re

import relpos

ROOT = pathlib.Path(__file__).parent.parent


def test_kernels_know_terms_and_no_scheme():
    names = {name for s in relpos.schemes() for name in (s.name, s.class_name)}
    names |= {"kerple", "deberta", "music"}
    scheme = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, names))})", re.IGNORECASE)
    files = [ROOT / "include/relpos/terms.h", *sorted((ROOT / "src/kernels").iterdir())]
    assert len(files) > 10
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not scheme.search(line), f"{path.name}:{number}: {line.strip()}"


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
