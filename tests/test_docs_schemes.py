"""docs/schemes.md has one row for each scheme, with its class, parameters and options."""

from pathlib import Path

import pytest
import relpos

ROOT = Path(__file__).parent.parent


def rows():
    """{scheme: cells} of the first table."""
    text = (ROOT / "docs/schemes.md").read_text()
    table = text[text.index("| scheme | class |") :].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0].strip("`"): row for row in cells[2:]}


def test_docs_name_every_scheme_once():
    assert sorted(rows()) == sorted(scheme.name for scheme in relpos.schemes())


@pytest.mark.parametrize("scheme", relpos.schemes(), ids=lambda scheme: scheme.name)
def test_docs_say_what_the_scheme_has(scheme):
    _, class_name, _, parameters, _, options = rows()[scheme.name]
    assert class_name == f"`{scheme.class_name}`"
    assert options == ", ".join(f"`{option.name}`" for option in scheme.options)
    for spec in scheme.describe(**scheme.example()).parameters:
        assert f"`{spec.name}` [" in parameters
