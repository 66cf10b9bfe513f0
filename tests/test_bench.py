"""The bench: its rows, its proofs, its report. What it measures is no matter of tests."""

import json
import subprocess
import sys
import time

import pytest
import torch
from cli_tool import ROOT, call, output, refusal, report

sys.path.insert(0, str(ROOT / "bench"))

import clock
import formulas
import peers
import proof
import report as pages
import rows as bench_rows

import bench as program

PLACES = set(range(1, 24))  # lines of the table of targets
QUICK = ["--seconds", "0.01", "--rounds", "1", "--patience", "0"]
SHORT = clock.Budget(0.01)


def test_tool_lists_rows():
    rows = report("bench", "--list")["rows"]
    text = output("bench", "--list")
    assert all(row["name"] in text for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)
    for scheme in report("list")["schemes"]:
        assert any(row["name"].startswith(scheme["name"]) for row in rows)
    for row in rows:
        if row["floor"] is None:
            continue
        worse, better = sorted((row["floor"], row["stretch"]), reverse=row["better"] == "lower")
        assert worse == row["floor"] != better, row


def test_every_line_of_the_targets_has_a_row():
    listed = report("bench", "--list")["rows"]
    ours = {row["place"] for row in listed if row["floor"] is not None}
    theirs = {case.place for case in bench_rows.all_cases() if case.floor is not None}
    assert ours | theirs == PLACES
    names = [case.name for case in bench_rows.all_cases()]
    assert len(set(names)) == len(names)


def test_tool_measures_the_machine_and_rows(tmp_path):
    words = ["bench", "--case", "call overhead", *QUICK]
    path = tmp_path / "bench.json"
    result = call(*words, "--json", path)
    assert result.returncode == 0, result.stderr
    assert "call overhead, B 1, H 1, L 12, C++ [us]" in result.stdout
    assert "GFLOP/s" in result.stdout
    found = json.loads(path.read_text())
    machine, (row,) = found["machine"], found["rows"]
    assert machine["peak_all"] > 1
    assert machine["peak_one"] > 1
    assert machine["read_bandwidth"] > 0.1
    assert 0 < machine["issue_share"] <= 1
    assert machine["counts"] == (machine["void"] == "")
    assert row["low"] <= row["value"] <= row["high"]
    assert row["values"] == [row["value"]]
    assert row["value"] == pytest.approx(1e3 * row["milliseconds"]["relpos"])


def test_tool_shares_of_peak_are_percentages():
    found = report("bench", "--case", "short: B 8", "--threads", 1, *QUICK)
    (row,), machine = found["rows"], found["machine"]
    assert machine["threads"] == 1
    flops = 4 * 8 * 8 * 128 * 128 * 64
    expected = 100 * flops / (1e6 * row["milliseconds"]["relpos"]) / machine["peak_all"]
    assert row["value"] == pytest.approx(expected)


def test_tool_measures_another_target_and_the_machine_alone(tmp_path):
    path = tmp_path / "bench.json"
    text = output("bench", "--target", "baseline", "--machine", "--threads", 1, "--json", path)
    assert "target baseline, 1 threads" in text
    assert "GB/s read" in text
    assert "row" not in text
    found = json.loads(path.read_text())
    assert found["machine"]["target"] == "baseline"
    assert found["rows"] == []


def test_tool_probes_memory():
    found = report("bench", "--memory-probe", 2048)
    assert found["input_bytes"] == 3 * 2048 * 64 * 4
    assert 0 < found["peak_bytes"] < 2048 * 2048 * 4


def test_tool_refuses():
    assert "no row's name contains nonsense" in refusal("bench", "--case", "nonsense")
    assert "RELPOS_TARGET" in refusal("bench", "--target", "nonsense", "--machine")
    assert "--seconds" in refusal("bench", "--seconds", "0")
    assert "/nowhere/x: cannot write" in refusal("bench", "--json", "/nowhere/x")


def test_unequal_sides_are_not_timed():
    def wrong(shape, dtype):
        match = formulas.plain(shape, dtype)
        match.ours = lambda: formulas.relpos.attention(*match.leaves, scale=0.13)
        return match

    shape = (1, 2, 64, 64, 16)
    proof.prove(formulas.plain, shape)
    with pytest.raises(proof.Unequal, match="not timed"):
        proof.prove(wrong, shape)
    case = bench_rows.peer_case(1, "wrong", 1, 2, bench_rows.against_formula(wrong, shape, True))
    (row,) = bench_rows.measure(case, SHORT)
    assert "not timed" in row["error"]
    assert row["floor"] == 1


@pytest.mark.parametrize(
    "build",
    [
        formulas.plain,
        formulas.causal,
        formulas.trained_bias,
        formulas.bias_rpe,
        formulas.shaw_einsum,
        formulas.shaw_gather,
        formulas.music_skew,
    ],
)
def test_formulas_are_proved(build):
    proof.prove(build, (2, 2, 70, 70, 16))


def test_bias_rpe_takes_queries_fewer_than_keys():
    proof.prove(formulas.bias_rpe, (2, 2, 70, 80, 16))


def test_a_contest_has_a_row_for_each_peer(monkeypatch):
    def wrong(q, k, v, causal, bias):
        return lambda: q, peers.same

    def absent(q, k, v, causal, bias):
        raise peers.Refused("not installed")

    monkeypatch.setitem(peers.PEERS, "wrong", wrong)
    monkeypatch.setitem(peers.PEERS, "absent", absent)
    names = [peers.TORCH, "wrong", "absent"]
    shape = (1, 2, 64, 64, 16)
    run = bench_rows.against_peers(formulas.trained_bias, shape, names)
    best, *rows = bench_rows.measure(bench_rows.peer_case(1, "all", 1, 2, run, names), SHORT)
    assert best["name"] == "all"
    assert best["floor"] == 1
    assert len(best["values"]) >= 3
    by_name = {row["name"]: row for row in rows}
    assert set(by_name) == {f"all: {name}" for name in names}
    assert by_name[f"all: {peers.TORCH}"]["values"] == best["values"]
    assert "not timed" in by_name["all: wrong"]["error"]
    assert by_name["all: absent"]["error"] == "not installed"
    assert all(row["floor"] is None for row in rows)


def test_peers_that_are_not_installed_say_so(monkeypatch):
    for module in ("onnxruntime", "zentorch"):
        monkeypatch.setitem(sys.modules, module, None)
    q = torch.zeros(1, 1, 4, 4)
    for name in ("ONNX Runtime", "zentorch"):
        with pytest.raises(peers.Refused, match="Error"):
            peers.PEERS[name](q, q, q, False, None)
    assert peers.version("no-such-package") == "not installed"


def test_training_loop_is_compared_with_its_parts(monkeypatch):
    def turns(calls, _):
        for part in calls:
            part()
        return clock.Turns([[0.3, 0.4], [0.1, 0.1], [0.1, 0.1]])

    monkeypatch.setattr(bench_rows, "take_turns", turns)
    (case,) = (c for c in bench_rows.all_cases() if "training loop" in c.name)
    (row,) = bench_rows.measure(case, SHORT)
    assert row["values"] == pytest.approx([50, 100])
    expected = {"loop": 350, "linear alone": 100, "attention alone": 100}
    assert row["milliseconds"] == pytest.approx(expected)


def test_turns_alternate():
    order = []

    def turn(n):
        order.append(n)
        end = clock.time.perf_counter() + 0.006
        while clock.time.perf_counter() < end:
            pass

    turns = clock.take_turns([lambda: turn(0), lambda: turn(1)], clock.Budget(0.001))
    assert order == [0, 1, 0, 1, 0, 1, 1, 0, 0, 1]
    assert [len(t) for t in turns.seconds] == [3, 3]


class Script:
    """IssueSlots whose looks a test has written down."""

    best = 10.0

    def __init__(self, *looks):
        self.looks = iter(looks)

    def look(self):
        return next(self.looks)

    def quiet(self, looked):
        return looked >= 8.5


def test_rounds_beside_neighbours_do_not_count():
    order = []

    def call(n):
        order.append(n)
        time.sleep(0.006)

    calls = [lambda: call(0), lambda: call(1)]
    # The first turn's look; then of each round one before, again until it is quiet, one between the
    # calls and one after.
    slots = Script(5, 9, 5, 9, 6, 9, 9, 9, 9, 10, 9, 10, 10, 10)
    turns = clock.take_turns(calls, clock.Budget(0.001, slots, 60))
    assert turns.looks == [5, 9, 9, 10]
    # Turns that warm up; a round that does not count, one in the same order, one in the other.
    assert order == [0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1]
    values, noisy = clock.counted([1, 2, 3, 4], turns.looks, turns.best)
    assert (values, noisy) == ([2, 3, 4], False)
    assert turns.median_ms(0) == 1e3 * sorted(turns.seconds[0][1:])[1]

    # Without patience: rounds that were not quiet before do not count either.
    slots = Script(5, 5, 10, 10, 5, 10, 10, 5, 10, 10)
    turns = clock.take_turns(calls, clock.Budget(0.001, slots, 0))
    assert turns.looks == [5, 5, 5]
    assert clock.counted(turns.seconds[0], turns.looks, 10.0) == (turns.seconds[0], True)


def test_issue_slots_are_those_of_the_tool():
    with clock.IssueSlots(program.TOOL, best=1e-3) as slots:
        looked = slots.look()
        assert slots.best == looked > 1e-3
        assert slots.quiet(looked)
        assert not slots.quiet(0.8 * looked)
        slots._tool.kill()
        with pytest.raises(clock.Lost, match="ended early"):
            [slots.look() for _ in range(2)]


ROW = {"place": 1, "name": "x", "unit": "% of peak", "better": "higher", "floor": 70, "stretch": 80}


def measured(values, **more):
    return {**ROW, "values": values, "milliseconds": {"relpos": 1.0}, **more}


def test_runs_are_joined_by_their_medians():
    one = pages.joined([[measured([60, 71, 90])]])[0]
    assert (one["value"], one["runs"]) == (71, [71])
    assert one["low"] < 71 < one["high"]
    runs = [[measured([v, v, 99])] for v in (71, 75, 69, 80, 78)]
    five = pages.joined(runs)[0]
    assert (five["value"], five["low"], five["high"], five["rounds"]) == (75, 69, 80, 15)


def test_noisy_rows_do_not_count_beside_quiet_ones():
    quiet = pages.judged(measured([75, 76, 77, 1], looks=[9, 9, 10, 5]), 10)
    assert (quiet["values"], quiet["noisy"]) == ([75, 76, 77], False)
    noisy = pages.judged(measured([10, 75], looks=[5, 10]), 10)
    assert (noisy["values"], noisy["noisy"]) == ([10, 75], True)
    quiet, noisy = measured([75]), measured([10], noisy=True)
    assert pages.join([noisy, quiet])["value"] == 75
    alone = pages.join([noisy])
    assert alone["value"] == 10
    assert "noisy" in pages.line(alone)


def test_failures_do_not_hide_measurements():
    failed = {**ROW, "error": "no"}
    assert pages.join([measured([75]), failed])["value"] == 75
    assert pages.join([failed])["error"] == "no"


def test_verdicts():
    assert pages.reached({**ROW, "value": 81}) == "stretch"
    assert pages.reached({**ROW, "value": 75}) == "floor"
    assert pages.reached({**ROW, "value": 69}) == "**missed**"
    lower = {**ROW, "better": "lower", "floor": 4, "stretch": 1}
    assert [pages.reached({**lower, "value": v}) for v in (0, 2, 5)] == [
        "stretch",
        "floor",
        "**missed**",
    ]
    free = {**ROW, "floor": None, "unit": "x faster"}
    assert [pages.reached({**free, "value": v}) for v in (0.9, 1.1)] == ["lost", "won"]


def test_merging_replaces_rows_by_name():
    kept = pages.joined([[measured([1]), measured([2], name="y", place=2)]])
    rows = pages.merged(pages.joined([[measured([5])]]), kept)
    assert [(row["name"], row["value"]) for row in rows] == [("x", 5), ("y", 2)]


def test_limits_are_of_the_peak():
    row = measured([1.2], flops=1e9, milliseconds={"relpos": 8.0, "torch": 10.0})
    pages.add_limits([row], 200.0)
    assert row["at_peak"] == pytest.approx(2.0)


MACHINE = {
    "cpu": "a CPU", "family": 1, "model": 2, "target": "avx2", "threads": 2, "peak_one": 60.0,
    "peak_all": 119.0, "read_bandwidth": 20.0, "look": 39.6, "best_look": 40.0,
    "issue_share": 0.99,
    "counts": True, "void": "",
}  # fmt: skip
VOID = {**MACHINE, "peak_all": 61.0, "counts": False, "void": "they share a core"}


def test_the_end_of_a_run_may_make_it_void():
    later = {**VOID, "look": 20.4, "best_look": 50.0, "read_bandwidth": 25.0}
    for pair in ((MACHINE, later), (later, MACHINE)):
        both = pages.later_too(*pair)
        assert (both["counts"], both["void"]) == (False, "they share a core")
        assert (both["peak_all"], both["read_bandwidth"]) == (119.0, 25.0)
        assert both["issue_share"] == 0.6
    assert pages.later_too(MACHINE, MACHINE) == pytest.approx(MACHINE)


def test_page_has_every_row_and_the_command():
    run = {"machine": {**MACHINE, "date": "then"}, "rows": [measured([75])]}
    old = {**ROW, "name": "gone", "error": "not installed", "date": "long ago"}
    found = program.result([run], {"machines": [], "rows": [old]})
    text = pages.page(found)
    assert "| x | 70 | 80 | 75 % of peak |" in text
    assert "| gone | 70 | 80 | not measured |" in text
    assert "1 rows are kept from earlier: long ago." in text
    assert "`make bench" in text
    assert "a CPU" in text


def test_limits_are_those_of_the_medians():
    def run(ms):
        row = measured([1.0], name="z", flops=1e9, milliseconds={"relpos": 8.0, "torch": ms})
        return {"machine": {**MACHINE, "peak_all": 200.0, "date": "now"}, "rows": [row]}

    found = program.result([run(ms) for ms in (10.0, 20.0, 90.0)], {"machines": [], "rows": []})
    assert found["rows"][0]["at_peak"] == pytest.approx(4.0)


def test_void_runs_do_not_count():
    void = {"machine": {**VOID, "date": "now"}, "rows": [measured([10]), measured([3], name="y")]}
    runs = [void] + [
        {"machine": {**MACHINE, "date": "now"}, "rows": [measured([v])]} for v in (71, 75)
    ]
    found = program.result(runs, {"machines": [], "rows": []})
    assert {row["name"]: row["value"] for row in found["rows"]} == {"x": 73, "y": 3}
    assert "void: they share a core" in pages.page(found)
    alone = program.result([void], {"machines": [], "rows": []})
    assert alone["rows"][0]["value"] == 10


def run_program(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", [program.__file__, *map(str, words)])
    program.main()


def test_program_runs_and_merges(tmp_path, monkeypatch, capfd):
    out = tmp_path / "bench.json"
    for name in ("call overhead, B 1, H 1, L 12, C++", "short: B 8, H 8"):
        merge = ["--merge", out] if out.exists() else []
        run_program(monkeypatch, "--quick", "--out", out, "--case", name, *merge)
    found = json.loads(out.read_text())
    assert [row["place"] for row in found["rows"]] == [16, 17]
    assert len(found["machines"]) == 2
    page = capfd.readouterr().out
    assert all(row["name"] in page for row in found["rows"])


def test_program_lists_every_row():
    run = subprocess.run(
        [sys.executable, program.__file__, "--list"], capture_output=True, text=True, check=True
    )
    listed = [line.rsplit(" [", 1)[0] for line in run.stdout.splitlines()]
    for row in report("bench", "--list")["rows"]:
        assert row["name"] in listed
    for case in bench_rows.all_cases():
        assert case.name in listed


def test_program_refuses_a_page_with_holes(monkeypatch, capfd):
    with pytest.raises(SystemExit, match="2"):
        run_program(monkeypatch, "--case", "overhead", "--write-docs")
    assert "--merge" in capfd.readouterr().err
