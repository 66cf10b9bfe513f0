"""What README.md and docs/ show runs: Python, C++ and commands; and their links lead on."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LIBRARY = ROOT / "build" / "release" / "librelpos.a"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def with_blocks(language):
    pages = [page for page in PAGES if blocks(page, language)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)


@with_blocks("python")
def test_python_runs(page):
    """The blocks of a page in order, in one namespace."""
    names = {}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)


@with_blocks("cpp")
def test_cpp_compiles_and_runs(page, tmp_path):
    for n, code in enumerate(blocks(page, "cpp")):
        source, program = tmp_path / f"block{n}.cc", tmp_path / f"block{n}"
        source.write_text(code)
        warnings = ["-Wall", "-Werror"]
        command = ["g++", "-std=c++20", *warnings, f"-I{ROOT / 'include'}", source, LIBRARY]
        subprocess.run([*command, "-fopenmp", "-o", program], check=True)
        subprocess.run([program], check=True)


def commands():
    """Every `relpos list` or `relpos show SCHEME ...`, in a block or in the text."""
    found = {}
    for page in PAGES:
        for words in re.findall(
            r"(?:build/)?\brelpos (list\b[^`\n|]*|show [^`\n|]+)", page.read_text()
        ):
            if "SCHEME" not in words and "..." not in words:
                found.setdefault(words.split(" #")[0].strip(), page.stem)
    return [pytest.param(words, id=f"{page}: {words}") for words, page in found.items()]


@pytest.mark.parametrize("words", commands())
def test_commands_run(words):
    run = subprocess.run(
        [ROOT / "build" / "relpos", *shlex.split(words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = page.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for target in targets:
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        other = page.parent / path if path else page
        assert other.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads]
            assert anchor in slugs, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_files_exist(page):
    """Paths in the text: `src/kernels/block.h`, `tests/test_memory.py`, ..."""
    for path in re.findall(
        r"`((?:src|include|tests|scripts|bench|docs|cli|python)/[\w./]+)`", page.read_text()
    ):
        assert (ROOT / path).exists(), path
