"""Calls at once, in threads and in forked children, beside busy programs and under limits: they
end, with the bits of a call that is alone."""

import contextlib
import os
import sys

import pytest

from tests import ROOT
from tests.support.cli_tool import run

sys.path.insert(0, str(ROOT / "bench"))

from surroundings import busy_programs, half_a_core

# Prints a digest of results for one call after the other, two at once in threads, and two at once
# in forked children; more threads are asked for than there are cores.
CALLS = """
import hashlib, os, sys, threading
import relpos, torch
torch.set_num_threads(int(sys.argv[1]))
draw = torch.Generator().manual_seed(0)
x, dout = (torch.randn(2, 4, 300, 16, generator=draw) for _ in range(2))
torch.manual_seed(0)
position = relpos.T5Bias(4) + relpos.RoPE(16, layout="half")
def call():
    leaves = [x.clone().requires_grad_() for _ in range(3)]
    out = relpos.attention(*leaves, position=position, is_causal=True)
    found = torch.autograd.grad(out, [*leaves, *position.parameters()], dout)
    whole = b"".join(r.detach().numpy().tobytes() for r in (out, *found))
    return hashlib.sha256(whole).hexdigest()
def many():
    return [call() for _ in range(8)]
digests = set(many())
found = []
workers = [threading.Thread(target=lambda: found.extend(many())) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert len(found) == 16
digests.update(found)
torch.set_num_threads(1)  # torch's own threads do not outlive a fork
children = []
for _ in range(2):
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begin, "".join(many()).encode())
        os._exit(0)
    children.append((child, end))
for child, end in children:
    text = os.read(end, 8 * 64).decode()
    digests.update(text[n : n + 64] for n in range(0, len(text), 64))
    assert len(text) == 8 * 64
    assert os.waitpid(child, 0)[1] == 0
print(" ".join(sorted(digests)))
"""


def digests(threads, environment=(), limit=None):
    """Of all results of CALLS, which ends in time."""
    done = run(
        [sys.executable, "-c", CALLS, threads],
        seconds=120,
        env=os.environ | dict(environment),
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.fixture(scope="module")
def alone():
    found = digests(1)
    assert len(found) == 1
    return found


@pytest.mark.parametrize(("busy", "limited"), [(False, False), (True, False), (True, True)])
def test_calls_at_once_have_the_same_bits(alone, busy, limited):
    """With more threads than cores; beside a busy program on every core; within half a core."""
    with contextlib.ExitStack() as stack:
        limit = stack.enter_context(half_a_core()) if limited else None
        if limited and limit is None:
            pytest.skip("this system lets nobody set a limit of CPU time")
        if busy:
            stack.enter_context(busy_programs(len(os.sched_getaffinity(0))))
        assert digests(64, {"OMP_NUM_THREADS": "64"}, limit) == alone
