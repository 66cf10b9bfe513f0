"""What the interpreter runs is collected where RELPOS_GPU=interpret is set, or a GPU is there."""

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


EACH = 3  # of a test's cases, where the interpreter computes: a case takes it half a second


if INTERPRETS:
    quicken_the_interpreter()


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(config, items):
    """Without RELPOS_FULL the interpreter runs every third case of a test, one at least, and begins
    with the first, the second or the third, in turns from test to test."""
    if not INTERPRETS or FULL:
        return
    cases = {}
    for item in items:
        if item.path.parent == Path(__file__).parent:
            cases.setdefault((item.path, item.originalname), []).append(item)
    left_out = set()
    for turn, own in enumerate(cases.values()):
        first = turn % min(EACH, len(own))
        left_out |= set(own) - set(own[first::EACH])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def garbage():
    """Memory that PyTorch hands out is full of NaN, results and workspace of the kernels too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
