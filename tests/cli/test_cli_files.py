"""What relpos attend leaves in files, and on standard streams, however it ends."""

import functools
import io
import json
import os
import signal
import stat
import subprocess
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.cli_tool import (
    TOOL,
    attend,
    call,
    interrupted,
    names,
    normal,
    output,
    refusal,
    report,
    run,
)
from tests.support.patience import timeout

WIDE = {name: np.zeros((1, 8, 16384, 64), np.float32) for name in ("query", "key", "value")}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_it_leaves_nothing(tmp_path, number):
    """While it computes for minutes."""
    out = tmp_path / "out"
    out.mkdir()
    words = [*attend(tmp_path, **WIDE), "--path", "reference", "--out", out / "o.npy"]
    words += ["--lse", out / "l.npy"]
    words += ["--backward", tmp_path / "query.npy", "--grads", out / "a" / "b"]
    status, _, text = interrupted([TOOL, *words], lambda process: names(out), number)
    assert status == (130 if number == signal.SIGINT else -number), text
    assert text == ("relpos attend: interrupted\n" if number == signal.SIGINT else "")
    assert names(out) == []


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "o.npy"
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    long = {name: normal(1, 2, 4096, 4) for name in ("query", "key", "value")}
    words = attend(tmp_path, **long)
    process = subprocess.Popen(
        [TOOL, *map(str, words), "--path", "reference", "--out", out], preexec_fn=ignore
    )
    while not names(tmp_path / "out") and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout(60)) == 0
    assert names(tmp_path / "out") == ["o.npy"]


def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    """One that is replaced keeps its own: src/io/outputs_test.cc."""
    fresh = tmp_path / "fresh.npy"
    before = os.umask(0o027)
    try:
        output(*attend(tmp_path), "--out", fresh)
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--lse", "absent/l.npy"], "absent"),
        (["--lse", "folder.npy"], "regular file"),
        (["--backward", "query.npy", "--grads", "query.npy"], "folder"),
        (["--backward", "query.npy", "--grads", "query.npy/g"], "folder"),
        (["--lse", "loop.npy"], "link"),
        (["--lse", "folder.npy/../o.npy"], "two outputs"),
        (["--lse", "g/dq.npy", "--backward", "query.npy", "--grads", "g"], "two outputs"),
    ],
)
def test_every_output_is_checked_before_minutes_pass(tmp_path, words, part):
    """One path by links: src/io/outputs_test.cc."""
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    (tmp_path / "o.npy").write_bytes(b"old")
    given = attend(tmp_path, **WIDE)
    before = names(tmp_path)
    given += ["--path", "reference", "--out", "o.npy", *words]
    assert part in refusal(*given, cwd=tmp_path, seconds=10)
    assert names(tmp_path) == before
    assert (tmp_path / "o.npy").read_bytes() == b"old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_protected_file_is_not_replaced(tmp_path):
    (tmp_path / "o.npy").write_bytes(b"old")
    (tmp_path / "o.npy").chmod(0o444)
    assert "o.npy" in refusal(*attend(tmp_path), "--out", tmp_path / "o.npy")
    assert (tmp_path / "o.npy").read_bytes() == b"old"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_where_one_output_fails_no_other_is_replaced(tmp_path):
    (tmp_path / "l.npy").write_bytes(b"old")
    words = attend(tmp_path)
    before = names(tmp_path)
    with open("/dev/full", "w") as full:
        words += ["--out", "-", "--lse", tmp_path / "l.npy"]
        done = run([TOOL, *words], capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "standard output: cannot write" in done.stderr
    assert (tmp_path / "l.npy").read_bytes() == b"old"
    assert names(tmp_path) == before


# ---- standard streams


@pytest.mark.parametrize("through", ["pipe", "file"])
def test_a_dash_is_a_standard_stream(tmp_path, through):
    words = attend(tmp_path)
    output(*words, "--out", tmp_path / "o.npy")
    words[1] = "--query=-"
    raw = (tmp_path / "query.npy").read_bytes()
    with (tmp_path / "query.npy").open("rb") as file:
        source = {"input": raw} if through == "pipe" else {"stdin": file}
        done = run([TOOL, *words, "--out", "-", "--json"], text=False, check=True, **source)
    got = np.load(io.BytesIO(done.stdout))
    np.testing.assert_array_equal(got, np.load(tmp_path / "o.npy"))
    assert json.loads(done.stderr)["out"] == "-"


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_bad_stream_is_refused(tmp_path, data):
    words = [*attend(tmp_path), "--out", tmp_path / "o.npy", "--mask", "-"]
    done = run([TOOL, *words], input=data, text=False)
    assert done.returncode == 2
    assert b"standard input" in done.stderr
    assert not (tmp_path / "o.npy").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--mask", "-", "--q-offset", "-", "--out", "o.npy"], "--q-offset: standard input"),
        (["--mask", "-", "--input", "log_f=-", "--out", "o.npy"], "--input log_f: standard input"),
        (["--out", "-", "--lse", "-"], "two outputs"),
        (["--out", "-", "--backward", "query.npy", "--grads", "-"], "--grads"),
    ],
)
def test_one_stream_has_one_use(tmp_path, words, part):
    assert part in refusal(*attend(tmp_path), *words, cwd=tmp_path)


# ---- parameters

SUM = "rope(layout=half)+t5(buckets=6)"
TABLE = "relative_attention_bias.weight"


@pytest.mark.parametrize("name", [f"parts.1.{TABLE}", f"1.{TABLE}", TABLE])
def test_a_sums_own_state_dict_is_taken(tmp_path, name):
    table = normal(6, 2)
    save_file({name: table}, tmp_path / "p.safetensors")
    words = [*attend(tmp_path), "--position", SUM, "--params", tmp_path / "p.safetensors"]
    found = report(*words, "--out", tmp_path / "o.npy")
    assert [p["from"] for p in found["parameters"]] == ["file"]
    assert found["drawn_at_random"] == []


def test_names_that_do_not_fit_are_answered_with_what_the_file_holds(tmp_path):
    save_file({f"layer.{n}": normal(n + 1) for n in range(12)}, tmp_path / "p.safetensors")
    words = [*attend(tmp_path), "--params", "p.safetensors", "--out", "o.npy"]
    line = refusal(*words, "--position", SUM, cwd=tmp_path)
    assert TABLE in line
    assert "'layer.0' [1]" in line
    assert "and 4 more" in line
    save_file({"key_table": normal(3, 4), "valve_table": normal(3, 4)}, tmp_path / "p.safetensors")
    done = call(*words, "--position", "shaw(max_distance=1)", "--json", cwd=tmp_path)
    parameters = json.loads(done.stdout)["parameters"]
    found = [(p["name"], p["from"]) for p in parameters]
    assert found == [("key_table", "file"), ("value_table", "init")]
    assert "p.safetensors has no value_table" in done.stderr
    assert "'valve_table' [3, 4]" in done.stderr


def test_drawn_tables_are_said_to_be_drawn(tmp_path):
    words = [*attend(tmp_path), "--out", tmp_path / "o.npy"]
    text = call(*words, "--position", SUM, "--seed", 3).stderr
    assert f"no --params: {TABLE} drawn at random (--seed 3)" in text
    assert report(*words, "--position", SUM)["drawn_at_random"] == [TABLE]
    assert call(*words, "--position", SUM, "--json").stderr == ""
    assert call(*words, "--position", SUM, "--quiet").stderr == ""
    assert "drawn at random" not in call(*words, "--position", "alibi").stderr
    bias = call(*words, "--position", "bias_rpe(max_distance=3)").stderr
    assert "no --params: biases as initialised" in bias


def test_out_of_memory_is_exit_code_3(tmp_path):
    """A sparse file of 128 MB under a limit of 150 MB for all memory of the process."""
    shape = (1, 1, 4, 8_000_000)
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="f4", shape=shape)
    words = [f"--{name}={tmp_path / 'x.npy'}" for name in ("query", "key", "value")]
    limited = ["bash", "-c", 'ulimit -v 150000 && exec "$@"', "-", TOOL, "attend", *words]
    done = run([*limited, f"--out={tmp_path / 'o.npy'}"])
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "no memory for [1, 1, 4, 8000000] float32" in done.stderr
    assert not (tmp_path / "o.npy").exists()
