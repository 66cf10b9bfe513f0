"""What the interpreter runs is collected where RELPOS_GPU=interpret is set, or a GPU is there."""

import dataclasses
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
    """For each call of a function within a kernel it replaces the members of Triton's modules
    again, though a launch has done so, and it computes sums and products of integers once more, to
    see whether they overflow, of which it says nothing unless it debugs: two thirds of the time of
    these tests. A Triton without what is replaced here is not quickened."""
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    replace = getattr(interpreter, "_patch_lang", None)
    options = getattr(getattr(interpreter, "interpreter_builder", None), "options", None)
    nothing = getattr(interpreter, "_LangPatchScope", None)
    if replace is None or nothing is None or not hasattr(options, "sanitize_overflow"):
        return
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    language = interpreter.tl
    one = {  # a member of each module that is replaced
        module: next(name for name, member in vars(module).items() if is_builtin(member))
        for module in (language, language.core)
    }
    seen = {}

    def replace_once(function):
        if function not in seen:
            visible = [x for x in function.__globals__.values() if inspect.ismodule(x)]
            seen[function] = [x for x in visible if x in one]
        own = seen[function]  # none: an error
        if not own or any(is_builtin(getattr(module, one[module])) for module in own):
            return replace(function)
        return nothing()

    interpreter._patch_lang = replace_once


if INTERPRETS:
    quicken_the_interpreter()


@pytest.fixture
def garbage():
    """Memory that PyTorch hands out is full of NaN, results and workspace of the kernels too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
