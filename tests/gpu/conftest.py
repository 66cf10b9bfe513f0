"""What the interpreter runs is collected where RELPOS_GPU=interpret is set, or a GPU is there."""

from pathlib import Path

import pytest
import torch
from relpos.gpu.mode import INTERPRETS

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


@pytest.fixture
def garbage():
    """Memory that PyTorch hands out is full of NaN, results and workspace of the kernels too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
