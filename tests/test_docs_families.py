"""Each family of schemes has a page: its equation, a formula of each scheme, and a picture."""

import re
from pathlib import Path

import pytest
import relpos

FOLDER = Path(__file__).parent.parent / "docs/families"
PAGES = {"rotation": "rotations", "rows": "rows", "bias": "biases", "sink": "sinks"}
FAMILIES = sorted({scheme.family for scheme in relpos.schemes()})


def text_of(family):
    return (FOLDER / f"{PAGES[family]}.md").read_text()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_scheme_has_one_formula_on_the_page_of_its_family(family):
    listed = re.findall(r"^\| `(\w+)` \| \S", text_of(family), re.M)
    assert listed == sorted(s.name for s in relpos.schemes() if s.family == family)


def test_no_formula_is_elsewhere():
    schemes = (FOLDER.parent / "schemes.md").read_text()
    assert not re.findall(r"^\| `\w+` \| (?:score|as `|pair|output)", schemes, re.M)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_page_has_an_equation_and_a_picture_of_its_schemes(family):
    text = text_of(family)
    assert re.search(r"^    \w+ \+?= ", text, re.M)
    (picture,) = re.findall(r"^!\[[^\]]+\]\((\w+\.svg)\)$", text, re.M)
    shown = re.findall(r'class="name">([^<]+)<', (FOLDER / picture).read_text())
    assert len(shown) == 6
    if family != "sink":  # whose picture shows one scheme
        assert set(shown) <= {s.name for s in relpos.schemes() if s.family == family}
