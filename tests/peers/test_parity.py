"""What `make parity` counts as a failure, and the table of docs/parity.md: a row for each peer."""

import os
import re
import sys

import pytest
import relpos
import torch

from tests import ROOT
from tests.peers import parity
from tests.peers.published import Origin
from tests.support.cli_tool import ran, run

PAGE = (ROOT / "docs/parity.md").read_text()
CELLS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_table_has_the_row_of_each_peer():
    expected = [
        [name, peer.scheme, f"`{peer.name}`", f"{peer.package} {parity.pinned(peer)}"]
        for name, peer in parity.PEERS.items()
    ]
    assert sorted(row[:4] for row in CELLS) == sorted(expected)


def test_no_row_of_the_table_exceeds_the_bound():
    for row in CELLS:
        ratios = [float(row[n]) for n in (6, 9)]
        assert max(ratios) <= parity.BOUND, row


def test_each_scheme_has_a_row_or_no_package():
    section = PAGE[PAGE.index("## Without a package") :].split("\n\n")[1]
    without = re.findall(r"`(\w+)`", section.partition(".")[0])
    compared = {row[1] for row in CELLS}
    assert not compared & set(without)
    assert sorted(compared | set(without)) == sorted(scheme.name for scheme in relpos.schemes())


def swapped(monkeypatch, make, package="torch"):
    """The row of a peer that is made so, and of no other."""
    monkeypatch.setitem(parity.PEERS, "swapped", Origin("rope", "Nothing", make, package))
    return parity.measured("swapped")


def test_absent_packages_fail_where_all_are_asked_for(monkeypatch):
    row = swapped(monkeypatch, None, package="no-such-package")
    assert row.text().endswith("| absent |")
    assert row.failure(everything=False) == ""
    assert row.failure(everything=True) == "no-such-package is not installed"


def test_other_import_errors_are_shown(monkeypatch):
    def make():
        raise ModuleNotFoundError("No module named 'einops'", name="einops")

    row, said = swapped(monkeypatch, make), "ModuleNotFoundError: No module named 'einops'"
    assert row.failure(everything=False) == said
    assert said in row.text()


def test_other_versions_fail_where_all_are_asked_for(monkeypatch):
    monkeypatch.setattr(parity, "DRAWS", 1)
    row = parity.measured("Swin 7 x 7")
    row.version = "5.0.0"
    assert row.failure(everything=True) == "transformers is 5.0.0, not 5.23.0"


@pytest.mark.parametrize("name", ["Swin 7 x 7", "VITS", "Llama 3.1, padded"])
def test_less_exact_attention_fails(name, monkeypatch):
    monkeypatch.setattr(parity, "DRAWS", 8)
    assert parity.measured(name).failure(everything=True) == ""
    exact = relpos.attention
    monkeypatch.setattr(
        relpos, "attention", lambda q, *rest, **more: exact(q * (1 + 2e-6), *rest, **more)
    )
    assert "errors of more than 2 times" in parity.measured(name).failure(everything=True)


def test_not_a_number_fails():
    row = parity.Row("Swin 7 x 7", "5.23.0", (float("nan"), 1e-7), (1e-7, 1e-7), 1.0)
    assert "errors" in row.failure(everything=True)


def test_float64_is_float64_throughout():
    x = torch.arange(3)
    with parity.Float64():
        made = [x.float(), x.to(torch.float32), torch.ones(2, dtype=torch.float32), torch.rand(2)]
        made.append(torch.softmax(torch.ones(2), -1, dtype=torch.float32))
    assert {one.dtype for one in made} == {torch.float64}
    assert torch.ones(2).dtype == x.float().dtype == torch.float32


def test_command():
    command = [sys.executable, "-m", parity.__name__, "--only"]
    assert len(ran([*command, "Swin 33 x 1"], seconds=200).splitlines()) == 3
    asks = os.environ | {"RELPOS_PARITY": "all"}
    absent = run([*command, "torchscale, xPos"], env=asks, seconds=200)
    assert absent.returncode == 1
    assert "torchscale is not installed" in absent.stderr
