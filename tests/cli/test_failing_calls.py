"""relpos attend where system calls fail, or where it is killed in one: the n-th call of each
function, for every n."""

import errno
import itertools
import os
import signal

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import ROOT
from tests.support.cli_tool import TOOL, attend, normal, ran, run, silent

# An error that each may have. A command goes on after those of the second list. 0: no error, but
# half of the bytes alone are moved.
ERRORS = [
    *((name, errno.EIO) for name in ("read", "pread", "fstat", "fsync", "rename", "readlink")),
    *((name, errno.EACCES) for name in ("stat", "lstat")),
    *((name, errno.EMFILE) for name in ("open", "fcntl")),
    ("write", errno.ENOSPC),
    ("close", errno.EDQUOT),
    ("access", errno.EROFS),
    ("mkdir", errno.ENOSPC),
]
HARMLESS = [
    *((name, error) for name in ("read", "pread", "write") for error in (errno.EINTR, 0)),
    *((name, errno.EPERM) for name in ("fchown", "fchmod", "link")),
    ("lseek", errno.ESPIPE),
]
SOME = ["stat", "lstat", "close"]  # a command needs those for its outputs, and not each other one
KILL = -1  # in the place of an error


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("library") / "failing_calls.so"
    source = ROOT / "tests/cli/failing_calls.cc"
    ran(["g++", "-std=c++20", "-Wall", "-Werror", "-shared", "-fPIC", source, "-ldl", "-o", built])
    return built


class Trial:
    """A call that reads files of both kinds and standard input. Below out/ it replaces a file and
    one that a link leads to, and writes into a folder that is not there yet."""

    def __init__(self, folder, library):
        self.library = library
        save_file({"relative_attention_bias.weight": normal(32, 2)}, folder / "p.safetensors")
        words = attend(folder, query=normal(1, 2, 5, 4), mask=np.ones((5, 5), bool))
        self.query = folder / "query.npy"
        words[1] = "--query=-"
        words += ["--position", "t5(buckets=32)", "--params", folder / "p.safetensors"]
        words += ["--backward", folder / "value.npy", "--grads", "out/new/g"]
        words += ["--out", "out/o.npy", "--lse", "out/lse.npy", "--quiet"]
        self.command = [TOOL, *words]
        self.old = {"linked.npy": b"old l", "lse.npy": "linked.npy", "o.npy": b"old o"}
        done, self.new = self.run(folder / "right")
        assert done.returncode == 0, done.stderr
        assert len(self.new) == len(self.old) + 6  # two folders, and four gradients in them
        self.outputs = sum(isinstance(held, bytes) for held in self.new.values())
        assert all(self.new[name] != self.old[name] for name in ("linked.npy", "o.npy"))

    def run(self, folder, source="pipe", **settings):
        """The finished process, and what is below out/ then: bytes; texts of links and folders."""
        out = folder / "out"
        out.mkdir(parents=True)
        for name, held in self.old.items():
            if isinstance(held, bytes):
                (out / name).write_bytes(held)
            else:
                (out / name).symlink_to(held)
        with self.query.open("rb") as query:
            given = {"stdin": query} if source == "file" else {"input": query.read()}
            done = run(self.command, cwd=folder, env=silent() | settings, text=False, **given)
        return done, {str(path.relative_to(out)): self.held(path) for path in out.rglob("*")}

    @staticmethod
    def held(path):
        if path.is_symlink():
            return os.readlink(path)
        return "folder" if path.is_dir() else path.read_bytes()

    def each(self, folder, name, error, source="pipe", on=False):
        """What `run` gives with each call of `name` that fails, or with all from it on."""
        for at in itertools.count(1):
            reached = folder / f"reached{at}"
            settings = {"FAIL_CALL": name, "FAIL_ERROR": error, "FAIL_AT": at, "FAIL_ON": int(on)}
            settings |= {"FAIL_REACHED": reached, "LD_PRELOAD": self.library}
            texts = {key: str(value) for key, value in settings.items()}
            done, found = self.run(folder / str(at), source, **texts)
            if not reached.exists():
                assert at > 1, "it has no such call"
                assert (done.returncode, found) == (0, self.new)
                return
            yield done, found

    def check_refused(self, done, error):
        """One line that says why."""
        text = done.stderr.decode()
        assert done.returncode == 2, text
        assert text.startswith("relpos attend: ")
        assert text.endswith(f": {os.strerror(error)}\n")
        assert len(text.splitlines()) == 1

    def check_whole(self, found):
        """Each output is the old one or the new one, where there was none the new one or none."""
        for name in self.new:
            assert found.get(name) in (self.old.get(name), self.new[name]), name


@pytest.fixture(scope="module")
def trial(tmp_path_factory, library):
    return Trial(tmp_path_factory.mktemp("trial"), library)


@pytest.mark.parametrize(("name", "error"), ERRORS)
def test_all_outputs_are_new_or_all_are_old(tmp_path, trial, name, error):
    refused = 0
    for done, found in trial.each(tmp_path, name, error):
        if done.returncode == 0:
            assert name in SOME
            assert found == trial.new
            assert done.stderr == b""
            continue
        trial.check_refused(done, error)
        assert found == trial.old
        refused += 1
    assert refused >= (trial.outputs if name in (*SOME, "fsync", "rename") else 1)


@pytest.mark.parametrize(("name", "error"), HARMLESS)
def test_what_need_not_end_a_call_does_not(tmp_path, trial, name, error):
    for done, found in trial.each(tmp_path, name, error, "file" if name == "lseek" else "pipe"):
        assert (done.returncode, done.stderr) == (0, b"")
        assert found == trial.new


def test_an_old_file_that_cannot_be_removed_stays_beside(tmp_path, trial):
    for done, found in trial.each(tmp_path, "unlink", errno.EIO):
        assert (done.returncode, done.stderr) == (0, b"")
        beside = [name for name in found if name not in trial.new]
        assert len(beside) == 1
        assert found.pop(beside[0]) in trial.old.values()
        assert found == trial.new


def test_no_old_file_is_lost_where_no_name_can_be_given(tmp_path, trial):
    """From some rename on none works, so that those which did cannot be taken back."""
    for at, (done, found) in enumerate(trial.each(tmp_path, "rename", errno.EIO, on=True)):
        trial.check_refused(done, errno.EIO)
        assert at > 0 or found == trial.old
        trial.check_whole(found)
        assert set(trial.old.values()) <= set(found.values())


@pytest.mark.parametrize("name", ["open", "write", "fsync", "close", "link", "rename", "unlink"])
def test_a_killed_call_leaves_no_output_in_part(tmp_path, trial, name):
    for done, found in trial.each(tmp_path, name, KILL):
        assert done.returncode == -signal.SIGKILL
        trial.check_whole(found)
