"""Every entry of bench/hf_entries.py gives equal results on all that it is measured on."""

import sys

import pytest

from tests import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import hf_entries
import hf_models as program


@pytest.mark.parametrize("dtype", program.DTYPES)
@pytest.mark.parametrize("name", hf_entries.ENTRIES)
def test_small_twins_are_equal(name, dtype):
    assert "relpos" in program.prove(hf_entries.ENTRIES[name], dtype)
