"""A lab that is killed, or that had no room for its files, goes on with --resume, and ends with the
bits of one that nobody stopped."""

import errno
import functools
import json
import os
import resource
import signal
import threading
import time

import pytest
from relpos.lab import cli, kept

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
    ("continue/job.json", True),
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


def with_files_of(most, words):
    """A finished run whose processes are refused every file of more bytes, as by a full disk."""
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    return run(command(*words, "--quiet", **SIZES), seconds=200, preexec_fn=limit)


TOO_LARGE = os.strerror(errno.EFBIG)


def test_a_run_without_room_and_a_killed_one_end_as_one_that_nobody_stopped(own, tmp_path):
    words = ["--text", own, "--schemes", "t5,rope", "--out"]
    lab(SIZES, *words, tmp_path / "whole")
    out = tmp_path / "stopped"
    done = with_files_of(200_000, [*words, out])
    assert done.returncode == 1, done.stderr
    assert done.stderr.endswith("--resume runs the jobs that failed once more\n")
    assert names(out) == ["report.html", "results.json", kept.FOLDER]
    results = json.loads((out / "results.json").read_text())
    assert results["failures"] == [
        f"{scheme}: the train job ended with status 1:\n--out: cannot write "
        f"{out / kept.FOLDER / job / 'steps.npz'}: {TOO_LARGE}"
        for scheme, job in (("t5", "train-0"), ("rope", "train-1"))
    ]
    assert results["stopped"] is None
    assert names(out / kept.FOLDER / "train-0") == ["data.npz", "job.json", "lock", "stderr"]
    for file, worker_too in MOMENTS:
        reached = out / kept.FOLDER / file
        status, _, err = interrupted(
            command(*words, out, "--resume", **SIZES),
            lambda _, reached=reached: reached.exists(),
            signal.SIGKILL,
        )
        assert status == -signal.SIGKILL, err[-2000:]
        for worker in workers_of(out) if worker_too else ():
            os.kill(worker, signal.SIGKILL)
        assert names(out) == ["report.html", "results.json", kept.FOLDER]
    done = lab(SIZES, *words, out, "--resume")
    assert "steps/s" not in done.stderr.partition("continue")[0], "no training that was done"
    assert names(out) == ["continuation.txt", "report.html", "results.json"]
    assert outcome(out) == outcome(tmp_path / "whole")


def test_each_file_that_cannot_be_written_is_named_in_one_line(own, tmp_path):
    done = with_files_of(1000, ["--text", own, "--schemes", "t5,rope", "--out", tmp_path])
    assert (done.returncode, done.stdout) == (2, "")
    assert list(filter(None, done.stderr.splitlines())) == [
        f"relpos lab: {of}--out: cannot write {tmp_path / name}: {TOO_LARGE}{then}"
        for of, name, then in (
            ("t5: the train job does not start: ", "unfinished/train-0/data.npz", ""),
            ("rope: the train job does not start: ", "unfinished/train-1/data.npz", ""),
            ("", "report.html", "; once it can be written, --resume goes on with the rest"),
        )
    ]


def test_a_run_that_can_keep_nothing_does_not_start(own, tmp_path, capsys):
    (tmp_path / kept.FOLDER).write_text("a file")
    words = ["--text", own, "--tests", "128", "--out", tmp_path, "--compare", "off"]
    assert cli.main([*map(str, words)]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"relpos lab: --out: cannot write {tmp_path / kept.FOLDER}: {os.strerror(errno.EEXIST)}; "
        "choose a folder that can be written\n"
    )


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
