"""What the interpreter runs is collected where RELPOS_GPU=interpret is set, or a GPU is there."""

import os
from pathlib import Path

import pytest
import torch

COMPUTES = os.environ.get("RELPOS_GPU") == "interpret" or torch.cuda.is_available()
_STARTS = "test_process.py"  # the others, where kernels compute
collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if (path.name == _STARTS) == COMPUTES
]


@pytest.fixture
def garbage():
    """Memory that PyTorch hands out is full of NaN, results and workspace of the kernels too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
