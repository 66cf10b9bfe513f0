"""The lab with positions of one's own, as module:Class."""

import itertools
import json
import sys

import pytest
import relpos
import torch
from relpos._position import named
from relpos.lab import cli, positions

from tests.cli.test_lab import SMALL
from tests.support.cli_tool import TOOL, run

MODULE = '''
import sys
import relpos, torch

print("imported")


class KERPLE(relpos.Position):
    """A logarithm of the distance.

    Chi et al. 2022."""

    def __init__(self, heads, start=1.0):
        super().__init__()
        self.p = torch.nn.Parameter(torch.full((heads, 1), float(start)))
        self.a = torch.nn.Parameter(torch.rand(heads, 1))

    def bias(self, distance):
        return -self.p * torch.log1p(self.a * distance.abs())


class Rows(relpos.Position):
    reach = (-16, 0)

    def __init__(self, head_dim):
        super().__init__()
        self.table = torch.nn.Embedding(17, head_dim)

    def rows(self, distance):
        return self.table(distance + 16)

    def values(self, distance):
        return self.table(distance + 16)


class Gated(Rows):
    def gate(self, query, hidden):
        return query


class Odd(KERPLE):
    def __init__(self, colour):
        super().__init__(4)


class Broken(KERPLE):
    def bias(self, distance):
        return self.p * [][0]


class Late(KERPLE):
    def bias(self, distance):
        if "relpos.lab.worker" in sys.modules:
            raise ValueError("of the training")
        return super().bias(distance)


class Other(torch.nn.Module):
    pass


made = KERPLE(4)
number = 3
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "text.txt").write_text("Wer nur den lieben Gott lässt walten <&>. " * 200)
    (tmp_path / "torch.py").write_text("raise RuntimeError('of the current folder')")
    return tmp_path


SIZES = [*map(str, itertools.chain(*SMALL.items())), "--text", "text.txt"]


def lab(folder, *words):
    return run([TOOL, "lab", *SIZES, *words], cwd=folder, seconds=200)


@pytest.fixture
def mine(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield
    sys.modules.pop("mine", None)


def status(*words):
    """The exit status of a lab in this process."""
    try:
        return cli.main([*SIZES, *words])
    except SystemExit as end:
        return end.code


def test_positions_of_ones_own_are_trained(folder):
    texts = ["t5", "mine:KERPLE", "rope+mine:KERPLE(start=0.5)", "mine:Rows"]
    done = lab(
        folder, "--positions", ",".join(texts), "--compare", "mine:KERPLE", "--json", "--quiet"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout[done.stdout.index("{") :])
    assert [row["scheme"] for row in result["schemes"]] == texts
    for row in result["comparisons"]:
        assert row["relpos"]["losses"] == pytest.approx(row["torch"]["losses"], abs=1e-4)
    page = (folder / "relpos-lab" / "report.html").read_text()
    assert "mine:KERPLE" in page
    assert "A logarithm of the distance." in page


def test_a_class_that_has_changed_is_other_code(mine, folder, monkeypatch):
    text = "rope+mine:KERPLE(start=0.5)"
    before = positions.code_of(text)
    assert positions.code_of("rope+alibi") == []
    monkeypatch.delitem(sys.modules, "mine")
    source = (folder / "mine.py").read_text()
    (folder / "mine.py").write_text(source + "\n# changed\n")
    try:
        assert len(before) == 1
        assert positions.code_of(text) != before
    finally:
        (folder / "mine.py").write_text(source)


def test_a_job_that_fails_leaves_the_others(folder):
    texts = "rope,mine:Late(heads=4),alibi"
    done = lab(folder, "--schemes", texts, "--compare", "off", "--json", "--quiet")
    assert "mine:Late(heads=4): the train job ended with status 1" in done.stderr
    assert "ValueError: of the training" in done.stderr
    result = json.loads(done.stdout[done.stdout.index("{") :])
    assert [row["scheme"] for row in result["schemes"]] == ["rope", "alibi"]
    assert len(result["failures"]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine:Gated", "mine:Gated needs its input hidden in each call"),
        ("mine:Absent", "expected a class of mine, got no Absent in it"),
        ("absent:KERPLE", "expected a module that Python finds, or one in"),
        ("mine:Odd", "write mine:Odd(colour=...)"),
        ("mine:KERPLE(heads=3)", "KERPLE.bias: expected [4"),
        ("mine:KERPLE(heads)", "expected options as name=value"),
        ("mine:Broken", "IndexError"),
        ("mine:Other", "expected a class of positions"),
        ("mine:number", "expected a class of positions, got int"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_what_the_lab_cannot_train(text, said, capsys):
    assert status("--schemes", f"rope,{text}", "--compare", "off") == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_the_tool_says_so_too(folder):
    done = lab(folder, "--schemes", "rope,mine:Broken", "--compare", "off")
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "IndexError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("mine")
def test_a_position_that_pytorch_cannot_compare(capsys):
    assert status("--schemes", "mine:Rows", "--compare", "mine:Rows") == 2
    assert "PyTorch's attention takes a bias per head" in capsys.readouterr().err


def test_texts_and_what_they_make(mine):
    assert named.parts_of("rope+a:B(x='+', y=[1+2])+ c.d:E ") == [
        "rope",
        "a:B(x='+', y=[1+2])",
        "c.d:E",
    ]
    for text in ("a:B", " a.b:C.d ", "a:B(x=1, y='(')", "a:B()"):
        assert named.is_named(text)
    for text in ("rope", "rope(layout=half)", "a:b:c", "rope(x='a:b')", "a:B+c", ""):
        assert not named.is_named(text)
    made = named.make_named("mine:KERPLE(start=2.0)", {"heads": 3})
    assert isinstance(made, relpos.Position)
    assert torch.equal(made.p, torch.full((3, 1), 2.0))
    assert named.make_named("mine:made", {}) is named.make_named("mine:made", {})
    assert named.summary_of(named.named_class("mine:KERPLE")) == "A logarithm of the distance."
    assert named.summary_of(named.named_class("mine:Rows")) == ""


def test_runs(mine):
    runs = positions.runs_of(["rope", "mine:KERPLE", "t5+mine:KERPLE(start=3)"])
    assert runs["mine:KERPLE"].says == "mine:KERPLE: A logarithm of the distance."
    assert len({run.label for run in runs.values()}) == 3
    sizes = {"layers": 2, "heads": 4, "head_dim": 8, "length": 16}
    one, two = positions.make_positions("mine:KERPLE", **sizes)
    assert one is not two
