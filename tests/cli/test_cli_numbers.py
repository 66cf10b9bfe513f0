"""Absurd numbers on the command line are refused in one line, at once."""

import pytest

from tests.support.cli_tool import attend, call, refusal

HUGE = [2**31, 2**62, 2**63 - 1]


@pytest.mark.parametrize("number", [-1, 0, *HUGE, 2**64, "1e9", ""])
@pytest.mark.parametrize(
    "words", [["alibi", "--heads"], ["rope", "--layout", "half", "--head-dim"], ["shaw", "--heads"]]
)
def test_numbers_of_heads_and_dims(words, number):
    assert words[-1].strip("-")[:4] in refusal(
        "show", *words[:-1], f"{words[-1]}={number}", seconds=10
    )


@pytest.mark.parametrize("number", HUGE)
def test_sizes_of_what_is_shown(number):
    for flag in ("--query", "--key"):
        refusal("show", "t5", f"{flag}={number}", "--what", "steps", seconds=10)
    far = call("show", "t5", f"--q-offset={number}", "--what", "steps", seconds=10)
    assert far.returncode in (0, 2), far.stderr


@pytest.mark.parametrize("number", [-(2**63), -1, *HUGE])
@pytest.mark.parametrize("flag", ["--q-offset", "--k-offset", "--window", "--dropout"])
def test_numbers_of_a_call_end_it_in_order(tmp_path, flag, number):
    words = [*attend(tmp_path), "--out", tmp_path / "o.npy"]
    value = f"{number},{number}" if flag == "--window" else number
    for position in ("alibi", "rope(layout=half)+t5(buckets=6)"):
        done = call(*words, f"{flag}={value}", "--position", position, "--causal", seconds=10)
        assert done.returncode in (0, 2), done.stderr
        assert len(done.stderr.splitlines()) <= 2, done.stderr


SEEDED = [
    ("show", "t5"),
    ("compare", "t5", "alibi"),
    ("selftest", "--case", 0, "--scheme", "none"),
    ("attend", "--query", "q", "--key", "k", "--value", "v", "--out", "o"),
]


@pytest.mark.parametrize("number", [-1, 2**64, 10**23, "0x10", "1_0", "1.0"])
@pytest.mark.parametrize("words", SEEDED, ids=lambda words: words[0])
def test_seeds(words, number):
    text = refusal(*words, f"--seed={number}", seconds=10)
    assert "--seed: expected an integer from 0 to 18446744073709551615, got " in text


def test_the_largest_seed():
    assert call("show", "t5", "--query=2", f"--seed={2**64 - 1}").returncode == 0


@pytest.mark.parametrize("number", [2**63, 10**23, "0x10", "1e1", "1_0"])
@pytest.mark.parametrize(
    "words",
    [
        *(("show", "t5", flag) for flag in ("--query", "--key", "--q-offset", "--head")),
        ("show", "t5", "--buckets"),
        ("compare", "t5", "alibi", "--reach"),
        ("compare", "t5", "alibi", "--head"),
    ],
    ids=lambda words: words[-1],
)
def test_integers(words, number):
    text = refusal(*words[:-1], f"{words[-1]}={number}", seconds=10)
    assert f"{words[-1]}: expected an integer" in text
    assert isinstance(number, str) or " to 9223372036854775807, got " in text


def test_integers_are_decimal():
    assert call("show", "t5", "--query=010", "--what=index").stdout.count("\n") == 10


@pytest.mark.parametrize("number", [-1, 4, 2**63 - 1])
def test_heads_that_are_not_there(number):
    line = refusal("show", "t5", f"--head={number}", seconds=10)
    assert f"--head: expected 0 to 3, got {number}" in line


@pytest.mark.parametrize("number", ["nan", "inf", "1e999", "0x1p3", "1_0"])
@pytest.mark.parametrize("flag", ["--scale", "--softcap", "--dropout"])
def test_numbers(flag, number):
    words = SEEDED[-1]
    assert f"{flag}: expected a finite number" in refusal(*words, f"{flag}={number}", seconds=10)
