"""What the interpreter runs is collected where RELPOS_GPU=interpret is set."""

import os

import pytest
import torch

INTERPRETS = os.environ.get("RELPOS_GPU") == "interpret"
_WITHIN = ["test_kernels.py", "test_reach.py", "test_refusals.py"]
collect_ignore = ["test_process.py"] if INTERPRETS else _WITHIN


@pytest.fixture
def garbage():
    """Memory that PyTorch hands out is full of NaN, results and workspace of the kernels too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
