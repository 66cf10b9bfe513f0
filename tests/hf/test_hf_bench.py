"""Every entry of bench/hf_entries.py gives equal results on all that it is measured on."""

import sys

import pytest

from tests import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import hf_entries
import hf_models as program


@pytest.mark.parametrize("name", hf_entries.ENTRIES)
def test_small_twins_are_equal(name):
    assert "relpos" in program.prove(hf_entries.ENTRIES[name], "float32")


@pytest.mark.parametrize(
    ("words", "dtypes"),
    [([], ["float32"]), (["--all"], ["float32", "bfloat16"])],
    ids=["one entry", "all"],
)
def test_all_entries_are_measured_in_every_dtype(words, dtypes, monkeypatch):
    measured = []
    monkeypatch.setattr(program, "lines_of", lambda name, dtype, _: measured.append((dtype, name)))
    monkeypatch.setattr(sys, "argv", ["hf_models.py", *words])
    program.main()
    names = [*hf_entries.ENTRIES] if words else [*hf_entries.ENTRIES][:1]
    assert measured == [(dtype, name) for dtype in dtypes for name in names]
