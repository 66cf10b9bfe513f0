"""The lab: its data, its MIDI, and whole runs as a user starts them."""

import hashlib
import io
import json
import os
import re
import signal
import stat
import struct
import sys
import zipfile
from html.parser import HTMLParser

import numpy as np
import pytest
from relpos.lab import chorales, cli, data, kept, midi, positions, report
from relpos.lab.chorales import FIRST_PITCH, HOLD, LOWEST_PITCH, REST, Note
from relpos.lab.positions import RUNS

from tests import FULL
from tests.support.cli_tool import TOOL, interrupted, names, ran, run

# Large enough to tell the schemes apart, small enough for a test.
GATE = {
    "--steps": 80,
    "--rate": 4e-3,
    "--batch": 8,
    "--length": 128,
    "--tests": "128,1024",
    "--windows": 8,
    "--layers": 2,
    "--width": 64,
    "--threads": 1,
}
LEARN = list(RUNS) if FULL else ["rope", "alibi"]
SMALL = {**GATE, "--steps": 4, "--batch": 2, "--length": 64, "--tests": "128,256", "--windows": 2}


def command(*arguments, **sizes):
    """The command of a run; `sizes` are GATE or SMALL with their dashes."""
    words = [str(word) for pair in sizes.items() for word in pair]
    return [sys.executable, "-m", "relpos.lab", *words, *map(str, arguments)]


def lab(sizes, *arguments):
    done = run(command(*arguments, **sizes), seconds=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def reaches(stage):
    """Whether a running lab writes a line that begins so."""
    return lambda process: any(line.startswith(stage) for line in process.stderr)


# ---- chorales


def note(step, duration, *, octave=4, extra=""):
    return (
        f"<note><pitch><step>{step}</step><octave>{octave}</octave></pitch>"
        f"<duration>{duration}</duration>{extra}</note>"
    )


def write_mxl(path, parts, prolog=""):
    score = "".join(
        f'<part id="P{i}"><measure number="1"><attributes><divisions>4</divisions></attributes>'
        f"{part}</measure></part>"
        for i, part in enumerate(parts)
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "META-INF/container.xml",
            '<container><rootfiles><rootfile full-path="score.xml"/></rootfiles></container>',
        )
        archive.writestr("decoy.xml", "<score-partwise/>")
        archive.writestr("score.xml", f"{prolog}<score-partwise>{score}</score-partwise>")


def test_a_chorale_becomes_tokens(tmp_path):
    soprano = note("C", 2) + note("D", 2, extra='<tie type="start"/>')
    soprano += note("D", 2, extra='<tie type="stop"/>')
    soprano += "<note><rest/><duration>2</duration></note>"
    alto = note("A", 4) + "<note><chord/><pitch><step>C</step><octave>5</octave></pitch>"
    alto += "<duration>4</duration></note><backup><duration>4</duration></backup>" + note("E", 4)
    sharp = "<note><pitch><step>F</step><alter>1</alter><octave>3</octave></pitch>"
    sharp += "<duration>4</duration></note>"
    bass = "<forward><duration>6</duration></forward>" + note("C", 2, octave=3)
    write_mxl(tmp_path / "a.mxl", [soprano, alto, sharp, bass])

    def pitch(number):
        return FIRST_PITCH + number - LOWEST_PITCH

    grid = chorales.read_chorale(tmp_path / "a.mxl")
    assert grid.T.tolist() == [
        [pitch(60), HOLD, pitch(62), HOLD, HOLD, HOLD, REST, REST],
        [pitch(69), HOLD, HOLD, HOLD, REST, REST, REST, REST],
        [pitch(54), HOLD, HOLD, HOLD, REST, REST, REST, REST],
        [REST] * 6 + [pitch(48), HOLD],
    ]
    assert chorales.notes_of(grid) == [
        Note(0, 60, 0, 2),
        Note(1, 69, 0, 4),
        Note(2, 54, 0, 4),
        Note(0, 62, 2, 4),
        Note(3, 48, 6, 2),
    ]


@pytest.mark.parametrize(
    ("parts", "prolog", "says"),
    [
        ([note("C", 4)] * 3, "", "expected 4 parts, found 3"),
        ([note("C", 4)] * 4, '<!DOCTYPE s [<!ENTITY a "b">]>', "entities"),
        ([note("C", 4, octave=8)] * 4, "", "pitch 108"),
        ([""] * 4, "", "no notes"),
        (["<note>"] * 4, "", None),
        ([note("C", "many")] * 4, "", None),
        ([note("C", 1e30)] * 4, "", None),
        ([note("H", 4)] * 4, "", None),
        ([note("C", 4, octave="").replace("<step>", "<step>b")] * 4, "", None),
        (["<attributes><divisions>0</divisions></attributes>" + note("C", 4)] * 4, "", None),
    ],
)
def test_what_is_no_chorale_says_why(tmp_path, parts, prolog, says):
    write_mxl(tmp_path / "a.mxl", parts, prolog)
    with pytest.raises(chorales.NotAChorale, match=says):
        chorales.read_chorale(tmp_path / "a.mxl")


def test_a_damaged_file_is_no_chorale(tmp_path):
    write_mxl(tmp_path / "a.mxl", ["<note><rest/><duration>4</duration></note>"] * 4)
    whole = (tmp_path / "a.mxl").read_bytes()
    for length in range(0, len(whole), 37):
        (tmp_path / "b.mxl").write_bytes(whole[:length])
        with pytest.raises(chorales.NotAChorale):
            chorales.read_chorale(tmp_path / "b.mxl")


def test_music21_is_read_but_not_imported():
    corpus = data.load_chorales(None, 64)
    assert "music21" not in sys.modules
    assert len(corpus.train) > 250_000
    assert 0.08 < len(corpus.test) / (len(corpus.train) + len(corpus.test)) < 0.18
    assert len(corpus.train) % 4 == len(corpus.test) % 4 == 0
    assert corpus.test.max() < corpus.vocabulary


def test_the_test_pieces_are_fixed():
    for name in map("bwv{}.mxl".format, range(40)):
        first_byte = hashlib.sha256(name.encode()).digest()[0]
        assert data.held_out(name) == (first_byte < 32)
    assert data.held_out("bwv101.7.mxl")
    assert not data.held_out("bwv1.6.mxl")


# ---- windows


PLACES = np.arange(6000)
COUNTED = data.Corpus("text", "numbers", PLACES, PLACES, 6000, 4, PLACES[:8], "numbers")


def test_every_length_is_scored_on_the_same_tokens():
    ends = data.window_ends(COUNTED, longest=2048, windows=16)
    assert len(ends) == 16
    assert ends[0] == 2048
    assert (ends % COUNTED.align == 0).all()
    assert ends[-1] < len(COUNTED.test)
    assert (np.diff(ends) >= data.SCORED - COUNTED.align).all()


def test_batches_depend_on_the_seed_alone():
    draw = [data.batch_starts(COUNTED, steps=5, batch=3, length=64, seed=s) for s in (1, 1, 2)]
    assert (draw[0] == draw[1]).all()
    assert (draw[0] != draw[2]).any()
    assert (draw[0] % COUNTED.align == 0).all()


def test_windows_of_a_text_are_aligned(tmp_path):
    """To images of 100 bytes: the byte says which image, and the first seven eighths are 24."""
    path = tmp_path / "images"
    path.write_bytes(np.repeat(np.arange(28, dtype=np.uint8), 100).tobytes())
    corpus = data.load_text(path, 64, align=100)
    assert (len(corpus.train), len(corpus.test)) == (2400, 400)
    starts = data.batch_starts(corpus, steps=5, batch=3, length=100, seed=0).ravel()
    assert all(len(set(corpus.train[start : start + 100])) == 1 for start in starts)
    for end in data.window_ends(corpus, longest=200, windows=3):
        assert len(set(corpus.test[end - 100 : end])) == 1


def test_the_unigram_loss_is_that_of_the_frequencies():
    train, test = np.array([0] * 7 + [1]), np.zeros(200, dtype=np.int64)
    corpus = data.Corpus("text", "coins", train, test, 2, 1, test[:1], "coins")
    assert data.unigram_loss(corpus, np.array([150])) == pytest.approx(-np.log(8 / 10))


# ---- positions


def test_texts_are_divided_outside_brackets():
    text = "rope, alibi(slopes=[1, 0.5]) ,shaw(a=1, b=',') + t5,,rope,[1,2],'a,b'"
    assert positions.split_texts(text) == [
        "rope",
        "alibi(slopes=[1, 0.5])",
        "shaw(a=1, b=',') + t5",
        "[1,2]",
        "'a,b'",
    ]


def test_runs_have_labels_and_colours_of_their_own():
    texts = ["rope", "alibi(slopes=geometric)", "alibi(slopes=geometric, heads=4)", "rope+t5"]
    runs = positions.runs_of(texts)
    assert runs["rope"] is RUNS["rope"]
    for of in ("label", "colour"):
        assert len({getattr(run, of) for run in runs.values()}) == len(texts)
    assert max(len(run.label) for run in runs.values()) <= 24


# ---- MIDI


def events_of(file):
    """(tick, bytes) of a track, to its end; knows the events that we write."""
    assert file.read(4) == b"MTrk"
    (length,) = struct.unpack(">I", file.read(4))
    end, tick, event = file.tell() + length, 0, b""
    while file.tell() < end:
        delta, more = 0, True
        while more:
            (byte,) = file.read(1)
            delta, more = delta << 7 | byte & 0x7F, byte >= 0x80
        tick += delta
        event = file.read(2)
        if event[0] == 0xFF:  # a meta event, whose length is its third byte
            event += (size := file.read(1)) + file.read(*size)
        elif event[0] & 0xF0 != 0xC0:
            event += file.read(1)
        yield tick, event
    assert (file.tell(), event) == (end, b"\xff\x2f\x00")


def notes_in_midi(raw):
    file = io.BytesIO(raw)
    assert file.read(8) == b"MThd" + struct.pack(">I", 6)
    kind, tracks, division = struct.unpack(">HHH", file.read(6))
    assert kind == 1
    step = division // chorales.STEPS_PER_QUARTER
    notes, sounding = [], {}
    for _ in range(tracks):
        for tick, event in events_of(file):
            key = (event[0] & 0x0F, event[1])
            assert tick % step == 0
            if event[0] & 0xF0 == 0x90:
                assert key not in sounding
                sounding[key] = tick
            elif event[0] & 0xF0 == 0x80:
                begin = sounding.pop(key)
                notes.append(Note(*key, begin // step, (tick - begin) // step))
    assert not sounding
    assert file.read() == b""
    return sorted(notes, key=lambda n: (n.start, n.voice))


def test_midi_holds_the_notes():
    notes = [Note(0, 60, 0, 4), Note(3, 40, 0, 300), Note(0, 60, 4, 1), Note(1, 70, 5, 2)]
    assert notes_in_midi(midi.midi_bytes(notes, title="four notes")) == notes


# ---- whole runs


class Page(HTMLParser):
    """Collects what a page refers to, and checks that its elements close."""

    EMPTY = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.seen = [], [], set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.references += [v for k, v in attributes if k in ("src", "href", "srcset", "action")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(folder, *, continuation):
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    beside = {ref for ref in page.references if not ref.startswith("data:")}
    assert beside == {"results.json"} | ({continuation} if continuation else set())
    assert all((folder / name).is_file() for name in beside)
    assert not re.search(r"https?:|@import|url\(", text)
    assert "NaN" not in text
    assert ">nan<" not in text
    return text


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    some = [] if FULL else ["--schemes", ",".join(LEARN)]
    printed = lab(GATE, "--out", folder, "--json", "--quiet", "--check", *some)
    return folder, json.loads(printed.stdout)


def test_schemes_learn_and_alibi_holds_where_rope_does_not(gate):
    _, result = gate
    losses = {row["scheme"]: row["tests"] for row in result["schemes"]}
    assert list(losses) == LEARN
    for scheme, tests in losses.items():
        assert tests["128"] < result["unigram_loss"], scheme
    assert losses["alibi"]["1024"] < losses["rope"]["1024"]
    assert all(check["held"] for check in result["checks"])
    for row in result["comparisons"]:
        assert row["relpos"]["losses"] == pytest.approx(row["torch"]["losses"], abs=1e-4)


def test_the_report_is_one_page_with_everything(gate):
    folder, result = gate
    text = check_page(folder, continuation="continuation.mid")
    for word in [RUNS[scheme].label for scheme in LEARN] + ["Train short, test long"]:
        assert word in text
    for row in result["schemes"]:
        assert f"{row['tests']['1024']:.3f}" in text
    assert json.loads((folder / "results.json").read_text()) == result
    notes = notes_in_midi((folder / "continuation.mid").read_bytes())
    assert max(n.start for n in notes) > 64  # beyond the prompt


TEXTS = ["xpos", "rope+alibi", "alibi(slopes=geometric, symmetric=false)", "kerple_log"]


@pytest.fixture(scope="module")
def small(own, tmp_path_factory):
    """(folder, the finished process) of a run of TEXTS on a text of one's own."""
    folder = tmp_path_factory.mktemp("small")
    words = ["--text", own, "--out", folder, "--schemes", ",".join(TEXTS), "--compare", "off"]
    return folder, lab(SMALL, *words)


def test_a_text_of_ones_own(small):
    folder, done = small
    assert "alibi" in done.stdout
    assert str(folder / "report.html") in done.stdout
    assert re.search(r"\d\.\d steps/s +\d+:\d\d left +loss \d\.\d{3}", done.stderr)
    assert "\r" not in done.stderr
    assert len((folder / "continuation.txt").read_bytes()) == 256 + 512


def test_any_scheme_by_its_text(small):
    folder, _ = small
    result = json.loads((folder / "results.json").read_text())
    assert [row["scheme"] for row in result["schemes"]] == TEXTS
    parameters = {row["scheme"]: row["position_parameters"] for row in result["schemes"]}
    assert parameters["kerple_log"] == 2 * 2 * 4  # layers, numbers of a head, heads
    assert parameters["rope+alibi"] == 0
    page = check_page(folder, continuation="continuation.txt")
    assert all(text in page for text in TEXTS)


def test_a_second_run_prints_the_same_losses(own, small, tmp_path):
    first = json.loads((small[0] / "results.json").read_text())
    words = ["--text", own, "--out", tmp_path, "--schemes", TEXTS[-1], "--compare", "off"]
    (row,) = json.loads(lab(SMALL, *words, "--json", "--quiet").stdout)["schemes"]
    before = first["schemes"][-1]
    assert row["train_losses"] == before["train_losses"]
    assert row["tests"] == before["tests"]


def test_ctrl_c_keeps_what_is_done(own, tmp_path):
    words = command("--text", own, "--out", tmp_path, "--schemes", "alibi,none,rope", **SMALL)
    status, out, err = interrupted(words, reaches("[2/3]"))
    assert status == 130, err
    assert "alibi" in out
    result = json.loads((tmp_path / "results.json").read_text())
    assert [row["scheme"] for row in result["schemes"]] == ["alibi"]
    assert result["interrupted"]
    assert result["stopped"]["scheme"] == "none"
    assert "interrupted" in check_page(tmp_path, continuation="continuation.txt")


@pytest.mark.parametrize("number", [signal.SIGTERM, *([signal.SIGHUP] if FULL else [])])
def test_a_signal_that_ends_it_leaves_what_resume_needs(own, tmp_path, number):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    own_folders = {"TMPDIR": scratch, "TORCHINDUCTOR_CACHE_DIR": tmp_path / "inductor"}
    words = command("--text", own, "--out", tmp_path / "out", "--schemes", "alibi", **SMALL)

    status, _, err = interrupted(words, reaches("[1/1]"), number, env=os.environ | own_folders)
    assert status == 128 + number, err
    assert names(scratch) == []
    assert names(tmp_path / "out") == [kept.FOLDER]


def test_nothing_in_the_current_folder_is_imported(own, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("torch", "numpy", "json", "runpy"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current folder')")
    words = command("--text", own, "--out", tmp_path / "out", "--schemes", "none", **SMALL)[3:]
    paths = f":{os.environ.get('PYTHONPATH', '')}:"
    own_python = {"RELPOS_PYTHON": sys.executable, "PYTHONPATH": paths}
    tool = [TOOL, "lab", *words, "--compare", "off"]
    ran(tool, cwd=here, env=os.environ | own_python, seconds=200)


def test_a_replaced_report_keeps_its_modes_and_comes_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o604)
    report._put(tmp_path, {"a": b"new", "b": b"new"})
    assert (tmp_path / "a").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o604
    with pytest.raises(TypeError):
        report._put(tmp_path, {"a": b"newer", "c": None})
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_that_cannot_be_written_is_known_before_the_training(own, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = ["--text", own, "--tests", "128", "--out", tmp_path / "file" / "out"]
    assert cli.main(list(map(str, words))) == 2
    assert "--out" in capsys.readouterr().err


def test_without_the_chorales_it_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(chorales, "find_corpus", lambda: None)
    assert cli.main(["--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "pip install --no-deps music21==10.5.1" in said
    assert "--text FILE" in said


def test_a_scheme_that_pytorch_cannot_compare(own, capsys):
    assert cli.main(["--compare", "shaw", "--text", str(own), "--tests", "128"]) == 2
    assert "a bias per head" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--schemes", "alibi,ropes"], "no scheme 'ropes'"),
        (["--schemes", ","], "expected positions"),
        (["--schemes", "forgetting"], "needs its input log_f"),
        (["--schemes", "fire(init_L=8)"], "--schemes: 'fire(init_L=8)'"),
        (["--compare", "t6"], "--compare"),
        (["--tests", "64"], "at least 128 tokens"),
        *(([f"--{o}", n], "from") for o, n in (("steps", "0"), ("seed", "-1"), ("seed", 23 * "9"))),
        (["--width", "100", "--heads", "3"], "multiple"),
        (["--text", "/nowhere/at/all"], "cannot read"),
        (["--text", os.devnull], "use a larger file"),
    ],
)
def test_bad_options_end_with_status_2(arguments, says, capsys):
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert says in capsys.readouterr().err
