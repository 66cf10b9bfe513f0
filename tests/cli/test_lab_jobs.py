"""The processes of the lab's jobs: a starter, and a fork of it for each."""

import contextlib
import json
import os
import signal
import sys
import time

import pytest
from relpos.lab import runner

from tests.support.cli_tool import ran
from tests.support.patience import timeout

# Forks and speaks as starter.py does, and computes nothing: a job does what its kind says.
STARTER = """
import json, os, pathlib, sys, time
run = pathlib.Path(sys.argv[1])
def tell(**event):
    print(json.dumps(event), flush=True)
def work(folder, kind):
    tell(event="step", starter=os.getppid(), job=os.getpid())
    if kind == "waits":
        time.sleep(600)
    elif kind == "fails":
        (folder / "stderr").write_text("one line\\nwhy it failed\\n")
        return 1
    elif kind in ("tells why it fails", "does not fork and fails"):
        tell(event="failed", why="why it failed")
        return 1
    elif kind == "is killed":
        os.kill(os.getpid(), 9)
    elif kind != "says nothing":
        (folder / "arrays.npz").write_bytes((folder / "data.npz").read_bytes())
        (folder / "result.json").write_text(json.dumps({"of": kind}))
    return 0
for line in sys.stdin:
    folder = run / line.strip()
    kind = json.loads((folder / "job.json").read_text())["kind"]
    if kind == "is the starter's":
        sys.exit("the starter ends")
    process = os.fork() if not kind.startswith("does not fork") else 0
    if process == 0:
        os._exit(work(folder, kind))
    _, status = os.waitpid(process, 0)
    tell(event="end", status=os.waitstatus_to_exitcode(status))
"""


class Jobs(runner.Jobs):
    def told(self, name, kind="works"):
        """What a job told."""
        events = []
        result, _ = self.run(name, {"kind": kind}, {}, title=name, on_event=events.append)
        assert result == {"of": kind}
        return events

    def starter_of(self, name):
        return self.told(name)[0]["starter"]


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_START", STARTER)
    with Jobs(tmp_path, threads=1) as jobs:
        yield jobs


def ends(process):
    """Whether it ends in a moment: its files are closed before it is gone."""
    until = time.monotonic() + timeout(5)
    while not has_ended(process):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def has_ended(process):
    """Also where init has not seen it yet."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_jobs_have_one_starter_which_ends_with_them(jobs):
    (first,), (second,) = jobs.told("a"), jobs.told("b")
    assert first["starter"] == second["starter"]
    assert first["job"] != second["job"]
    assert jobs.told("a") == []  # its result is there
    jobs.__exit__()
    assert ends(first["starter"])
    assert jobs.starter_of("c") != first["starter"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("fails", "status 1:\none line\nwhy it failed$"),
        ("tells why it fails", "status 1: why it failed$"),
        ("is killed", "status -9$"),
        ("says nothing", "status 0$"),
    ],
)
def test_a_job_that_fails_says_why_and_others_go_on(jobs, kind, said):
    first = jobs.starter_of("a")
    with pytest.raises(runner.JobFailed, match=f"b: the {kind} job ended with {said}"):
        jobs.told("b", kind)
    assert jobs.starter_of("c") == first


def test_a_starter_that_ends_fails_one_job(jobs):
    first = jobs.starter_of("a")
    with pytest.raises(runner.JobFailed, match="status 1: the starter ends"):
        jobs.told("b", "is the starter's")
    second = jobs.starter_of("c")
    os.kill(second, signal.SIGKILL)
    with pytest.raises(runner.JobFailed, match="status -9"):
        jobs.told("d")
    assert len({first, second, jobs.starter_of("e")}) == 3


def test_one_that_does_not_fork_has_a_starter_of_its_own(jobs):
    (first,), (second,) = jobs.told("a", "does not fork"), jobs.told("b", "does not fork")
    assert first["job"] != second["job"]
    with pytest.raises(runner.JobFailed, match=r"ended with status 1: why it failed$"):
        jobs.told("c", "does not fork and fails")


@pytest.mark.parametrize("before", ["works", "fails"])
def test_a_folder_of_another_job_is_not_gone_on_with(jobs, before):
    with contextlib.suppress(runner.JobFailed):
        jobs.told("a", before)
    kept = jobs.folder / "a" / "steps.npz"
    kept.write_bytes(b"of the other job")
    assert len(jobs.told("a", "does more")) == 1
    assert not kept.exists()
    assert jobs.told("a", "does more") == []


def test_the_starter_has_pytorch_and_not_relpos():
    """Whose fork would compute on other threads than PyTorch's."""
    code = f"import runpy, sys; runpy.run_path({runner._STARTER!r}); " + (
        "print(*(name in sys.modules for name in ('torch._dynamo', 'relpos')))"
    )
    assert ran([sys.executable, "-c", code]) == "True False\n"


DRAW = """
import random
from pathlib import Path
import numpy as np
from relpos.lab import kept, worker
worker.JOBS["draw"] = lambda *_: ({"drawn": [random.random(), np.random.rand()]}, {})
for seed, name in ((3, "a"), (3, "b"), (4, "c")):
    Path(name).mkdir()
    kept.write_json(Path(name, "job.json"), {"kind": "draw", "threads": 1, "seed": seed})
    kept.write_arrays(Path(name, "data.npz"), {})
    left = Path(name, "steps.npz.tmp1")  # by one that was killed as it wrote
    left.touch()
    worker.run_job(Path(name), lambda **_: None)
    assert not left.exists()
    print(Path(name, "result.json").read_text())
"""


def test_positions_that_draw_numbers_draw_those_of_the_seed(tmp_path):
    first, again, other = map(
        json.loads, ran([sys.executable, "-c", DRAW], cwd=tmp_path).split("\n")[:3]
    )
    assert first == again
    assert all(x != y for x, y in zip(first["drawn"], other["drawn"], strict=True))


def test_one_that_cannot_start_says_why(jobs, monkeypatch):
    monkeypatch.setattr(runner, "_START", "import absent")
    with pytest.raises(runner.JobFailed, match="No module named 'absent'"):
        jobs.told("a")
    monkeypatch.setattr(sys, "executable", "/absent")
    with pytest.raises(
        runner.JobFailed, match="b: the works job does not start: /absent does not run: No such"
    ):
        jobs.told("b")


@pytest.mark.parametrize("starter_too", [False, True])
def test_ctrl_c_ends_a_job(jobs, starter_too):
    """Also one whose starter was killed."""
    seen = {}

    def interrupted(event):
        seen.update(event)
        if starter_too:
            os.kill(event["starter"], signal.SIGKILL)
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        jobs.run("a", {"kind": "waits"}, {}, title="a", on_event=interrupted)
    assert time.monotonic() - begin < timeout(60)
    assert ends(seen["starter"])
    assert ends(seen["job"])
    assert jobs.starter_of("b") != seen["starter"]
