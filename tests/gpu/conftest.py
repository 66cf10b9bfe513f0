"""What the interpreter runs is collected where RELPOS_GPU=interpret is set, or a GPU is there."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from relpos.gpu.mode import INTERPRETS

from tests import FULL
from tests.gpu.quicker import quicken_the_interpreter

COMPUTES = INTERPRETS or torch.cuda.is_available()
_STARTS = "test_process.py"  # the others, where kernels compute
collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if (path.name == _STARTS) == COMPUTES
]


if INTERPRETS:
    quicken_the_interpreter()


@pytest.hookimpl(trylast=True)  # of what -k has chosen
def pytest_collection_modifyitems(config, items):
    """Of the cases of a test of this folder the interpreter runs the first, the eighth and so on;
    all of them with RELPOS_FULL. Parameters have two to six values: a number of cases that has one
    of these as a factor would meet the same value each time."""
    if not INTERPRETS or FULL:
        return
    chosen, left, seen = [], [], Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        here = item.path.parent == Path(__file__).parent
        (left if here and seen[test] % 7 else chosen).append(item)
        seen[test] += 1
    items[:] = chosen
    config.hook.pytest_deselected(items=left)


@pytest.fixture
def garbage():
    """Memory that PyTorch hands out is full of NaN, results and workspace of the kernels too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
