"""The hot loops of the compiled kernels hold their sums in registers: nothing is spilled.

A hot loop is a block that jumps back to its own start, with at least 12 fused multiply-adds and no
other jump.
"""

import re
import shutil
import subprocess

import pytest

from tests import ROOT

LIBRARY = ROOT / "build" / "release" / "librelpos.a"
MEMBER = "tiles.cc.o"
LEAST_PRODUCTS = 12
# Target -> Highway's namespace, vector registers, vectors of a row of the widest register tile.
TARGETS = {"avx512": ("N_AVX3", "zmm", 4), "avx2": ("N_AVX2", "ymm", 2)}
ROWS = 6
# Functions with register tiles -> how many of the widest: scores; scores and dweights; any product.
HOLDERS = {"forward": 1, "backward": 2, "gemm": 1}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
JUMP = re.compile(r"^(?:notrack )?j\w+\s+([0-9a-f]+)\b")
ON_STACK = re.compile(r"\(%r[sb]p\b")
PRODUCT = re.compile(r"^vfn?madd\d+ps\s")


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """[(name, [(address, instruction)])] of the tile kernels."""
    for tool in ("objdump", "ar"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on this machine")
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built")
    unpacked = tmp_path_factory.mktemp("object") / MEMBER
    unpacked.write_bytes(subprocess.check_output(["ar", "p", LIBRARY, MEMBER]))
    listing = subprocess.check_output(
        ["objdump", "--disassemble", "--no-show-raw-insn", unpacked], text=True
    )
    if "x86-64" not in listing:
        pytest.skip("the registers' names are those of x86-64")
    found = []
    for line in listing.splitlines():
        if head := FUNCTION.match(line):
            found.append((head[1], []))
        elif (body := INSTRUCTION.match(line)) and found:
            found[-1][1].append((int(body[1], 16), body[2]))
    return found


def straight_loops(instructions):
    """Instructions of each block that ends in a jump to its own start."""
    start = {address: n for n, (address, _) in enumerate(instructions)}
    previous = 0
    for n, (_, text) in enumerate(instructions):
        if not (jump := JUMP.match(text)):
            continue
        first = start.get(int(jump[1], 16), -1)
        if previous <= first <= n:
            yield [body for _, body in instructions[first : n + 1]]
        previous = n + 1


def products(loop):
    return sum(bool(PRODUCT.match(text)) for text in loop)


def hot_loops(functions, namespace, register):
    """[(function, loop)]"""
    return [
        (name, loop)
        for name, instructions in functions
        if namespace in name
        for loop in straight_loops(instructions)
        if products(loop) >= LEAST_PRODUCTS and any(register in text for text in loop)
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_hot_loops_spill_nothing(functions, target):
    namespace, register, vectors = TARGETS[target]
    loops = hot_loops(functions, namespace, register)
    for name, loop in loops:
        spilled = [text for text in loop if register in text and ON_STACK.search(text)]
        assert not spilled, f"{name}: {spilled}"
    for function, least in HOLDERS.items():
        widest = [
            loop for name, loop in loops if function in name and products(loop) == ROWS * vectors
        ]
        assert len(widest) >= least, f"{function}: {len(widest)} loops of {ROWS} x {vectors}"
        # A step is its products, the loads of a row of B, six broadcasts of A where they are not
        # folded into the products, and what moves on: no copies between registers.
        for loop in widest:
            assert len(loop) <= (ROWS + 1) * vectors + ROWS + 8, loop
