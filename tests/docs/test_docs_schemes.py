"""docs/schemes.md has one row for each scheme, at its family: what the registry says, and what only
the row says."""

import re

import pytest
import relpos

from tests import ROOT

TEXT = (ROOT / "docs/schemes.md").read_text()
HEADINGS = {"Biases": "bias", "Rows": "rows", "Rotations": "rotation"}
HEADINGS |= {"Sinks": "sink", "Others": "other"}
COLUMNS = ["scheme", "class", "paper", "used by", "parameters", "terms", "options"]
COLUMNS += ["what implementations get wrong"]


def rows():
    """(family, cells by column) of every row in the tables of the families."""
    for heading, section in re.findall(r"^## (\w+)\n(.*?)(?=^## )", TEXT, re.M | re.S):
        if heading not in HEADINGS:
            continue
        table = [line for line in section.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
        assert cells[0] == COLUMNS, heading
        for row in cells[2:]:
            yield HEADINGS[heading], dict(zip(COLUMNS, row, strict=True))


def row_of(scheme):
    (found,) = [pair for pair in rows() if pair[1]["scheme"] == f"`{scheme.name}`"]
    return found


def test_docs_name_every_scheme_once():
    listed = [row["scheme"].strip("`") for _, row in rows()]
    assert sorted(listed) == sorted(scheme.name for scheme in relpos.schemes())


@pytest.mark.parametrize("scheme", relpos.schemes(), ids=lambda scheme: scheme.name)
def test_docs_say_what_the_scheme_has(scheme):
    """Where its source is a paper, the row has its first author and year."""
    family, row = row_of(scheme)
    assert family == scheme.family
    assert row["class"] == f"`{scheme.class_name}`"
    assert row["options"] == ", ".join(f"`{option.name}`" for option in scheme.options)
    description = scheme.describe(**scheme.example())
    for spec in description.parameters:
        assert f"`{spec.name}` [" in row["parameters"]
    told = row["terms"].replace(" by coordinates", "").replace("distance bias", "distance-bias")
    for term in description.terms:
        assert term.replace("distance bias", "distance-bias") in told, term
    named = re.findall(r"rotation|(?:row|column|value) table|distance-bias|key bias|sink", told)
    for term in named:
        assert term.replace("-", " ") in description.terms, term
    first = re.match(r"[\w.]+", scheme.source)[0]
    year = re.search(r"\b(?:19|20)\d\d\b", scheme.source)
    if year and "after Shaw et al. 2018" not in scheme.source:
        assert year[0] in row["paper"]
        assert first in row["paper"]
