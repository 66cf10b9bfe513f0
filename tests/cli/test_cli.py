"""relpos list, show, selftest and lab; errors, colours, help. attend: test_cli_attend.py."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import ROOT
from tests.support import notebook_prints as prints
from tests.support.cli_tool import (
    TOOL,
    call,
    npy_bytes,
    output,
    refusal,
    report,
    run,
    safetensors_bytes,
)
from tests.support.patience import timeout

T5 = ["show", "t5", "--heads", 4, "--buckets", 6, "--max-distance", 20, "--causal"]
ALIBI = ["show", "alibi", "--heads", 8, "--query", 4, "--key", 4, "--head", 0]
SHAW = ["show", "shaw", "--distance", "query-key"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([*T5, "--query", 14, "--key", 14, "--what", "index"], prints.SECOND_INDICES),
        (
            [*T5, "--query", 10, "--key", 15, "--q-offset", 0, "--what", "index"],
            prints.THIRD_INDICES_10_15,
        ),
        (ALIBI, prints.LAST_BIASES_0),
        (
            [*SHAW, "--max-distance", 2, "--query", 3, "--key", 3, "--what", "index"],
            prints.FIRST_FINAL_MAT,
        ),
    ],
)
def test_matrices_of_the_notebooks(words, printed):
    assert output(*words) == printed.lstrip()


def test_heads_follow_each_other():
    heads = output(*ALIBI[:-2]).split("\n\n")
    assert len(heads) == 8
    assert heads[0] + "\n" == "bias, head 0 [4, 4]" + prints.LAST_BIASES_0
    assert heads[7].startswith("bias, head 7 [4, 4]\n[[ 0.0000, -0.0039, -0.0078, -0.0117]")


def test_shaw_steps_of_the_fourth_notebook_in_its_order():
    words = ["--max-distance", 7, "--query", 12, "--key", 12, "--what", "steps"]
    text = output(*SHAW, *words)
    steps = (prints.FOURTH_RELATIVE, prints.FOURTH_CLIPPED, prints.FOURTH_INDICES)
    places = [text.index("]" + part) for part in steps]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("lengths", "first", "rows"),
    [
        ([], [*range(8)], 8),
        (["--key", 2], [0, 1], 2),
        (["--query", 1], [0], 1),
        (["--query", 1, "--key", 3, "--q-offset", 2], [-2, -1, 0], 1),
        (["--query", 1, "--q-offset", -2], [2], 1),
    ],
)
def test_lengths_default_to_each_other(lengths, first, rows):
    shown = json.loads(output("show", "t5", *lengths, "--what", "distance"))
    assert (shown[0], len(shown)) == (first, rows)


def test_every_scheme_shows_every_matrix_it_has():
    for scheme in report("list")["schemes"]:
        required = [
            word
            for option in scheme["options"]
            if option["required"] and option["type"] == "choice"
            for word in (option["flag"], option["choices"][0])
        ]
        shown = 0
        for what in ("distance", "index", "bias", "rows", "steps"):
            result = call("show", scheme["name"], *required, "--what", what, "--json")
            if result.returncode == 2 and what in ("bias", "rows"):
                continue
            assert result.returncode == 0, result.stderr
            shown += 1
            for matrix in json.loads(result.stdout)["matrices"]:
                assert list(np.shape(matrix["values"])) == matrix["shape"]
        assert shown >= 3


def test_parameters_come_from_files(tmp_path):
    table = np.arange(24, dtype=np.float32).reshape(6, 4) / 4
    save_file({"relative_attention_bias.weight": table}, tmp_path / "p.safetensors")
    np.save(tmp_path / "p.npy", table)
    words = [*T5, "--query", 4, "--what", "bias", "--head", 1]
    n = np.subtract.outer(np.arange(4), np.arange(4)).clip(0)
    for file in ("p.safetensors", "p.npy"):
        shown = json.loads(output(*words, "--params", tmp_path / file))
        np.testing.assert_array_equal(shown, table[n, 1])


def test_drawn_parameters_follow_the_seed():
    words = ["show", "t5", "--query", 3, "--what", "bias"]
    assert output(*words) == output(*words, "--seed", 0)
    assert output(*words) != output(*words, "--seed", 1)


def test_rows_are_the_table_at_the_index():
    words = ["show", "shaw", "--max-distance", 1, "--head-dim", 3, "--query", 4]
    index = np.array(report(*words, "--what", "index")["matrices"][0]["values"])
    key, value = report(*words, "--what", "rows")["matrices"]
    for rows in (np.array(key["values"]), np.array(value["values"])):
        assert rows.shape == (4, 4, 3)
        for m in range(3):
            np.testing.assert_array_equal(
                rows[index == m], rows[index == m][0][None].repeat((index == m).sum(), 0)
            )
    assert not np.array_equal(key["values"], value["values"])


def test_bools_have_both_flags_and_lists_have_commas():
    both = output("show", "t5", "--bidirectional", "--query", 3, "--what", "index")
    assert json.loads(both)[0] == [0, 17, 18]
    assert output(*T5, "--query", 3, "--what", "index") == output(
        *T5[:-1], "--no-bidirectional", "--query", 3, "--what", "index"
    )
    shown = output("show", "alibi", "--heads", 2, "--slopes", "1,0.25", "--query", 2, "--head", 1)
    assert shown == "[[ 0.0000, -0.2500],\n [-0.2500,  0.0000]]\n"
    one_sided = output("show", "alibi", "--heads", 1, "--slopes", "1", "--causal", "--query", 2)
    assert "[[ 0.0000,  0.0000],\n [-1.0000,  0.0000]]" in one_sided


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["show", "t6"], ["'t6'", "did you mean 't5'?"]),
        (["show", "qqqqqqqqqq"], ["expected one of 'alibi'"]),
        (["show"], ["expected a scheme"]),
        (["shwo", "t5"], ["did you mean 'show'?"]),
        (["list", "nothing"], ["'nothing'", "name, class"]),
        (["show", "t5", "--bukets", "6"], ["did you mean --buckets?"]),
        (["show", "t5", "--max_distance", "6"], ["did you mean --max-distance?"]),
        (["show", "t5", "--scale", "nan"], ["--bias-scale: expected a finite number"]),
        (["show", "t5", "--query", "-1"], ["--query"]),
        (["show", "t5", "--query", "10000000", "--what", "index"], ["too large"]),
        (["show", "t5", "--query", "10", "--key", "15"], ["q_offset"]),
        (["show", "t5", "--head", "1", "--what", "index"], ["same for all heads"]),
        (["show", "t5", "--what", "indx"], ["--what"]),
        (["show", "t5", "--what", "rows"], ["no rows"]),
        (["show", "t5", "--buckets", "7"], ["bidirectional"]),
        (["show", "t5", "--causal", "--bidirectional"], ["contradicts"]),
        (["show", "shaw", "--causal"], ["--causal"]),
        (["show", "shaw", "--distance", "key"], ["distance", "'key-query'"]),
        (["show", "shaw", "--what", "bias"], ["no bias"]),
        (["show", "rope"], ["layout"]),
        (["show", "rope", "--layout", "half", "--head-dim", "7"], ["head_dim"]),
        (["show", "rope", "--layout", "half", "--base", "inf"], ["--base"]),
        (["show", "alibi", "--heads", "2", "--slopes", "nan,1"], ["--slopes", "finite"]),
        (["show", "alibi", "--heads", "2", "--slopes", "nan"], ["slopes", "nan"]),
        (["show", "alibi", "--heads", "2", "--slopes", "1,2,3"], ["slopes"]),
        (["show", "alibi", "--heads", "2", "--slopes", "papre"], ["'paper'"]),
        (["show", "t5", "--params", "absent.safetensors"], ["absent.safetensors"]),
        (["show", "t5", "--params", "p.bin"], [".safetensors"]),
        (["show", "rope", "--layout", "half", "--params", "p.npy"], ["p.npy"]),
        (["selftest", "--scheme", "t6"], ["did you mean 't5'?"]),
        (["selftest", "--case", "1000"], ["--case"]),
        (["attend"], ["--query"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, parts):
    line = refusal(*words)
    for part in parts:
        assert part in line


def one(name="relative_attention_bias.weight", dtype="F32", shape=(6, 4), count=96):
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, 96]}
    return safetensors_bytes({name: entry}, bytes(count))


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (one(count=95), "the file has 95"),
        (one(shape=(4, 6)), "expected shape [6, 4]"),
        (one(dtype="I32"), "floating"),
        (one("weight"), "none of the position's parameters"),
        (one()[:-96] + b"\0\0\xc0\x7f" + bytes(92), "finite"),
        (npy_bytes((6, 4), data=bytes(95)), "the file has 95"),
        (npy_bytes((4, 6), data=bytes(96)), "expected shape [6, 4]"),
    ],
)
def test_lying_parameter_files_are_refused(tmp_path, data, part):
    """Where a file says what cannot be: src/io/npy_test.cc, src/io/safetensors_test.cc."""
    name = "p.npy" if data.startswith(b"\x93NUMPY") else "p.safetensors"
    (tmp_path / name).write_bytes(data)
    line = refusal(*T5, "--query", 4, "--params", name, cwd=tmp_path)
    assert name in line
    assert part in line


def test_help_says_the_exit_codes_and_no_command_prints_a_short_one():
    assert "3 out of memory" in output("--help")
    short = output()
    assert len(short.splitlines()) <= 12
    commands = re.findall(r"^  ([a-z]+)  ", output("--help").split("Subcommands:")[1], re.M)
    assert re.findall(r"^  ([a-z]+)  ", short, re.M) == commands
    assert "selftest" in commands
    assert "relpos --help" in short


def test_help_starts_with_examples_and_those_of_show_run():
    schemes = [["show", scheme["name"]] for scheme in report("list")["schemes"]]
    commands = [[], ["list"], ["show"], ["compare"], ["attend"], ["check"], ["selftest"], ["lab"]]
    for words in commands + schemes:
        text = output(*words, "--help", env={"RELPOS_PYTHON": "/bin/true"})
        assert "Examples:\n  relpos " in text
        assert text.index("Examples:") < text.find("Options:") or "Options:" not in text
        if words in schemes:
            lines = re.findall(r"^  relpos (show .*)$", text, re.MULTILINE)
            assert len(lines) == 3
            for line in lines:
                output(*line.split())


def test_version():
    version = re.search(r'RELPOS_VERSION "(.*)"', (ROOT / "include/relpos/version.h").read_text())
    assert output("--version") == f"relpos {version[1]}\n"


def on_terminal(*words, size=None, **variables):
    """What a call writes to a terminal of `size` (rows, columns)."""
    main, side = pty.openpty()
    if size is not None:
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", **variables}
    process = subprocess.Popen([TOOL, *map(str, words)], stdout=side, env=environment)
    os.close(side)
    text = b""
    while select.select([main], [], [], timeout(20))[0]:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    os.close(main)
    assert process.wait(timeout(20)) == 0
    return text.decode().replace("\r\n", "\n")


def test_colours_only_where_they_are_wanted():
    assert "\x1b" not in output(*ALIBI, env={"TERM": "xterm-256color"})
    assert "\x1b[48;5;" in on_terminal(*ALIBI)
    assert "\x1b[48;2;" in on_terminal(*ALIBI, COLORTERM="truecolor")
    assert on_terminal(*ALIBI, NO_COLOR="1") == prints.LAST_BIASES_0.lstrip()
    assert on_terminal(*ALIBI, TERM="dumb") == prints.LAST_BIASES_0.lstrip()
    assert on_terminal(*ALIBI, "--color", "never") == prints.LAST_BIASES_0.lstrip()
    assert "\x1b[48;5;" in output(*ALIBI, "--color", "always")
    json.loads(on_terminal(*ALIBI, "--json"))


def test_heat_maps_fit_the_terminal():
    def lines(size, *words):
        text = on_terminal("show", "t5", "--what", "index", *words, size=size)
        return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()

    wide = lines((50, 120), "--query", 20)
    assert len(wide) == 20
    assert wide[3].split()[:6] == ["3", "3", "2", "1", "0", "17"]
    for size in ((24, 40), (12, 20), (10, 8)):
        cut = lines(size, "--query", 200)
        assert max(map(len, cut)) <= max(size[1], 48), cut  # the notes below may be longer
        assert max(len(line) for line in cut if line.endswith(" ...")) <= max(size[1], 20)
        assert any(line.startswith("(") and "of 200 x 200" in line for line in cut)


def test_a_reader_that_leaves_is_no_error():
    process = subprocess.Popen(
        [TOOL, "show", "t5", "--query", "1500", "--what", "index"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout(20))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        result = run([TOOL, "list"], capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 2
    assert "stdout" in result.stderr


# An interpreter that prints its name and the arguments after those of the start.
FAKE_PYTHON = b'#!/bin/sh\necho "$0 $1 $3 $4 $PYTHONPATH"\nexit 7\n'


def executable(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def lab(tool, *words, cwd, **env):
    done = run([tool, "lab", *words], cwd=cwd, env=env)
    return done.returncode, done.stdout, done.stderr


def test_lab_takes_the_python_that_it_is_told(tmp_path):
    python = executable(tmp_path / "any", FAKE_PYTHON)
    status, out, _ = lab(TOOL, "--text", "x y", cwd=tmp_path, RELPOS_PYTHON=str(python))
    assert (status, out) == (7, f"{python} -c --text x y \n")
    status, out, _ = lab(TOOL, cwd=tmp_path, RELPOS_PYTHON=str(python), PYTHONPATH=":/a::/b:")
    assert (status, out.split()[-1]) == (7, "/a:/b")
    assert "/no/such" in refusal("lab", env={"RELPOS_PYTHON": "/no/such"})


def test_lab_takes_the_python_of_its_own_environment_and_no_other(tmp_path):
    here = tmp_path / "here"
    for name in ("python", "python3", ".venv/bin/python", "build/.venv/bin/python"):
        executable(here / name, FAKE_PYTHON)
    tool = executable(tmp_path / "prefix/bin/relpos", TOOL.read_bytes())
    status, out, err = lab(tool, cwd=here)
    assert (status, out) == (2, "")
    assert "RELPOS_PYTHON" in err
    assert "pip install" in err
    assert len(err.splitlines()) == 1
    for name in ("python3", "python"):
        python = executable(tool.parent / name, FAKE_PYTHON)
        link = tmp_path / f"link-{name}"
        link.symlink_to(tool)  # its own place counts, not that of the link
        assert lab(link, cwd=here)[1].split()[0] == str(python)


def test_lab_of_a_build_folder_takes_the_projects_environment(tmp_path):
    tool = executable(tmp_path / "project/build/release/relpos", TOOL.read_bytes())
    assert lab(tool, cwd=tmp_path)[0] == 2
    python = executable(tmp_path / "project/.venv/bin/python", FAKE_PYTHON)
    assert lab(tool, cwd=tmp_path)[1].split()[0] == str(python)
    other = executable(tmp_path / "project/bin/relpos", TOOL.read_bytes())
    assert lab(other, cwd=tmp_path / "project")[0] == 2


def test_lab_says_that_relpos_is_not_installed_there(tmp_path):
    base = os.path.realpath(sys.executable)
    status, _, err = lab(TOOL, cwd=tmp_path, RELPOS_PYTHON=base)
    assert status == 2, err
    assert "has no relpos: pip install" in err


def test_selftest_passes_and_reports():
    result = report("selftest")
    assert result["ok"] is True
    assert result["config"]
    names = [scheme["name"] for scheme in result["schemes"]]
    assert names == ["none", *(scheme["name"] for scheme in report("list")["schemes"])]
    for scheme in result["schemes"]:
        assert scheme["ok"]
        assert scheme["same_bits"]
        assert scheme["cases"] >= 15
        assert 0 < scheme["forward"] <= 1
        assert 0 < scheme["backward"] <= 1
    text = output("selftest", "--scheme", "t5", "--case", 1)
    assert any(target in text.lower() for target in ("avx", "neon", "baseline", "sse", "emu"))
