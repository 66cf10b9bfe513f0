"""The built tool and the Python extension are linked and compiled against exploitation."""

import shutil
import subprocess
import sys

import pytest
from cli_tool import TOOL
from relpos import _core

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF files"),
    pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf on this machine"),
]


def readelf(option, path):
    return subprocess.check_output(["readelf", "--wide", option, path], text=True)


@pytest.mark.parametrize("path", [TOOL.resolve(), _core.__file__], ids=["tool", "extension"])
def test_what_is_linked_in_is_read_only_and_stacks_are_checked(path):
    assert "GNU_RELRO" in readelf("--program-headers", path)
    dynamic = readelf("--dynamic", path)
    assert "BIND_NOW" in dynamic or "Flags: NOW" in dynamic
    assert "__stack_chk_fail" in readelf("--dyn-syms", path)


def test_library_calls_of_the_tool_know_their_buffers():
    assert "printf_chk" in readelf("--dyn-syms", TOOL.resolve())
