"""The list of faults goes with the sources; `make mutants` plants them."""

import collections

import pytest

from tests import ROOT
from tests.mutants.faults import FAULTS


def test_each_has_its_place():
    """Its text occurs once in its file, and becomes another."""
    lost = [f.name for f in FAULTS if (ROOT / f.file).read_text().count(f.old) != 1]
    assert not lost
    assert not [f.name for f in FAULTS if f.old == f.new]


def test_they_are_many_and_spread():
    assert len(FAULTS) >= 80
    assert not [f for f, many in collections.Counter(FAULTS).items() if many > 1]
    rooms = {f.file.rpartition("/")[0] for f in FAULTS}
    for room in ("src/kernels/terms", "src/binding", "src/schemes", "python/relpos/_call"):
        assert room in rooms


def test_a_fault_goes_as_it_came(tmp_path):
    from tests.mutants.plant import Planted

    file = tmp_path / "a.txt"
    file.write_text("one two\n")

    def stopped():
        with Planted(file, "two", "three", tmp_path / "kept"):
            assert file.read_text() == "one three\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert file.read_text() == "one two\n"
    Planted(file, "two", "four", tmp_path / "kept").__enter__()  # a run that was killed
    Planted.restore(tmp_path / "kept")
    assert file.read_text() == "one two\n"
