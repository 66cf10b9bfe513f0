"""What the interpreter runs is collected where RELPOS_GPU=interpret is set, or a GPU is there."""

import inspect
from pathlib import Path

import pytest
import torch
from relpos.gpu.mode import INTERPRETS

COMPUTES = INTERPRETS or torch.cuda.is_available()
_STARTS = "test_process.py"  # the others, where kernels compute
collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if (path.name == _STARTS) == COMPUTES
]


def quicken_the_interpreter():
    """It lists the members of Triton's modules again for each call of a function of a kernel, also
    within a kernel, where all are replaced already: a third of the time of these tests. The names
    are listed once here, and what is replaced already is left. Triton 3.6 to 3.9 have the function;
    without it nothing is quickened."""
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    replace, names = getattr(interpreter, "_patch_builtin", None), {}

    def replace_once(package, *others):
        if package not in names:
            members = inspect.getmembers(package)
            names[package] = [name for name, member in members if is_builtin(member)]
        own = names[package]
        if own and is_builtin(getattr(package, own[0])):
            replace(package, *others)

    if replace is not None:
        interpreter._patch_builtin = replace_once


if INTERPRETS:
    quicken_the_interpreter()


@pytest.fixture
def garbage():
    """Memory that PyTorch hands out is full of NaN, results and workspace of the kernels too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
