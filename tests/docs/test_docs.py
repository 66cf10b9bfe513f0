"""What README.md and docs/ show runs: Python, C++ and commands; and their links lead on.

A block with `<!-- not run: REASON -->` on the line before it is left out; NOT_RUN counts those.
"""

import inspect
import os
import re
import shlex

import numpy as np
import pytest
import relpos
from safetensors.numpy import save_file

from tests import ROOT
from tests.support.cli_tool import output, ran

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs/families").glob("*.md"))
CONTRIBUTING = ROOT / "CONTRIBUTING.md"  # its Python and C++ are what test_toy_scheme.py builds
LIBRARY = ROOT / "build" / "release" / "librelpos.a"
NOT_RUN = {
    "cpp": 1,
    "install": 1,
    "README": 3,
    "CONTRIBUTING": 1,
    "benchmarks": 1,
    "distributed": 1,
    "gpu": 1,
    "parity": 1,
    "promises": 1,
    "which": 4,
}
BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page, language):
    found = BLOCK.findall(page.read_text())
    return [code for not_run, of, code in found if of == language and not not_run]


def with_blocks(language):
    pages = [page for page in PAGES if blocks(page, language)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)


def test_every_block_runs_or_says_why_not():
    not_run = {}
    for page in [*PAGES, CONTRIBUTING]:
        text = page.read_text()
        found = BLOCK.findall(text)
        assert 2 * len(found) == len(re.findall("^ *```", text, re.MULTILINE)), page.name
        for reason, language, _ in found:
            assert language in ("python", "cpp", "sh") or page == CONTRIBUTING, page.name
            if reason:
                not_run[page.stem] = not_run.get(page.stem, 0) + 1
        fenceless = BLOCK.sub("", text)
        assert "<!-- not run" not in fenceless, page.name
        commands = r"^(?:    |\t)(?:\$ |make|relpos|build/|pip|python|cmake|scripts/|\./|git )"
        assert not re.findall(commands, fenceless, re.MULTILINE), page.name
    assert not_run == NOT_RUN


@with_blocks("python")
def test_python_runs(page, tmp_path, monkeypatch):
    """The blocks of a page in order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
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
        ran([*command, "-fopenmp", "-o", program], seconds=300)
        ran([program])


def test_the_page_of_cpp_shows_the_example():
    example = (ROOT / "examples/own_bias/main.cc").read_text()
    assert example in blocks(ROOT / "docs/cpp.md", "cpp")


def test_contributing_shows_the_bias_of_the_gpu():
    (shown,) = [code for code in blocks(CONTRIBUTING, "python") if "bias_score" in code]
    assert shown in (ROOT / "python/relpos/gpu/terms/bias.py").read_text()


@with_blocks("sh")
def test_shell_runs(page, tmp_path):
    """From a folder with what the commands read, the tool on the path."""
    random = np.random.default_rng(0)
    for name in ("q", "k", "v"):
        np.save(tmp_path / f"{name}.npy", random.standard_normal((1, 8, 40, 64), np.float32))
    table = random.standard_normal((32, 8), np.float32)
    save_file({"relative_attention_bias.weight": table}, tmp_path / "model.safetensors")
    path = os.pathsep.join([str(ROOT / "build"), str(ROOT / ".venv/bin"), os.environ["PATH"]])
    for code in blocks(page, "sh"):
        command = ["bash", "-euo", "pipefail", "-c", code]
        ran(
            command, cwd=tmp_path, env=os.environ | {"PATH": path, "RELPOS": str(ROOT)}, seconds=300
        )


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: page.stem)
def test_named_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`|: )make ([a-z-]+)", page.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def commands():
    """Every `relpos list` or `relpos show SCHEME ...`, in a block or in the text."""
    found = {}
    for page in PAGES:
        for words in re.findall(
            r"(?:build/)?\brelpos (list\b[^`\n|]*|show [^`\n|]+)", page.read_text()
        ):
            own = ":" in words  # of a module that a block writes, which runs it
            if "SCHEME" not in words and "..." not in words and not own:
                found.setdefault(words.split(" #")[0].strip(), page.stem)
    return [pytest.param(words, id=f"{page}: {words}") for words, page in found.items()]


@pytest.mark.parametrize("words", commands())
def test_commands_run(words):
    assert output(*shlex.split(words))


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
    """Paths in the text: `src/kernels/problem.h`, `tests/call/test_memory.py`, ..."""
    for path in re.findall(
        r"`((?:src|include|tests|scripts|bench|docs|cli|python)/[\w./]+)`", page.read_text()
    ):
        assert (ROOT / path).exists(), path


def test_the_version_is_that_of_the_library():
    """In the name of README's wheel and at the top of the changes."""
    assert re.findall(r"relpos-([\d.]+)-", (ROOT / "README.md").read_text()) == [relpos.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == relpos.__version__


def public():
    """(name, object) of all that relpos, relpos.nn, relpos.hf and relpos.compose offer, with its
    methods and properties."""
    for module in (relpos, relpos.nn, relpos.hf, relpos.compose):
        for name in module.__all__:
            item = getattr(module, name)
            if callable(item):
                yield f"{module.__name__}.{name}", item
            if inspect.isclass(item):
                for method in [name for name in vars(item) if not name.startswith("_")]:
                    found = getattr(item, method)
                    if callable(found) or isinstance(found, property):  # no plain attributes
                        yield f"{module.__name__}.{name}.{method}", found


def test_every_public_name_has_its_docstring():
    documented = {name: inspect.getdoc(item) for name, item in public()}
    assert len(documented) > 40
    assert not [name for name, text in documented.items() if not text]


# Each family of schemes has a page: its equation, a formula of each scheme, and a picture.

FAMILIES = ROOT / "docs/families"
FAMILY_PAGES = {"rotation": "rotations", "rows": "rows", "bias": "biases", "sink": "sinks"}
of_families = pytest.mark.parametrize("family", sorted({s.family for s in relpos.schemes()}))


def family_page(family):
    return (FAMILIES / f"{FAMILY_PAGES[family]}.md").read_text()


@of_families
def test_each_scheme_has_one_formula_on_the_page_of_its_family(family):
    listed = re.findall(r"^\| `(\w+)` \| \S", family_page(family), re.M)
    assert listed == sorted(s.name for s in relpos.schemes() if s.family == family)


def test_no_formula_is_elsewhere():
    schemes = (FAMILIES.parent / "schemes.md").read_text()
    assert not re.findall(r"^\| `\w+` \| (?:score|as `|pair|output)", schemes, re.M)


@of_families
def test_each_page_has_an_equation_and_a_picture_of_its_schemes(family):
    text = family_page(family)
    assert re.search(r"^    \w+ \+?= ", text, re.M)
    (picture,) = re.findall(r"^!\[[^\]]+\]\((\w+\.svg)\)$", text, re.M)
    shown = re.findall(r'class="name">([^<]+)<', (FAMILIES / picture).read_text())
    assert len(shown) == 6
    if family != "sink":  # whose picture shows one scheme
        assert set(shown) <= {s.name for s in relpos.schemes() if s.family == family}
