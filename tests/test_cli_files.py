"""What relpos attend writes to files and standard streams, also when it is interrupted or fails."""

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
from cli_tool import TOOL, call, output, refusal, report, save
from patience import timeout
from safetensors.numpy import save_file

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def inputs(folder, length=5, **arrays):
    """Words of a call with small inputs, or `length` of them; outputs are the caller's."""
    arrays = {n: normal(1, 2, length, 4) for n in ("query", "key", "value")} | arrays
    words = ["attend"]
    for name, path in zip(arrays, save(folder, **arrays), strict=True):
        words += [f"--{name}", path]
    return words


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def start_long(folder, out, *words, disposition):
    """Starts a call that computes for minutes, and returns as soon as it computes."""
    out.mkdir()
    wide = np.zeros((1, 8, 16384, 64), np.float32)
    process = subprocess.Popen(
        [
            TOOL,
            *map(str, inputs(folder, query=wide, key=wide, value=wide)),
            *("--path", "reference", "--out", out / "o.npy", *words),
        ],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=disposition,
    )
    until = time.monotonic() + timeout(30)
    while not names(out) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    assert names(out), process.communicate()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_it_leaves_nothing(tmp_path, number):
    process = start_long(
        tmp_path,
        tmp_path / "out",
        *("--lse", tmp_path / "out" / "l.npy"),
        *("--backward", tmp_path / "query.npy", "--grads", tmp_path / "out" / "a" / "b"),
        disposition=functools.partial(signal.signal, number, signal.SIG_DFL),
    )
    time.sleep(0.2)
    process.send_signal(number)
    _, text = process.communicate(timeout=timeout(20))
    assert process.returncode == (130 if number == signal.SIGINT else -number), text
    assert names(tmp_path / "out") == []


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "o.npy"
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    words = inputs(tmp_path, length=4096)
    process = subprocess.Popen(
        [TOOL, *map(str, words), "--path", "reference", "--out", out], preexec_fn=ignore
    )
    while not names(tmp_path / "out") and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout(60)) == 0
    assert names(tmp_path / "out") == ["o.npy"]


def test_a_replaced_file_keeps_its_mode(tmp_path):
    out = tmp_path / "o.npy"
    out.write_bytes(b"old")
    out.chmod(0o604)
    output(*inputs(tmp_path), "--out", out)
    assert np.load(out).shape == (1, 2, 5, 4)
    assert stat.S_IMODE(out.stat().st_mode) == 0o604
    fresh = tmp_path / "fresh.npy"
    before = os.umask(0o027)
    try:
        output(*inputs(tmp_path), "--out", fresh)
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o640


@pytest.mark.parametrize("other", ["o.npy", "./o.npy", "a/../o.npy", "link.npy", "same.npy"])
def test_two_outputs_with_one_path_are_refused(tmp_path, other):
    (tmp_path / "a").mkdir()
    (tmp_path / "o.npy").write_bytes(b"old")
    (tmp_path / "link.npy").symlink_to("o.npy")
    (tmp_path / "same.npy").hardlink_to(tmp_path / "o.npy")
    words = inputs(tmp_path)
    before = names(tmp_path)
    line = refusal(*words, "--out", "o.npy", "--lse", other, cwd=tmp_path)
    assert "two outputs" in line
    assert names(tmp_path) == before
    assert (tmp_path / "o.npy").read_bytes() == b"old"


def test_a_gradient_is_an_output_like_others(tmp_path):
    words = [*inputs(tmp_path), "--backward", tmp_path / "query.npy", "--grads", tmp_path / "g"]
    assert "two outputs" in refusal(*words, "--out", tmp_path / "g" / "dq.npy")
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--lse", "absent/l.npy"], "absent"),
        (["--lse", "folder.npy"], "regular file"),
        (["--backward", "query.npy", "--grads", "query.npy"], "folder"),
        (["--backward", "query.npy", "--grads", "query.npy/g"], "folder"),
        (["--lse", "loop.npy"], "link"),
    ],
)
def test_every_output_is_checked_before_minutes_pass(tmp_path, words, part):
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    wide = np.zeros((1, 8, 16384, 64), np.float32)
    given = inputs(tmp_path, query=wide, key=wide, value=wide)
    before = names(tmp_path)
    given += ["--path", "reference", "--out", "o.npy", *words]
    assert part in refusal(*given, cwd=tmp_path, seconds=10)
    assert names(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_protected_file_is_not_replaced(tmp_path):
    (tmp_path / "o.npy").write_bytes(b"old")
    (tmp_path / "o.npy").chmod(0o444)
    assert "o.npy" in refusal(*inputs(tmp_path), "--out", tmp_path / "o.npy")
    assert (tmp_path / "o.npy").read_bytes() == b"old"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_where_one_output_fails_no_other_is_replaced(tmp_path):
    (tmp_path / "l.npy").write_bytes(b"old")
    words = inputs(tmp_path)
    before = names(tmp_path)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [TOOL, *map(str, words), "--out", "-", "--lse", tmp_path / "l.npy"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "standard output: cannot write" in done.stderr
    assert (tmp_path / "l.npy").read_bytes() == b"old"
    assert names(tmp_path) == before


# ---- standard streams


@pytest.mark.parametrize("through", ["pipe", "file"])
def test_a_dash_is_a_standard_stream(tmp_path, through):
    words = inputs(tmp_path)
    output(*words, "--out", tmp_path / "o.npy")
    words[words.index("--query") + 1] = "-"
    raw = (tmp_path / "query.npy").read_bytes()
    with (tmp_path / "query.npy").open("rb") as file:
        source = {"input": raw} if through == "pipe" else {"stdin": file}
        done = subprocess.run(
            [TOOL, *map(str, words), "--out", "-", "--json"],
            capture_output=True,
            check=True,
            timeout=timeout(20),
            **source,
        )
    got = np.load(io.BytesIO(done.stdout))
    np.testing.assert_array_equal(got, np.load(tmp_path / "o.npy"))
    assert json.loads(done.stderr)["out"] == "-"


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_bad_stream_is_refused(tmp_path, data):
    words = [*inputs(tmp_path), "--out", tmp_path / "o.npy", "--mask", "-"]
    done = subprocess.run(
        [TOOL, *map(str, words)], input=data, capture_output=True, timeout=timeout(20), check=False
    )
    assert done.returncode == 2
    assert b"standard input" in done.stderr
    assert not (tmp_path / "o.npy").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--mask", "-", "--q-offset", "-", "--out", "o.npy"], "--q-offset: standard input"),
        (["--out", "-", "--lse", "-"], "two outputs"),
        (["--out", "-", "--backward", "query.npy", "--grads", "-"], "--grads"),
    ],
)
def test_one_stream_has_one_use(tmp_path, words, part):
    assert part in refusal(*inputs(tmp_path), *words, cwd=tmp_path)


# ---- parameters

SUM = "rope(layout=half)+t5(buckets=6)"
TABLE = "relative_attention_bias.weight"


@pytest.mark.parametrize("name", [f"parts.1.{TABLE}", f"1.{TABLE}", TABLE])
def test_a_sums_own_state_dict_is_taken(tmp_path, name):
    table = normal(6, 2)
    save_file({name: table}, tmp_path / "p.safetensors")
    words = [*inputs(tmp_path), "--position", SUM, "--params", tmp_path / "p.safetensors"]
    found = report(*words, "--out", tmp_path / "o.npy")
    assert [p["from"] for p in found["parameters"]] == ["file"]
    assert found["drawn_at_random"] == []


def test_equal_names_of_a_sum_are_told_apart(tmp_path):
    tables = {f"parts.{n}.{TABLE}": normal(6, 2) for n in range(2)}
    save_file(tables, tmp_path / "p.safetensors")
    words = [*inputs(tmp_path), "--position", "t5(buckets=6)+t5(buckets=6)"]
    ours = [*words, "--params", tmp_path / "p.safetensors", "--out", tmp_path / "o.npy"]
    found = report(*ours)
    assert [p["from"] for p in found["parameters"]] == ["file", "file"]
    added = sum(tables.values())
    save_file({f"0.{TABLE}": added, f"1.{TABLE}": 0 * added}, tmp_path / "q.safetensors")
    output(*words, "--params", tmp_path / "q.safetensors", "--out", tmp_path / "q.npy")
    got, want = np.load(tmp_path / "o.npy"), np.load(tmp_path / "q.npy")
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_names_that_do_not_fit_are_answered_with_what_the_file_holds(tmp_path):
    save_file({f"layer.{n}": normal(n + 1) for n in range(12)}, tmp_path / "p.safetensors")
    words = [*inputs(tmp_path), "--params", "p.safetensors", "--out", "o.npy"]
    line = refusal(*words, "--position", SUM, cwd=tmp_path)
    assert TABLE in line
    assert "'layer.0' [1]" in line
    assert "and 4 more" in line
    save_file({"key_table": normal(3, 4), "valve_table": normal(3, 4)}, tmp_path / "p.safetensors")
    done = call(*words, "--position", "shaw(max_distance=1)", cwd=tmp_path)
    assert "p.safetensors has no value_table" in done.stderr
    assert "'valve_table' [3, 4]" in done.stderr


def test_drawn_tables_are_said_to_be_drawn(tmp_path):
    words = [*inputs(tmp_path), "--out", tmp_path / "o.npy"]
    text = call(*words, "--position", SUM, "--seed", 3).stderr
    assert f"no --params: {TABLE} drawn at random (--seed 3)" in text
    assert report(*words, "--position", SUM)["drawn_at_random"] == [TABLE]
    assert call(*words, "--position", SUM, "--json").stderr == ""
    assert call(*words, "--position", SUM, "--quiet").stderr == ""
    assert "drawn at random" not in call(*words, "--position", "alibi").stderr
    bias = call(*words, "--position", "bias_rpe(max_distance=3)").stderr
    assert "no --params: biases as initialised" in bias
