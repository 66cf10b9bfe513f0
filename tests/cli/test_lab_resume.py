"""A lab that is killed, or that had no room for its files, goes on with --resume, and ends with the
bits of one that nobody stopped."""

import contextlib
import errno
import functools
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from relpos.lab import cli, experiment, kept, progress, report, train, worker
from relpos.lab.model import Model

from tests import FULL
from tests.cli.test_lab import SMALL, command, lab
from tests.support.cli_tool import interrupted, names, run

SIZES = {**SMALL, "--steps": 12, "--compare": "off"}
# What says that a run has come so far, and whether its worker is killed, too: one that outlives its
# lab goes on until it has something to tell.
MOMENTS = [
    ("train-0/steps.npz", False),
    ("train-1/steps.npz", True),
    ("train-1/tests.json", False),
    ("continue-*/job.json", True),
]
if not FULL:
    MOMENTS = MOMENTS[::3]


def workers_of(folder):
    """The processes whose job is below a folder."""
    for process in os.listdir("/proc"):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as words:
                if str(folder).encode() in words.read() and int(process) != os.getpid():
                    yield int(process)
        except (OSError, ValueError):
            continue


def outcome(folder):
    """All that a run computes, without what its processes took."""
    results = json.loads((folder / "results.json").read_text())
    del results["seconds"]
    for row in results["schemes"]:
        del row["ms_per_step"], row["peak_mb"]
    return results, (folder / "continuation.txt").read_bytes()


@pytest.fixture(scope="module")
def words(own):
    return ["--text", own, "--schemes", "t5,rope", "--out"]


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """What a run computes that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    lab(SIZES, *words, folder)
    return outcome(folder)


def test_a_killed_run_ends_as_one_that_nobody_killed(words, whole, tmp_path):
    resume = []
    for file, worker_too in MOMENTS:

        def reached(_=None, file=file):
            return any((tmp_path / kept.FOLDER).glob(file))

        again = command(*words, tmp_path, *resume, **SIZES)
        status, _, err = interrupted(again, reached, signal.SIGKILL)
        assert status == -signal.SIGKILL, err[-2000:]
        assert reached()
        for process in workers_of(tmp_path) if worker_too else ():
            os.kill(process, signal.SIGKILL)
        assert names(tmp_path) == [kept.FOLDER]
        resume = ["--resume"]
    done = lab(SIZES, *words, tmp_path, *resume)
    assert "steps/s" not in done.stderr.partition("continue")[0], "no training that was done"
    assert names(tmp_path) == REPORT
    assert outcome(tmp_path) == whole


ERRORS = {"capture_output": False, "stderr": subprocess.PIPE}
REPORT = ["continuation.txt", "report.html", "results.json"]
TOO_LARGE = os.strerror(errno.EFBIG)


def with_files_of(most, words):
    """(status, stdout, lines of the lab on stderr) of a run whose processes are refused every file
    of more bytes, as by a full disk."""
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    no_more = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # a cut one would fail every import
    options = {"seconds": 200, "preexec_fn": limit, "env": no_more}
    done = run(command(*words, "--quiet", **SIZES), **options)
    said = [line for line in done.stderr.splitlines() if line.startswith("relpos lab: ")]
    return done.returncode, done.stdout, said


def plan_of(words, out):
    sizes = [word for pair in SIZES.items() for word in pair]
    return experiment.make_plan(cli.parser().parse_args([*map(str, [*words, out, *sizes])]))


def size_of_steps(plan, scheme, tmp_path):
    """Bytes of the file of a training of one step. Each further step adds two numbers."""
    steps = kept.Steps(tmp_path / "steps.npz")
    sizes = {"rate": plan.rate, "length": plan.shape.length}
    model = Model(plan.shape, scheme, seed=plan.seed)
    train.train(model, plan.corpus.train, plan.starts[:1], kept=steps, **sizes)
    return steps.path.stat().st_size


def test_a_disk_that_fills_in_a_training_leaves_a_report_and_what_resume_needs(
    words, whole, tmp_path
):
    """t5, whose file is the larger one, has room for six steps, and rope for all."""
    out = tmp_path / "out"
    most = size_of_steps(plan_of(words, out), "t5", tmp_path) + 5 * 16
    status, printed, said = with_files_of(most, [*words, out])
    t5 = out / kept.FOLDER / "train-0"
    why = f"--out: cannot write {t5 / 'steps.npz'}: {TOO_LARGE}"
    failure = f"t5: the train job ended with status 1: {why}"
    assert said == [
        f"relpos lab: {failure}",
        "relpos lab: --resume runs the failed jobs again",
    ]
    assert status == 1
    assert f"FAIL {failure}\n" in printed
    assert names(out) == [*REPORT, kept.FOLDER]
    results, _ = outcome(out)
    assert results["failures"] == [failure]
    assert results["stopped"] is None
    assert [row["scheme"] for row in results["schemes"]] == ["rope"]
    assert names(t5) == ["data.npz", "job.json", "lock", "stderr", "steps.npz"]
    assert len(kept.read_arrays(t5 / "steps.npz")["losses"]) == 6
    assert whole[0]["best"] == "t5", "which also continues, where rope did so far"
    with open("/dev/full", "w") as full:
        resumed = run(command(*words, out, "--resume", **SIZES), stdout=full, seconds=200, **ERRORS)
    assert resumed.returncode == 2
    assert resumed.stderr.endswith(
        f"relpos lab: cannot write standard output: {os.strerror(errno.ENOSPC)}; the report is "
        f"{out / 'report.html'}\n"
    )
    assert names(out) == REPORT
    assert outcome(out) == whole


def test_each_file_that_cannot_be_written_is_named(words, tmp_path):
    status, printed, said = with_files_of(4096, [*words, tmp_path])
    assert (status, printed) == (2, "")
    assert said == [
        f"relpos lab: {of}--out: cannot write {tmp_path / name}: {why}"
        for of, name, why in (
            ("t5: the train job does not start: ", "unfinished/train-0/data.npz", TOO_LARGE),
            ("rope: the train job does not start: ", "unfinished/train-1/data.npz", TOO_LARGE),
            (
                "",
                "report.html",
                f"{TOO_LARGE}; once it can be, --resume goes on with what is left",
            ),
        )
    ]
    assert names(tmp_path) == [kept.FOLDER]


def test_a_report_replaces_all_of_its_files_or_none(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").mkdir()
    with pytest.raises(kept.CannotWrite, match="/b: Is a directory"):
        report._put(tmp_path, {"a": b"new", "b": b"new"})
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize(("name", "why"), [("out", errno.EEXIST), ("x" * 300, errno.ENAMETOOLONG)])
def test_a_run_that_can_keep_nothing_does_not_start(own, tmp_path, capsys, name, why):
    out = tmp_path / name
    refused = out
    if why == errno.EEXIST:
        out.mkdir()
        refused = out / kept.FOLDER
        refused.write_text("a file")
    words = ["--text", own, "--tests", "128", "--out", out, "--compare", "off"]
    assert cli.main([*map(str, words)]) == 2
    assert capsys.readouterr().err == (
        f"relpos lab: --out: cannot write {refused}: {os.strerror(why)}; "
        "see that it can be, or choose another folder\n"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EPIPE])
def test_a_log_without_room_ends_no_run(monkeypatch, number):
    """A reader that has gone does."""

    class Log(io.StringIO):
        def write(self, text):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sys, "stderr", Log())
    gone = number == errno.EPIPE
    with pytest.raises(BrokenPipeError) if gone else contextlib.nullcontext():
        progress.Progress("t5", 10).close("a line that is lost")


def test_a_log_without_room_keeps_the_exit_status():
    """Whatever is still unwritten then: Python's own status for that is 120."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        log = {"capture_output": False, "stdout": full, "stderr": full, "env": buffered}
        assert run(command("--text", "/nowhere"), **log).returncode == 2


def test_what_is_learned_is_shown_in_the_mode_of_tests(words, tmp_path, monkeypatch):
    """Also by a job that was killed behind its tests."""
    modes = []

    class Watched(Model):
        def forward(self, *arguments, **options):
            modes.append(self.training)
            return super().forward(*arguments, **options)

    monkeypatch.setattr(worker, "Model", Watched)
    plan = plan_of(words, tmp_path)
    kept.write_json(tmp_path / "tests.json", dict.fromkeys(plan.tests, 1.0))
    data = {"train": plan.corpus.train, "test": plan.corpus.test, "starts": plan.starts[:1]}
    worker.run_train(plan.job("train", "t5", tests=plan.tests), data, tmp_path, lambda **_: None)
    assert modes == [True, False]


def test_draws_go_on_where_they_were(tmp_path):
    """Those of positions of one's own, by any of the three generators."""

    def draw():
        return [random.gauss(), np.random.randn(), torch.randn(()).item()]  # noqa: NPY002

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = kept.Steps(tmp_path / "steps.npz")
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    for _ in range(2):  # with a number of each pair that is left over, and without
        draw()
        steps.write(model, optimizer)
        expected = [draw(), draw()]
        steps.read(model, optimizer)
        assert [draw(), draw()] == expected


ASKED = {"--steps": 12, "--schemes": ["t5"]}


def test_what_is_not_unfinished_cannot_be_resumed(tmp_path):
    with (
        pytest.raises(kept.CannotResume, match="has no unfinished run"),
        kept.run_folder(tmp_path, ASKED, resume=True),
    ):
        pass
    assert names(tmp_path) == []


def test_a_run_of_other_options_is_not_resumed(tmp_path):
    with kept.run_folder(tmp_path, ASKED, resume=False) as folder:
        (folder / "train-0").mkdir()
    with (
        pytest.raises(kept.CannotResume, match=r"expected --steps 12, .* got 13"),
        kept.run_folder(tmp_path, {**ASKED, "--steps": 13}, resume=True),
    ):
        pass
    with kept.run_folder(tmp_path, ASKED, resume=True) as folder:
        assert names(folder) == ["asked.json", "lock", "train-0"]
    with kept.run_folder(tmp_path, ASKED, resume=False) as folder:
        assert names(folder) == ["asked.json", "lock"], "one that starts anew"


def test_half_of_the_jobs_of_a_run_are_not_resumed(tmp_path, monkeypatch):
    """Where one that starts anew could not remove them all."""
    with kept.run_folder(tmp_path, ASKED, resume=False) as folder:
        (folder / "train-0").mkdir()

    def refuse(_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(kept.shutil, "rmtree", refuse)
    with (
        pytest.raises(kept.CannotWrite, match=r"--out: cannot remove .*train-0: Permission denied"),
        kept.run_folder(tmp_path, ASKED, resume=False),
    ):
        pass
    with (
        pytest.raises(kept.CannotResume, match="has no unfinished run"),
        kept.run_folder(tmp_path, ASKED, resume=True),
    ):
        pass


def test_half_of_a_finished_run_is_not_resumed(tmp_path, monkeypatch):
    """Where a kill comes as it is removed."""
    with kept.run_folder(tmp_path, ASKED, resume=False) as folder:
        (folder / "train-0").mkdir()
        monkeypatch.setattr(kept.shutil, "rmtree", lambda *_, **__: None)
        kept.remove(folder)
    with (
        pytest.raises(kept.CannotResume, match="has no unfinished run"),
        kept.run_folder(tmp_path, ASKED, resume=True),
    ):
        pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(kept.fcntl, "flock", refuse)
    refusal = f"--out: cannot lock .*/lock: {os.strerror(errno.ENOLCK)}"
    with (
        pytest.raises(kept.CannotWrite, match=refusal),
        kept.run_folder(tmp_path, ASKED, resume=False),
    ):
        pass
    with pytest.raises(kept.CannotWrite, match=refusal), kept.locked(tmp_path):
        pass


def test_a_run_that_starts_anew_waits_for_a_worker_that_outlived_its_lab(tmp_path):
    """What that worker still writes would be the first steps of the new run."""
    with kept.run_folder(tmp_path, ASKED, resume=False) as folder:
        job = folder / "train-0"
        job.mkdir()
    order = []

    def start_anew():
        with kept.run_folder(tmp_path, ASKED, resume=False):
            order.append(job.exists())

    with kept.locked(job):
        anew = threading.Thread(target=start_anew)
        anew.start()
        anew.join(0.3)
        order.append("written")
        (job / "steps.npz").write_bytes(b"")
    anew.join()
    assert order == ["written", False]


def test_two_runs_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "PATIENCE", 0.1)
    with (
        kept.run_folder(tmp_path, ASKED, resume=False),
        pytest.raises(kept.CannotResume, match="another run writes there"),
        kept.run_folder(tmp_path, ASKED, resume=True),
    ):
        pass


def test_the_command_says_so_in_one_line(own, tmp_path, capsys):
    words = ["--text", own, "--tests", "128", "--out", tmp_path, "--resume", "--compare", "off"]
    assert cli.main([*map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("relpos lab: --resume: ")
    assert "without --resume" in line


def test_a_file_is_replaced_whole(tmp_path):
    kept.write_json(tmp_path / "a", [1])
    with pytest.raises(TypeError):
        kept.write_json(tmp_path / "a", [object()])
    assert json.loads((tmp_path / "a").read_text()) == [1]
    assert names(tmp_path) == ["a"]


def test_a_run_waits_for_a_process_that_is_about_to_end(tmp_path):
    """One that was killed as it started a worker, whose lock that one still holds for a moment."""
    with kept.run_folder(tmp_path, ASKED, resume=False):
        pass
    began, ended = threading.Event(), threading.Event()

    def hold():
        with kept.run_folder(tmp_path, ASKED, resume=True):
            began.set()
            time.sleep(0.5)
        ended.set()

    holder = threading.Thread(target=hold)
    holder.start()
    assert began.wait(60)
    with kept.run_folder(tmp_path, ASKED, resume=True):
        assert ended.wait(60)
    holder.join()
