"""relpos list by family and word, and relpos compare."""

import json
import re

import numpy as np
import pytest
import relpos
from safetensors.numpy import save_file

from tests.cli.test_cli import on_terminal
from tests.support.cli_tool import call, output, refusal, report

SLOPES = ["compare", "alibi(heads=6)", "alibi(heads=6, slopes=geometric)"]


def test_list_groups_by_family():
    families, listed = [], []
    for line in filter(None, output("list").splitlines()):
        if match := re.match(r"(\w+): ", line):
            families.append(match[1])
        else:
            listed.append((*line.split()[:2], families[-1]))
    assert families == ["rotation", "rows", "bias", "sink"]
    expected = [(s.name, s.class_name, s.family) for s in relpos.schemes()]
    assert sorted(listed) == sorted(expected)


def test_list_json_keeps_its_form_with_the_family():
    for entry, scheme in zip(report("list")["schemes"], relpos.schemes(), strict=True):
        assert entry["name"] == scheme.name
        assert entry["family"] == scheme.family
        assert set(entry) == {"name", "class", "family", "summary", "source", "options"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["window", "bias"], {"swin", "swin_v2"}),
        (["YaRNs"], set()),
        (["ROPE-TYPE"], set()),
        (["KerpleLog"], {"kerple_log"}),
        (["shippole"], {"rope_yarn"}),
        (["rotation", "2023"], {"rope_dynamic", "rope_linear", "rope_ntk", "rope_yarn", "xpos"}),
    ],
)
def test_list_finds_by_words(words, names):
    if not names:
        assert repr(words[0]) in refusal("list", *words)
        return
    assert {scheme["name"] for scheme in report("list", *words)["schemes"]} == names
    text = output("list", *words)
    for scheme in relpos.schemes():
        assert bool(re.search(rf"^{scheme.name} ", text, re.M)) == (scheme.name in names)
        assert f"[{scheme.source}]" in text or scheme.name not in names


@pytest.mark.parametrize("columns", [80, 40])
def test_list_fits_a_terminal(columns):
    text = on_terminal("list", size=(24, columns))
    assert max(map(len, text.splitlines())) <= columns
    assert all(re.search(rf"^{s.name} ", text, re.M) for s in relpos.schemes())


def test_compare_is_the_difference_of_the_biases():
    found = report(*SLOPES, "--query", 5)
    a, b, difference = (np.array(m["values"]) for m in found["matrices"])
    expected = [relpos.ALiBi(6, slopes=slopes).dense(5, 5) for slopes in ("paper", "geometric")]
    np.testing.assert_allclose(a, expected[0], rtol=1e-6)
    np.testing.assert_allclose(b, expected[1], rtol=1e-6)
    np.testing.assert_allclose(difference, a - b, atol=1e-12)
    assert found["what"] == "bias"
    for head in found["heads"]:
        h = head["head"]
        assert head["pairs"] == 25
        assert head["largest_difference"] == np.abs(difference[h]).max()
        i, j = head["at"]
        assert np.abs(difference[h])[i, j] == head["largest_difference"]
        apart = np.abs(np.arange(-32, 33))
        np.testing.assert_allclose(head["curve_a"], -apart * -a[h, 0, 1], rtol=1e-6)


def test_compare_says_where_they_agree():
    sides = ["compare", "alibi(heads=2)", "alibi(heads=2, symmetric=false)"]
    for head in report(*sides, "--reach", 9)["heads"]:
        assert head["equal_distances"] == [[-9, 0]]
        assert head["equal_pairs"] == 36
    assert "at the distances -9 to 0." in output(*sides, "--reach", 9)
    same = output("compare", "t5", "t5(heads=4)")
    assert "at all of these distances" in same
    assert "64 of 64" in same


def test_compare_knows_rounding_from_a_difference(tmp_path):
    exact = np.full(1, 0.1, np.float32)
    for name, factor in (("near", 1 + 2**-23), ("far", 1 + 2**-20)):
        save_file({"slopes": exact}, tmp_path / "a.safetensors")
        save_file({"slopes": np.float32(exact * factor)}, tmp_path / "b.safetensors")
        (head,) = report(
            "compare", *["alibi(heads=1, learned=true)"] * 2,
            "--params-a", tmp_path / "a.safetensors", "--params-b", tmp_path / "b.safetensors",
        )["heads"]  # fmt: skip
        assert 0 < head["largest_difference"] < 1e-5
        assert head["equal_pairs"] == (64 if name == "near" else 8)


def test_compare_of_rotations_is_the_mean_cosine():
    sides = "rope(layout=half, head_dim=4)", "rope_linear(layout=half, head_dim=4, factor=2)"
    found = report("compare", *sides)
    assert found["what"] == "score"
    distance = np.arange(-32, 33)
    mean = (np.cos(distance) + np.cos(distance / 100)) / 2
    (head,) = found["heads"]
    np.testing.assert_allclose(head["curve_a"], mean, atol=1e-12)
    np.testing.assert_allclose(head["curve_b"], (np.cos(distance / 2) + np.cos(distance / 200)) / 2)
    assert head["equal_distances"] == [[0, 0]]


def test_compare_of_sums_adds_the_bias_to_the_score():
    found = report("compare", "rope(layout=half)+alibi(heads=2)", "rope(layout=half)")
    assert found["what"] == "score"
    _, _, difference = (np.array(m["values"]) for m in found["matrices"])
    np.testing.assert_allclose(difference, relpos.ALiBi(2).dense(8, 8), atol=1e-12)


def test_compare_of_tables_is_the_row_of_each_pair():
    found = report("compare", "shaw(max_distance=3)", "vits(window_size=3)")
    assert found["what"] == "index"
    (head,) = found["heads"]
    assert head["equal_distances"] == [[-3, 3]]
    assert head["curve_b"][0] == -1


def test_every_scheme_compares_with_itself():
    for scheme in report("list")["schemes"]:
        layout = "(layout=half)" if "layout" in [o["name"] for o in scheme["options"]] else ""
        text = scheme["name"] + layout
        result = call("compare", text, text, "--reach", 7, "--json")
        assert result.returncode == 0, result.stderr
        for head in json.loads(result.stdout)["heads"]:
            assert head["largest_difference"] == 0
            assert head["equal_distances"] == [[-7, 7]]


@pytest.mark.parametrize("columns", [80, 40])
def test_compare_fits_a_terminal(columns):
    for words in (SLOPES, ["compare", "rope(layout=half)", "xpos(layout=half)"]):
        text = on_terminal(*words, size=(60, columns))
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        lines = plain.splitlines()
        assert max(map(len, lines)) <= max(columns, 57), max(lines, key=len)
        assert "\x1b" not in output(*words)
        assert max(map(len, output(*words).splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["alibi"], ["B"]),
        (["alibi", "t6"], ["no scheme 't6'", "did you mean"]),
        (["alibi", ""], ["B: expected a position"]),
        (["rope", "alibi"], ["layout"]),
        (["alibi(heads=2)", "alibi(heads=4)"], ["heads", "2", "4"]),
        (["alibi", "rope(layout=half)", "--what", "bias"], ["rope of B is not a bias", "score"]),
        (["alibi+t5", "t5", "--what", "index"], ["A is a sum"]),
        (["alibi", "alibi", "--head", "4"], ["--head: expected 0 to 3, got 4"]),
        (["alibi", "alibi", "--query", "0"], ["--query"]),
        (["alibi", "alibi", "--reach", "-1"], ["--reach"]),
        (["alibi", "alibi", "--query", "3", "--key", "4"], ["q_offset"]),
        (["alibi", "alibi", "--query", "9999999"], ["too large"]),
    ],
)
def test_bad_comparisons_are_one_line_and_exit_code_2(words, parts):
    line = refusal("compare", *words)
    for part in parts:
        assert part in line
