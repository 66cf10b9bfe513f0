"""relpos show and relpos compare of positions of one's own, as module:Class."""

import json
import sys

import numpy as np
import pytest
import torch
from relpos import _tool

from tests.support.cli_tool import TOOL, run

MODULE = '''
import relpos, torch

print("of the position")


class Log(relpos.Position):
    def __init__(self, heads, rate=0.5):
        super().__init__()
        self.rate = rate
        self.p = torch.nn.Parameter(torch.rand(heads, 1))

    def bias(self, distance):
        return -self.p * torch.log1p(self.rate * distance.abs())


class Buckets(relpos.Position):
    """T5's buckets."""

    def __init__(self, heads):
        super().__init__()
        self.buckets = relpos.Buckets.t5(6, 20, bidirectional=False)
        self.table = torch.nn.Parameter(torch.zeros(6, heads))

    def terms(self, distance):
        return relpos.terms.DistanceBias(self.table.mT, self.buckets)


class Window(relpos.Position):
    def bias(self, distance):
        return torch.where(distance.abs() < 2, 0.0, -torch.inf)[None]


class Rows(relpos.Position):
    reach = (-1, 1)

    def __init__(self, head_dim):
        super().__init__()
        self.keys, self.queries = (torch.nn.Embedding(3, head_dim) for _ in range(2))

    def rows(self, distance):
        return self.keys(distance + 1)

    def columns(self, distance):
        return self.queries(distance + 1)

    def values(self, distance):
        return self.keys(distance + 1)


class Gated(Log):
    def rows(self, distance):
        return torch.ones(len(distance), 2, dtype=self.p.dtype)

    def gate(self, query):
        return query[..., :2]


class Hidden(Gated):
    def gate(self, query, hidden):
        return query[..., :2]


class Bad(Log):
    def bias(self, distance):
        return super().bias(distance).mT


class Broken(Log):
    def bias(self, distance):
        raise KeyError("mistake")
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("own")
    (path / "mine.py").write_text(MODULE)
    (path / "torch.py").write_text("raise RuntimeError('of the current folder')")
    return path


def tool(folder, *words):
    return run([TOOL, *words], cwd=folder)


def printed(folder, *words):
    done = tool(folder, *words)
    assert done.returncode == 0, done.stderr
    assert "of the position" in done.stderr  # and not on stdout
    return done.stdout


def report(folder, *words):
    return json.loads(printed(folder, *words, "--json"))


def values(matrix):
    return np.array(matrix["values"], dtype=np.float64)


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mine", None)


def asked(*positions, what="", grids=((3, 3, 0),), show=True, others=(), params="", seed=0):
    """The reply of relpos._tool, which takes seconds to start."""
    replies = []
    request = {"what": what, "grids": grids, "show": show, "others": others, "seed": seed}
    request["sides"] = [{"position": position, "params": str(params)} for position in positions]
    request["sizes"] = {"heads": 4, "head_dim": 8, "length": 33}
    _tool.main(json.dumps(request), replies.append)
    return json.loads(replies[0])


def of_log(distance, rate=0.5, heads=4, seed=0):
    """The bias of mine:Log, [heads, ...]."""
    torch.manual_seed(seed)
    p = torch.rand(heads, 1).double().numpy()
    return np.stack([-p[h] * np.log1p(rate * np.abs(distance)) for h in range(heads)])


def stack(matrix):
    numbers = [float(x) for x in matrix["values"]]
    return np.array(numbers).reshape(matrix["shape"])


def test_show_a_bias(folder):
    found = report(folder, "show", "mine:Log(heads=2)", "--query", 3, "--key", 5, "--q-offset", 2)
    assert {n: found[n] for n in ("scheme", "options", "query", "key", "q_offset")} == {
        "scheme": "mine:Log(heads=2)", "options": {"heads": 2}, "query": 3, "key": 5, "q_offset": 2,
    }  # fmt: skip
    want = of_log(np.arange(5) - np.arange(2, 5)[:, None], heads=2)
    for h, matrix in enumerate(found["matrices"]):
        assert matrix["name"] == f"bias, head {h}"
        np.testing.assert_allclose(values(matrix), want[h], atol=1e-12)
    assert printed(folder, "show", "mine:Window", "--query", 3) == (
        "[[0.0000, 0.0000,   -inf],\n [0.0000, 0.0000, 0.0000],\n [  -inf, 0.0000, 0.0000]]\n"
    )


def test_show_is_that_of_the_scheme(folder, tmp_path):
    """T5's own matrices, from the same numbers."""
    table = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    torch.save({"table": table}, tmp_path / "own.pt")
    np.save(tmp_path / "theirs.npy", table.numpy())
    scheme = ["t5", "--heads", 4, "--buckets", 6, "--max-distance", 20, "--causal"]
    own = ["mine:Buckets", "--params", tmp_path / "own.pt"]
    theirs = [*scheme, "--params", tmp_path / "theirs.npy"]
    for what in ("bias", "index"):
        more = ["--query", 14, "--what", what]
        shown = run([TOOL, "show", *theirs, *more]).stdout
        assert printed(folder, "show", *own, *more) == shown


def test_which_matrices_there_are(here):
    steps = asked("mine:Buckets", what="steps")["sides"][0]["grids"][0]
    assert [step["name"] for step in steps] == ["distance", "bucket", "DistanceBias"]
    rows = asked("mine:Rows", what="rows", grids=[(2, 2, 0)])["sides"][0]["grids"][0]
    assert [(m["name"], m["shape"]) for m in rows] == [
        ("key rows", [2, 2, 8]), ("column rows", [2, 2, 8]), ("value rows", [2, 2, 8]),
    ]  # fmt: skip
    assert rows[0]["values"] == rows[2]["values"]
    assert asked("mine:Rows")["what"] == "index"
    assert asked("mine:Log")["what"] == "bias"
    (distance,) = asked("mine:Log", what="distance")["sides"][0]["grids"][0]
    assert stack(distance).tolist() == [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    (bias,) = asked("mine:Log", seed=3)["sides"][0]["grids"][0]
    distance = np.arange(3) - np.arange(3)[:, None]
    np.testing.assert_allclose(stack(bias), of_log(distance, seed=3), atol=1e-12)


def test_compare_with_a_scheme(folder, tmp_path):
    torch.save({"table": torch.ones(6, 4) * torch.arange(4)}, tmp_path / "own.pt")
    np.save(tmp_path / "theirs.npy", np.ones((6, 4), np.float32) * np.arange(4, dtype=np.float32))
    scheme = "t5(heads=4, buckets=6, max_distance=20, bidirectional=false)"
    own, theirs = tmp_path / "own.pt", tmp_path / "theirs.npy"
    found = report(folder, "compare", scheme, "mine:Buckets",
                   "--params-a", theirs, "--params-b", own)  # fmt: skip
    assert found["a"].startswith("t5(")
    assert found["b"] == "mine:Buckets"
    assert found["what"] == "bias"
    for head in found["heads"]:
        assert head["equal_pairs"] == head["pairs"] == 64
        assert head["equal_distances"] == [[-32, 32]]
        assert head["curve_b"] == [head["head"]] * 65
    text = printed(folder, "compare", "mine:Buckets", scheme,
                   "--params-a", own, "--params-b", theirs)  # fmt: skip
    assert text.startswith("A: mine:Buckets\nB: t5(")
    assert "A and B agree to rounding at all of these distances." in text


def test_compare_two_of_ones_own(folder):
    done = tool(folder, "compare", "mine:Log(rate=1)", "mine:Log(rate=2)", "--reach", 3)
    assert "relpos compare: A: parameters as its constructor makes them (seed 0)" in done.stderr
    assert done.stderr.count("of the position") == 1  # one Python for both
    assert "A and B agree to rounding at the distance 0." in done.stdout


def test_what_is_compared(here):
    curve = [(3, 3, 0), (1, 9, 4)]
    at = np.arange(-4, 5)
    both = asked("mine:Log(rate=1)", "mine:Log(rate=2)", grids=curve, show=False)
    assert both["what"] == "bias"
    for side, rate in zip(both["sides"], (1, 2), strict=True):
        np.testing.assert_allclose(stack(side["grids"][1][0])[:, 0], of_log(at, rate), atol=1e-12)
    assert asked("mine:Log", others=["bias"], show=False)["what"] == "bias"
    assert asked("mine:Log", others=[""], show=False)["what"] == "score"
    assert asked("mine:Rows", others=["rows"], show=False)["what"] == "index"
    assert asked("mine:Rows", "mine:Log", show=False)["what"] == "score"


def test_compare_scores(here):
    """Of sums, and of gates, which read the queries of ones."""
    at, grids = np.arange(-4, 5), [(1, 9, 4)]
    rope = "rope(layout=half, head_dim=4)"
    found = asked(f"{rope}+mine:Log(heads=1)", grids=grids, show=False, others=[""])
    assert found["what"] == "score"
    angles = at[:, None] * np.array([1.0, 0.01])
    want = np.cos(angles).mean(1) + of_log(at, heads=1)[0]
    np.testing.assert_allclose(stack(found["sides"][0]["grids"][0][0])[0, 0], want, atol=1e-12)
    gated, plain = asked(
        "mine:Gated(heads=1)", "mine:Log(heads=1)", what="score", grids=grids, show=False
    )["sides"]
    difference = stack(gated["grids"][0][0]) - stack(plain["grids"][0][0])
    np.testing.assert_allclose(difference, 2.0, atol=1e-12)


def test_show_a_class_with_gates(here):
    """Without a query: what the gates do not decide, which its other methods say."""
    at = np.arange(3) - np.arange(3)[:, None]
    assert asked("mine:Gated")["what"] == asked("mine:Hidden")["what"] == "index"
    assert stack(asked("mine:Gated")["sides"][0]["grids"][0][0]).tolist() == at.tolist()
    for name in ("mine:Gated", "mine:Hidden"):
        (bias,) = asked(name, what="bias")["sides"][0]["grids"][0]
        np.testing.assert_allclose(stack(bias), of_log(at), atol=1e-12)
        (rows,) = asked(name, what="rows")["sides"][0]["grids"][0]
        assert (rows["name"], stack(rows).tolist()) == ("key rows", np.ones((3, 3, 2)).tolist())
        steps = asked(name, what="steps")["sides"][0]["grids"][0]
        assert [step["name"] for step in steps] == ["distance", "DistanceBias", "RowTable"]
        np.testing.assert_allclose(stack(steps[1]), of_log(at), atol=1e-12)


def test_classes_with_gates_from_the_shell(folder):
    """show prints the bias beside the gate; compare meets the gate with queries of ones."""
    found = report(folder, "show", "mine:Gated(heads=2)", "--query", 3, "--what", "bias")
    assert [matrix["name"] for matrix in found["matrices"]] == ["bias, head 0", "bias, head 1"]
    want = of_log(np.arange(3) - np.arange(3)[:, None], heads=2)
    for h, matrix in enumerate(found["matrices"]):
        np.testing.assert_allclose(values(matrix), want[h], atol=1e-12)
    sides = "mine:Gated(heads=2)", "mine:Log(heads=2)"
    found = report(folder, "compare", *sides, "--reach", 4)
    assert found["what"] == "score"
    for h, head in enumerate(found["heads"]):
        apart = np.subtract(head["curve_a"], head["curve_b"])
        np.testing.assert_allclose(apart, 2.0, atol=1e-6)
        want = 1 + of_log(np.arange(-4, 5), heads=2)[h]
        np.testing.assert_allclose(head["curve_b"], want, atol=1e-6)
    done = tool(folder, "compare", "mine:Hidden", "mine:Log", "--what", "score")
    assert done.returncode == 2
    assert "expected Hidden called with hidden" in done.stderr
    biases = report(folder, "compare", "mine:Hidden(heads=2)", sides[1], "--what", "bias")
    assert all(head["equal_pairs"] == head["pairs"] for head in biases["heads"])


@pytest.mark.parametrize(
    ("position", "options", "said"),
    [
        ("mine:Absent", {}, "expected a class of mine, got no Absent in it"),
        ("absent:Log", {}, "expected a module that Python finds, or one in"),
        ("mine:Log(rate=heads)", {}, "expected options as name=value"),
        ("mine:Bad", {}, "Bad.bias: expected"),
        ("mine:Broken", {}, "KeyError: 'mistake'"),
        ("mine:Log", {"what": "rows"}, "adds no rows"),
        ("mine:Rows", {"what": "bias"}, "adds no bias"),
        ("mine:Log", {"params": "absent.pt"}, "absent.pt"),
        ("mine:Log", {"grids": [(10**5, 10**5, 0)]}, "--query"),
        ("mine:Hidden", {"what": "score", "show": False}, "expected Hidden called with hidden"),
        ("mine:Log+mine:Log", {"what": "index", "show": False}, "is a sum"),
        ("mine:Log+t6", {"show": False}, "t6"),
    ],
)
def test_what_python_refuses(here, position, options, said):
    assert said in asked(position, **options)["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "mine:Absent"], "expected a class of mine, got no Absent in it"),
        (["show", "mine:Log", "--head", "7"], "--head: expected 0 to 3, got 7"),
        (["show", "mine:Log", "--query", "3", "--key", "4"], "q_offset"),
        (["show", "mine:Log", "--buckets", "3"], "--buckets"),
        (["show", "own", "mine"], "expected module:Class"),
        (["compare", "mine:Log(heads=2)", "alibi(heads=3)"], "one position has"),
        (["compare", "mine:Log", "t6"], "t6"),
    ],
)
def test_refusals(folder, words, said):
    done = tool(folder, *words)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line != "of the position"]
    assert len(lines) == 1, done.stderr
    assert said in lines[0]
    assert lines[0].startswith("relpos")


def test_without_python(folder):
    done = run([TOOL, "show", "mine:Log"], cwd=folder, env={"RELPOS_PYTHON": "/no/such"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "relpos show own: cannot run /no/such\n"
