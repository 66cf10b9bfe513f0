"""The processes of the lab's jobs: one that starts them, each a fork of it."""

import os
import signal

import pytest
from relpos.lab import runner

# Speaks as worker.py does, and computes nothing: what a job is asked is what its process does.
STARTER = """
import json, os, pathlib, sys
run = pathlib.Path(sys.argv[1])
def tell(**event):
    print(json.dumps(event), flush=True)
for line in sys.stdin:
    folder = run / line.strip()
    kind = json.loads((folder / "job.json").read_text())["kind"]
    if kind == "end":
        sys.exit("the starter ends")
    if kind == "fail":
        (folder / "stderr").write_text("one line\\nwhy it failed\\n")
    else:
        tell(event="step", starter=os.getpid())
        (folder / "arrays.npz").write_bytes((folder / "data.npz").read_bytes())
        (folder / "result.json").write_text('{"of": "%s"}' % kind)
    tell(event="end", status=int(kind == "fail"))
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_START", STARTER)
    with runner.Jobs(tmp_path, threads=1) as jobs:
        yield jobs


def starter_of(jobs, name, kind="run"):
    told = []
    result, _ = jobs.run(name, {"kind": kind}, {}, on_event=told.append)
    assert result == {"of": kind}
    return told[0]["starter"] if told else None


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_jobs_have_one_starter_which_ends_with_them(jobs):
    first, second = (starter_of(jobs, name) for name in ("a", "b"))
    assert first == second
    assert starter_of(jobs, "a") is None  # its result is there
    jobs.__exit__()
    assert not is_there(first)
    assert starter_of(jobs, "c") != first


def test_a_job_that_fails_says_why_and_others_go_on(jobs):
    first = starter_of(jobs, "a")
    with pytest.raises(runner.JobFailed, match="the fail job ended with status 1:\none line\nwhy"):
        jobs.run("b", {"kind": "fail"}, {}, on_event=print)
    assert starter_of(jobs, "c") == first


def test_a_starter_that_ends_fails_one_job(jobs):
    first = starter_of(jobs, "a")
    with pytest.raises(runner.JobFailed, match="status 1:\nthe starter ends"):
        jobs.run("b", {"kind": "end"}, {}, on_event=print)
    second = starter_of(jobs, "c")
    assert second != first
    os.kill(second, signal.SIGKILL)
    jobs._starter.wait()
    assert starter_of(jobs, "d") not in (first, second)


def test_one_that_cannot_start_says_why(jobs, monkeypatch):
    monkeypatch.setattr(runner, "_START", "import absent")
    with pytest.raises(runner.JobFailed, match="No module named 'absent'"):
        jobs.run("a", {"kind": "run"}, {}, on_event=print)


def test_ctrl_c_ends_the_starter(jobs):
    seen = []

    def interrupted(event):
        seen.append(event["starter"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.run("a", {"kind": "run"}, {}, on_event=interrupted)
    assert not is_there(seen[0])
