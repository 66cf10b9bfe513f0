"""More threads than the machine has or grants: the process computes with fewer and never ends."""

import os
import sys

import numpy as np
import pytest
import relpos
import torch

from tests.support.cli_tool import TOOL, output, ran, report

CORES = len(os.sched_getaffinity(0))

# Large enough for our threads, too small for torch's own.
COMPUTE = """
import os, resource, sys
import relpos, torch
torch.set_num_threads(1)
x = torch.randn(1, 2, 300, 16, generator=torch.Generator().manual_seed(0))
want = relpos.attention(x, x, x, is_causal=True)
warm = x.clone().requires_grad_()
warm.square().backward(torch.ones_like(x))  # torch imports what it needs for that
torch.set_num_threads(int(sys.argv[1]))
def space():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
{limit}
y = x.clone().requires_grad_()
found = relpos.attention(y, y, y, is_causal=True)
found.backward(torch.ones_like(x))
assert torch.equal(found, want) and y.grad.isfinite().all()
assert int(relpos.show_config()["threads"]) <= len(os.sched_getaffinity(0))
print("done")
"""
LIMITS = {
    "none": "",
    "address space": "resource.setrlimit(resource.RLIMIT_AS, (space() + 7 * 2**20,) * 2)",
    "threads of a user": """
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.geteuid() == 0:  # who has no such limit
    os.setuid(65534)
""",
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("threads", [2, 30_000])
def test_torchs_thread_count_is_only_a_wish(limit, threads):
    command = [sys.executable, "-c", COMPUTE.replace("{limit}", LIMITS[limit]), threads]
    assert ran(command, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}) == "done\n"


@pytest.fixture
def files(tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 2, 300, 16), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    return [
        "attend",
        *(w for n in ("query", "key", "value") for w in (f"--{n}", tmp_path / "x.npy")),
    ]


def test_the_tool_takes_any_number_of_threads(tmp_path, files):
    found = set()
    for threads in (1, 2, 60_000, 100_000, 2**31 - 1):
        output(*files, "--threads", threads, "--out", tmp_path / "out.npy")
        found.add((tmp_path / "out.npy").read_bytes())
    assert len(found) == 1


@pytest.mark.parametrize("words", ["-u 1", "-v 40000", "-v 100000"])
def test_the_tool_computes_where_no_thread_is_granted(tmp_path, files, words):
    """In a shell's limits: processes of a user, kilobytes of address space. The tool itself takes
    about 20 MB, a thread's stack 8."""
    tmp_path.chmod(0o755)
    out = tmp_path / "out.npy"
    command = f'ulimit {words} && exec "$@"'
    user = {"user": 65534} if os.geteuid() == 0 and words.startswith("-u") else {}
    for part in [tmp_path, *tmp_path.parents] if user else []:
        if not part.stat().st_mode & 0o001:
            pytest.skip(f"{part}: closed to other users")
    if user:
        out.touch()
        os.chown(out, 65534, -1)
        tmp_path.chmod(0o777)
    output(*files, "--threads", 1, "--out", tmp_path / "want.npy")
    call = [TOOL, *files, "--threads", 100_000, "--out", out]
    ran(["sh", "-c", command, "sh", *call], **user)
    assert out.read_bytes() == (tmp_path / "want.npy").read_bytes()


def test_a_thread_count_beyond_the_cores_is_the_cores():
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 1000):
            torch.set_num_threads(threads)
            assert relpos.show_config()["threads"] == str(min(threads, CORES))
    finally:
        torch.set_num_threads(before)


def test_the_bench_takes_any_number_of_threads():
    words = ["--scheme", "alibi", "--length", 64, "--seconds", 0.01, "--threads", 4096]
    found = report("bench", *words)
    assert found["machine"]["threads"] <= CORES
