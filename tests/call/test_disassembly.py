"""The hot loops of the compiled kernels hold their sums in registers: nothing is spilled.

A hot loop is a block that jumps back to its own start, with at least 12 fused multiply-adds and no
other jump.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

import pytest

from tests import ROOT

MEMBER = "tiles.cc.o"
LEAST_PRODUCTS = 12
ROWS = 6
# Functions with register tiles -> how many of the widest: scores; scores and dweights; any product.
HOLDERS = {"forward": 1, "backward": 2, "gemm": 1}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")


@dataclass(frozen=True)
class Machine:
    """What builds for a kind of CPU are like: the folder, the tool, and words of its assembler."""

    build: str
    objdump: str
    form: str  # in objdump's first lines
    jump: str  # with its target as the one group
    on_stack: str
    product: str


X86 = Machine(
    "build/release", "objdump", "x86-64",
    r"(?:notrack )?j\w+\s+([0-9a-f]+)\b", r"\(%r[sb]p\b", r"vfn?madd\d+ps\s",
)  # fmt: skip
ARM = Machine(
    "build/arm", "aarch64-linux-gnu-objdump", "aarch64",
    r"(?:b|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,)\s+([0-9a-f]+)\b",
    r"\[(?:sp|x29)\b", r"fml[as]\s+v",
)  # fmt: skip
# Target -> machine, Highway's namespace, what a vector register's name has, how many vectors a row
# of the widest register tile has, and the steps of its loop's turn.
TARGETS = {
    "avx512": (X86, "N_AVX3", r"zmm", 4, 1),
    "avx2": (X86, "N_AVX2", r"ymm", 2, 4),
    "neon": (ARM, "N_NEON", r"\b[qv]\d", 4, 1),
}


@functools.cache
def functions(machine):
    """[(name, [(address, instruction)])] of the tile kernels."""
    library = ROOT / machine.build / "librelpos.a"
    if machine is ARM and os.environ.get("RELPOS_ARM") != "1":
        pytest.skip("make test-arm builds it")
    for tool in (machine.objdump, "ar"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on this machine")
    if not library.exists():
        pytest.skip(f"{library} is not built")
    with tempfile.NamedTemporaryFile(suffix=MEMBER) as unpacked:
        unpacked.write(subprocess.check_output(["ar", "p", library, MEMBER]))
        unpacked.flush()
        listing = subprocess.check_output(
            [machine.objdump, "--disassemble", "--no-show-raw-insn", unpacked.name], text=True
        )
    if machine.form not in listing:
        pytest.skip(f"the registers' names are those of {machine.form}")
    found = []
    for line in listing.splitlines():
        if head := FUNCTION.match(line):
            found.append((head[1], []))
        elif (body := INSTRUCTION.match(line)) and found:
            found[-1][1].append((int(body[1], 16), body[2]))
    return found


def straight_loops(machine, instructions):
    """Instructions of each block that ends in a jump to its own start."""
    start = {address: n for n, (address, _) in enumerate(instructions)}
    previous = 0
    for n, (_, text) in enumerate(instructions):
        if not (jump := re.match(machine.jump, text)):
            continue
        first = start.get(int(jump[1], 16), -1)
        if previous <= first <= n:
            yield [body for _, body in instructions[first : n + 1]]
        previous = n + 1


def products(machine, loop):
    return sum(bool(re.match(machine.product, text)) for text in loop)


@pytest.mark.parametrize("target", TARGETS)
def test_hot_loops_spill_nothing(target):
    machine, namespace, register, vectors, steps = TARGETS[target]
    loops = [
        (name, loop, products(machine, loop))
        for name, instructions in functions(machine)
        if namespace in name
        for loop in straight_loops(machine, instructions)
        if any(re.search(register, text) for text in loop)
    ]
    loops = [each for each in loops if each[2] >= LEAST_PRODUCTS]
    for name, loop, _ in loops:
        on_stack = [text for text in loop if re.search(machine.on_stack, text)]
        spilled = [text for text in on_stack if re.search(register, text)]
        assert not spilled, f"{name}: {spilled}"
    for function, least in HOLDERS.items():
        turn = ROWS * vectors * steps
        widest = [loop for name, loop, count in loops if function in name and count == turn]
        assert len(widest) >= least, f"{function}: {len(widest)} loops of {ROWS} x {vectors}"
        # A step is its products, the loads of a row of B, six broadcasts of A where they are not
        # folded into the products, and what moves on: no copies between registers.
        for loop in widest:
            assert len(loop) <= steps * ((ROWS + 1) * vectors + ROWS + 2) + 6, loop
