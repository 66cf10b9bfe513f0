"""How the package behaves as a citizen of its process: signals, threads, forks, imports."""

import json
import os
import signal
import sys
import threading
import time

import pytest
import relpos
import torch
from relpos import _core

from tests.support.cli_tool import run
from tests.support.patience import heed_interrupts, timeout
from tests.support.sample import tensors
from tests.support.steps import same_bits, step


def run_python(code, **environment):
    """What a process of its own prints, (stdout, stderr), where it ends well."""
    how = {"preexec_fn": heed_interrupts, "env": os.environ | environment}
    result = run([sys.executable, "-c", code], seconds=120, **how)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def test_without_torch():
    code = """
import sys
sys.modules["torch"] = None
import relpos
assert [s.name for s in relpos.schemes()] and relpos.show_config()["version"]
assert relpos.schemes()[0].signature()
for name in ("attention", "Sum", relpos.schemes()[0].class_name):
    try:
        getattr(relpos, name)
    except ImportError as error:
        assert "pip install" in str(error) and name in str(error)
    else:
        raise SystemExit(f"{name} did not raise")
assert not hasattr(relpos, "no_such_name")
"""
    run_python(code)


def test_importing_it_after_torch_brings_nothing_heavy():
    code = """
import sys
import torch
before = set(sys.modules)
import relpos
new = set(sys.modules) - before
heavy = sorted(n for n in new if n.partition(".")[0] in ("torch", "sympy", "transformers"))
assert not heavy, (len(heavy), heavy[:5])
x = torch.randn(1, 2, 5, 4)
relpos.sdpa(x, x, x, torch.zeros(5, 5))
relpos.nn.MultiheadAttention(8, 2, position=relpos.ALiBi(2))(*[x.reshape(5, 1, 8)] * 3)
assert "torch._dynamo" not in sys.modules
from torch.nn.attention.bias import causal_upper_left
known = relpos.sdpa(x, x, x, causal_upper_left(5, 5))
assert torch.equal(known, relpos.sdpa(x, x, x, is_causal=True))
"""
    run_python(code)


def test_the_library_never_prints():
    code = """
import relpos, torch
x = torch.randn(1, 2, 5, 4)
p = relpos.T5Bias(2)
p.dense(5, 5); p.steps(5, 5); relpos.attention(x, x, x, position=p).sum()
"""
    assert run_python(code) == ("", "")


INTERRUPT = """
import json, os, signal, threading, time
import relpos, torch
from relpos import _core

def seconds_to_end(call):
    sent = []
    def send():
        time.sleep(0.25)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send).start()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]

small = torch.randn(1, 2, 70, 8)
before = relpos.attention(small, small, small)
q = torch.randn(8, 8, 8192, 64)
found = {}
_core.force_path("reference")  # hours of work
for threads in (1, 2):
    torch.set_num_threads(threads)
    found[f"forward {threads}"] = seconds_to_end(lambda: relpos.attention(q, q, q))
    x, real = q.clone().requires_grad_(), _core.attend
    _core.attend = lambda *a: (torch.zeros(q.shape), None, torch.ones(*q.shape[:3], 2))
    loss = relpos.attention(x, x, x).sum()
    _core.attend = real
    found[f"backward {threads}"] = seconds_to_end(loss.backward)
_core.force_path("auto")
long = torch.randn(1, 8, 60_000, 64)
found["fused forward"] = seconds_to_end(lambda: relpos.attention(long, long, long))
double = torch.randn(1, 8, 20_000, 64, dtype=torch.float64)
found["float64"] = seconds_to_end(lambda: relpos.attention(double, double, double))
x = torch.randn(1, 8, 8_000, 64, requires_grad=True)
loss = relpos.attention(x, x, x).sum()
found["fused backward"] = seconds_to_end(loss.backward)
x = torch.randn(16, 4, 3_000, 64)
mask = torch.zeros(4, 3_000, 3_000, requires_grad=True)
loss = relpos.attention(x, x, x, attn_mask=mask).sum()
found["gradient of a floating mask"] = seconds_to_end(loss.backward)
t5 = relpos.T5Bias(8)
found["dense"] = seconds_to_end(lambda: t5.dense(12_000, 12_000))
found["steps"] = seconds_to_end(lambda: t5.steps(12_000, 12_000))
found["indices"] = seconds_to_end(lambda: t5.indices(40_000, 40_000))
assert torch.equal(before, relpos.attention(small, small, small))
print(json.dumps(found))
"""


def test_ctrl_c_ends_a_long_call():
    found = json.loads(run_python(INTERRUPT, OMP_NUM_THREADS="2")[0])
    assert len(found) == 11
    bound = timeout(0.15)
    assert all(seconds is not None and seconds < bound for seconds in found.values()), found


def test_a_signal_handlers_own_exception_comes_through():
    class Alarm(Exception):
        pass

    def handler(number, frame):
        raise Alarm("time is up")

    before = signal.signal(signal.SIGALRM, handler)
    query = torch.randn(8, 8, 8192, 64)
    try:
        _core.force_path("reference")
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Alarm, match="time is up"):
            relpos.attention(query, query, query)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        _core.force_path("auto")


def test_the_interpreter_runs_on_during_a_call():
    inputs = [torch.randn(2, 8, 1024, 64) for _ in range(3)]
    done = threading.Event()
    ticks = []

    def compute():
        for _ in range(3):
            relpos.attention(*inputs)
        done.set()

    worker = threading.Thread(target=compute)
    worker.start()
    while not done.is_set():
        ticks.append(time.monotonic())
        time.sleep(0.001)
    worker.join()
    assert len(ticks) > 5


def test_sixteen_threads_share_positions_and_agree():
    position = relpos.T5Bias(2) + relpos.RoPE(4, layout="half")
    inputs = tensors(heads=2, queries=33, keys=33, head_dim=4)
    want, results = step(*inputs, position), []

    def compute():
        results.extend(step(*inputs, position) for _ in range(20))

    workers = [threading.Thread(target=compute) for _ in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=timeout(60))
    assert len(results) == 320
    for result in results:
        same_bits(result, want)


FORKED = """
import os, signal, threading, torch, relpos
torch.set_num_threads(2)
q = torch.randn(1, 4, 500, 16, requires_grad=True)  # too small for torch's own threads
position = relpos.T5Bias(4)
def run():
    out = relpos.attention(q, q, q, position=position, is_causal=True)
    ones = torch.ones_like(out)
    return [x.detach().numpy().tobytes() for x in
            (out, *torch.autograd.grad(out, [q, *position.parameters()], ones))]
def threads_at_once():
    \"""The most threads seen while run() runs, less those that were there before.\"""
    before, most, done = len(os.listdir("/proc/self/task")), 0, threading.Event()
    def compute():
        while not done.is_set():
            run()
    worker = threading.Thread(target=compute)
    worker.start()
    for _ in range(100_000):
        most = max(most, len(os.listdir("/proc/self/task")) - before)
        if most > 1:
            break
    done.set()
    worker.join()
    return most
def child(works):
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(os.environ["PATIENCE"]))
        os._exit(0 if works() else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status
"""


IN_CHILDREN = {
    "computes on its threads and says so": """
want = run()
assert relpos.show_config()["after fork"] == "no"
def works():
    config = relpos.show_config()
    assert config["after fork"].startswith("yes") and config["thread backend"] == "own pool"
    assert int(config["threads"]) == min(2, len(os.sched_getaffinity(0)))
    if len(os.sched_getaffinity(0)) > 1:
        assert threads_at_once() == 2
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert run() == want, threads
    return True
child(works)
assert relpos.show_config()["after fork"] == "no"
assert run() == want
""",
    "computes where a thread of its parent does": """
want, done, wrong = run(), threading.Event(), []
def compute():
    while not done.is_set():
        if run() != want:
            wrong.append("the parent's thread")
parent = threading.Thread(target=compute)
parent.start()
for _ in range(10):
    child(lambda: run() == want and run() == want)
done.set()
parent.join()
assert not wrong
""",
}


@pytest.mark.parametrize("works", IN_CHILDREN)
def test_a_forked_child(works):
    run_python(FORKED + IN_CHILDREN[works], PATIENCE=str(int(timeout(30))))


def test_dataloader_workers():
    code = """
import torch, relpos
x = torch.randn(1, 2, 64, 8)
relpos.attention(x, x, x)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, n): return relpos.attention(x, x, x)[0]
loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork")
want = relpos.attention(x, x, x)
assert all(torch.equal(batch, want) for batch in loader)
"""
    run_python(code)
