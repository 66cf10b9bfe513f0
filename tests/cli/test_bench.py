"""The benches: their rows, their proofs, their reports. What they measure is no matter of tests."""

import json
import mmap
import os
import platform
import sys
import time

import pytest
import relpos
import torch

from tests import ROOT
from tests.support.cli_tool import TOOL, interrupted, output, refusal, report, run

sys.path.insert(0, str(ROOT / "bench"))

import case as cases
import clock
import contests
import formulas
import measure
import peers
import report as pages
import rows as bench_rows
import scaling

import bench as program

SHORT = clock.Budget(0.01)
SMALL = (1, 2, 64, 64, 16)

# ---- relpos bench


def test_tool_times_every_scheme():
    found = report("bench", "--length", 70, "--seconds", 0.001, "--threads", 1)
    assert [row["scheme"] for row in found["schemes"]] == [s.name for s in relpos.schemes()]
    for row in found["schemes"]:
        assert ("error" in row) != ("forward" in row), row
        for name in ("forward", "backward"):
            timed = row.get(name, {"rounds": 3, "ratio_low": 1, "ratio": 1, "ratio_high": 1})
            assert timed["rounds"] >= 3
            assert timed["ratio_low"] <= timed["ratio"] <= timed["ratio_high"]
    assert found["machine"]["peak_gflops"] > 0
    assert found["machine"]["read_gb_per_s"] > 0
    assert found["machine"]["threads"] == 1
    assert found["machine"]["target"] == relpos.show_config()["target"]


def test_tool_prints_a_table_as_long_as_it_is_read():
    words = f"{TOOL} bench --scheme t5 --length 70 --seconds 0.001 --causal | head -8"
    read = run(["bash", "-c", words], env=os.environ | {"RELPOS_TARGET": "baseline"})
    for part in ("SIMD target baseline", "L 70, D 64, causal", "\nt5(heads=8)"):
        assert part in read.stdout
    assert read.stderr == ""
    assert "floor" not in read.stdout + output("bench", "--help")


def test_tool_refuses():
    assert "one of alibi, alibi_2d" in refusal("bench", "--scheme", "t6")
    for flag, values in {
        "--seconds": [0, -1, "nan"],
        "--length": [0, 2**63 - 1],
        "--threads": [-1, 100_000],
        "--case": ["x"],
    }.items():
        for value in values:
            assert flag in refusal("bench", f"{flag}={value}", seconds=10)


def test_tool_ends_at_an_interrupt():
    command = [TOOL, "bench", "--length", "16384", "--seconds", "600"]
    found = interrupted(command, lambda process: process.stdout.readline())  # of the machine
    assert (found[0], found[2]) == (130, "relpos bench: interrupted\n")


# ---- rows


def test_schemes_have_rows_by_themselves():
    every = bench_rows.all_cases()
    names = [name for case in every for name in case.names()]
    assert len(set(names)) == len(names)
    for scheme in relpos.schemes():
        for end in ("forward", "backward"):
            assert any(n.startswith(scheme.name) and n.endswith(end) for n in names), scheme.name
    for case in every:
        floor, stretch = case.target
        better = sorted((floor or 0, stretch or floor or 0), reverse=case.better == "lower")
        assert better[0] == (floor or 0), case.name


def test_a_scheme_that_is_missing_says_so(monkeypatch):
    monkeypatch.setitem(bench_rows.CHOSEN, "nonsense", bench_rows.Chosen(forward=(2, 1)))
    (case, _) = (c for c in bench_rows.scheme_cases() if c.name.startswith("nonsense"))
    (row,) = measure.measure(case, SHORT)
    assert "no scheme nonsense" in row["error"]
    assert row["floor"] == 2


def test_a_scheme_is_timed_against_plain():
    make = bench_rows.construct
    for scheme in relpos.schemes():
        position = make(scheme.name, SMALL, {})
        case = bench_rows.against_plain("x", lambda p=position: p, SMALL, (2, 1), backward=True)
        (row,) = measure.measure(case, SHORT)
        seconds = zip(*row["seconds"].values(), strict=True)
        assert row["values"] == [ours / plain for ours, plain in seconds]


@pytest.mark.parametrize("end", ["C++", "Python", "t5, Python"])
def test_calls_that_compute_nothing_are_timed(end):
    (case,) = (c for c in bench_rows.all_cases() if c.name == f"call, B 1, H 1, L 12, {end}")
    (row,) = measure.measure(case, SHORT)
    assert min(row["values"]) > 0, row
    assert list(row["seconds"]) in (["1000 calls"], ["relpos", "torch SDPA"])


def test_shares_of_the_peak_are_percentages():
    shape = (2, 1, 100, 100, 16)
    assert bench_rows.flops_of(shape, causal=False, backward=False) == 4 * 2 * 100 * 100 * 16
    assert bench_rows.flops_of(shape, causal=True, backward=True) == 5 * 2 * 100 * 100 * 16
    (row,) = measure.measure(bench_rows.peak_case("x", SMALL, (70, 80)), SHORT)
    gflops = list(row["values"])
    for _ in range(2):
        measure.of_peak([row], 50.0)
        assert row["values"] == pytest.approx([2 * value for value in gflops])


def test_a_row_may_need_a_process_of_its_own(monkeypatch):
    (case,) = (c for c in bench_rows.all_cases() if c.name.startswith("L 131072"))
    assert case.environment == {}
    environment = dict(os.environ)
    (row,) = measure.measure_apart(
        measure.replace(case, name="call, B 1, H 1, L 12, Python", environment={"RELPOS_X": "1"}),
        SHORT,
    )
    assert row["values"]
    assert dict(os.environ) == environment


def test_growth_is_that_of_resident_memory():
    def touch():  # pages that no allocator can have had before
        with mmap.mmap(-1, 32 << 20) as memory:
            for page in range(0, len(memory), mmap.PAGESIZE):
                memory[page] = 1

    assert cases.growth(touch) == pytest.approx(32 << 20, rel=0.1)


# ---- contests


@pytest.mark.parametrize(
    "name",
    ["plain", "causal", "trained_bias", "bias_rpe", "shaw_einsum", "shaw_gather", "music_skew"],
)
def test_formulas_are_equal_to_relpos(name):
    shape = (2, 2, 70, 80 if name == "bias_rpe" else 70, 16)
    against = contests.against_formula(getattr(formulas, name), shape, True)
    (row,) = measure.measure(contests.peer_case(name, (1, 2), against), SHORT)
    assert len(row["values"]) >= 3, row
    assert (row["name"], row["floor"]) == (name, 1)


def test_unequal_sides_are_not_timed():
    def wrong(shape, dtype):
        match = formulas.plain(shape, dtype)
        match.ours = lambda: formulas.relpos.attention(*match.leaves, scale=0.13)
        return match

    run = contests.against_formula(wrong, SMALL, True)
    (row,) = measure.measure(contests.peer_case("wrong", (1, 2), run), SHORT)
    assert "not timed" in row["error"]
    assert row["floor"] == 1


def test_every_round_beside_busy_programs_counts():
    (case,) = (c for c in contests.cases() if "busy" in c.name)
    (row,) = measure.measure(case, clock.Budget(0.01, 0, Written()))  # asks no rate
    assert len(row["values"]) >= 3, row
    assert clock.counted(row["values"], row["rates"], 10.0) == (row["values"], False)


def test_busy_programs_end_with_their_row():
    started = []

    def fails():
        with contests.busy_programs(2) as running:
            started.extend(running)
            assert [program.poll() for program in running] == [None, None]
            raise ValueError("of the row")

    with pytest.raises(ValueError, match="of the row"):
        fails()
    assert len(started) == 2
    assert all(program.returncode is not None for program in started)


def test_a_contest_has_a_row_for_each_peer(monkeypatch):
    def wrong(q, k, v, causal, bias):
        return lambda: q, peers.same

    def absent(q, k, v, causal, bias):
        raise peers.Refused("not installed")

    monkeypatch.setitem(peers.PEERS, "wrong", wrong)
    monkeypatch.setitem(peers.PEERS, "absent", absent)
    names = [peers.TORCH, "wrong", "absent"]
    run = contests.against_peers(formulas.trained_bias, SMALL, names)
    best, *others = measure.measure(contests.peer_case("all", (1, 2), run, names), SHORT)
    assert (best["name"], best["floor"]) == ("all", 1)
    assert len(best["values"]) >= 3
    by_name = {row["name"]: row for row in others}
    assert set(by_name) == {f"all: {name}" for name in names}
    assert by_name[f"all: {peers.TORCH}"]["values"] == best["values"]
    assert "not timed" in by_name["all: wrong"]["error"]
    assert by_name["all: absent"]["error"] == "not installed"
    assert all(row["floor"] is None for row in others)


def test_peers_that_are_not_installed_say_so(monkeypatch):
    for module in ("onnxruntime", "zentorch"):
        monkeypatch.setitem(sys.modules, module, None)
    q = torch.zeros(1, 1, 4, 4)
    for name in ("ONNX Runtime", "zentorch"):
        with pytest.raises(peers.Refused, match="Error"):
            peers.PEERS[name](q, q, q, False, None)
    assert peers.version("no-such-package") == "not installed"


# ---- the clock


class Written(clock.Interference):
    """Rates that a test has written down; 10 is the best."""

    def __init__(self, *rates):
        super().__init__(10.0)
        self.rates = iter(rates)

    def rate(self):
        return next(self.rates)


def two_calls():
    """Calls that take 6 ms and say that they ran."""
    order = []
    return order, [lambda n=n: (order.append(n), time.sleep(0.006)) for n in range(2)]


def test_turns_alternate():
    order, calls = two_calls()
    turns = clock.take_turns(calls, clock.Budget(0.001))
    assert order == [0, 1, 0, 1, 0, 1, 1, 0, 0, 1]
    assert [len(times) for times in turns.rounds] == [2, 2, 2]


def test_rounds_that_others_disturb_do_not_count():
    # The first turn; then of each round one before, again until it is quiet, one after each call.
    rates = Written(5, 9, 5, 9, 6, 9, 9, 9, 9, 10, 9, 10, 10, 10)
    order, calls = two_calls()
    turns = clock.take_turns(calls, clock.Budget(0.001, 60, rates))
    assert turns.rates == [5, 9, 9, 10]
    # Two turns that warm up; a disturbed round, one in the same order, one in the other.
    assert order == [0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1]
    assert clock.counted([1, 2, 3, 4], turns.rates, 10.0) == ([2, 3, 4], False)

    rates = Written(5, 5, 10, 10, 5, 10, 10, 5, 10, 10)  # without waiting
    turns = clock.take_turns(calls, clock.Budget(0.001, 0, rates))
    assert turns.rates == [5, 5, 5]
    assert clock.counted([1, 2, 3], turns.rates, 10.0) == ([1, 2, 3], True)


# ---- the report

MACHINE = {
    "cpu": "a CPU", "target": "avx2", "threads": 2, "peak_one": 60.0, "peak_all": 119.0,
    "tile_all": 110.0, "clock": 3.5, "read_bandwidth": 20.0, "rate": 9.0, "best_rate": 10.0,
    "date": "then",
}  # fmt: skip
SHARED = {**MACHINE, "peak_all": 61.0}


def measured(*values, name="x", rates=(), **more):
    return {
        "name": name, "unit": "% of peak", "better": "higher", "floor": 70, "stretch": 80,
        "values": list(values), "seconds": {"relpos": [0.001] * len(values)},
        "rates": list(rates), **more,
    }  # fmt: skip


def run_of(*rows, machine=MACHINE):
    return {"machine": machine, "rows": list(rows)}


def test_runs_are_joined_by_their_medians():
    (one,) = pages.joined([run_of(measured(60, 71, 90))])
    assert (one["value"], one["low"] < 71 < one["high"]) == (71, True)
    (five,) = pages.joined([run_of(measured(v, v, 99)) for v in (71, 75, 69, 80, 78)])
    assert (five["value"], five["low"], five["high"]) == (75, 69, 80)
    assert five["milliseconds"] == {"relpos": 1.0}


def test_disturbed_rounds_and_runs_do_not_count_beside_others():
    quiet, noisy = measured(75, 76, 77, 1, rates=(9, 9, 10, 5)), measured(10, 75, rates=(5, 10))
    (row,) = pages.joined([run_of(noisy), run_of(quiet)])
    assert (row["value"], row["noisy"]) == (76, False)
    (row,) = pages.joined([run_of(noisy)])
    assert (row["value"], row["noisy"]) == (42.5, True)
    assert "noisy" in pages.line(row, True)
    shared = run_of(measured(10), measured(3, name="y"), machine=SHARED)
    found = pages.joined([shared, run_of(measured(71)), run_of(measured(75))])
    assert {row["name"]: row["value"] for row in found} == {"x": 73, "y": 3}
    failed = {**measured(), "error": "no"}
    del failed["values"]
    assert pages.join([measured(75), failed], 10.0)["value"] == 75
    assert pages.join([failed], 10.0)["error"] == "no"


def test_threads_that_share_a_core_make_a_run_void():
    assert "share a core" in clock.void_reason(SHARED)
    assert clock.void_reason(MACHINE) == ""
    assert clock.void_reason({**SHARED, "threads": 1}) == ""
    wide = {**MACHINE, "target": "avx512", "peak_one": 250.0}
    assert clock.void_reason({**wide, "peak_all": 379.0})
    assert not clock.void_reason({**wide, "peak_all": 381.0})
    later = {**SHARED, "read_bandwidth": 25.0, "rate": 5.0}
    both = clock.joined_machine(MACHINE, later)
    assert [both[k] for k in ("peak_all", "read_bandwidth", "rate")] == [119.0, 25.0, 7.0]


def test_the_machine_is_measured_and_named():
    found = clock.measured_machine(clock.Interference())
    assert min(found[name] for name in ("peak_one", "peak_all", "tile_all", "rate")) > 0
    assert (found["clock"] > 0) == (platform.machine() == "x86_64")
    text = clock.machine_text(MACHINE)
    assert "60 with one, 110 in the product of a tile, 3.50 GHz, 20 GB/s read, 90 %" in text
    assert "of a tile, 20 GB/s" in clock.machine_text({**MACHINE, "clock": 0.0})


def test_what_a_row_reaches():
    def words(values, **more):
        return [pages.reached({**measured(), **more, "value": value}) for value in values]

    assert words((81, 75, 69)) == ["stretch", "floor", "**missed**"]
    assert words((0, 2), better="lower", floor=4, stretch=1) == ["stretch", "floor"]
    assert words((2, 5), better="lower", floor=4, stretch=None) == ["floor", "**missed**"]
    assert words((0.9, 1.1), floor=None, unit="x faster") == ["**lost**", "won"]


def test_the_page_has_every_row_and_no_floors(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--case", "x"])
    old = {**measured(name="gone"), "error": "not installed", "date": "long ago"}
    found = program.result([run_of(measured(75))], {"machines": [], "rows": [old]})
    text = pages.page(found, targets=False)
    assert "| x | 75 % of peak | 75 to 75 | relpos 1 |" in text
    assert "| gone | not measured |  | not installed |" in text
    assert "1 rows are kept from earlier: long ago." in text
    assert '`make bench ARGS="--case x"`' in text
    assert "a CPU" in text
    assert "floor" not in text
    assert "| x | 75 % of peak | 75 to 75 | 70 | 80 | floor |" in pages.page(found, targets=True)


def test_merging_replaces_rows_by_name_and_keeps_their_order():
    rows = [{"name": name, "n": 1} for name in "ca"]
    kept = [{"name": name, "n": 0} for name in "zab"]
    found = pages.merged(rows, kept, ["a", "b", "c"])
    assert [(row["name"], row["n"]) for row in found] == [("a", 1), ("b", 0), ("c", 1), ("z", 0)]


# ---- the program


def run_program(monkeypatch, capfd, *words):
    monkeypatch.setattr(sys, "argv", [program.__file__, *map(str, words)])
    program.main()
    return capfd.readouterr().out


def test_program_runs_and_merges(tmp_path, monkeypatch, capfd):
    out = tmp_path / "bench.json"
    quick = ["--seconds", 0.01, "--wait", 0, "--out", out, "--case"]
    page = run_program(monkeypatch, capfd, *quick, "L 12, C++")
    assert "| call, B 1, H 1, L 12, C++ |" in page
    monkeypatch.setattr(program, "measured_machine", lambda monitor: MACHINE)
    text = run_program(monkeypatch, capfd, *quick, "forward, D 32", "--merge", out, "--json")
    found = json.loads(text)
    assert found == json.loads(out.read_text())
    assert [row["name"][:5] for row in found["rows"]] == ["forwa", "call,"]
    assert len(found["machines"]) == 2


def test_what_is_written_by_hand_stays_on_the_page(tmp_path, monkeypatch, capfd):
    docs, out = tmp_path / "benchmarks.md", tmp_path / "bench.json"
    monkeypatch.setattr(program, "DOCS", docs)
    monkeypatch.setattr(program, "measured_machine", lambda monitor: MACHINE)
    docs.write_text(f"# Earlier\n\n{pages.KEPT}\n\n## Before and after\n")
    quick = ["--seconds", 0.01, "--wait", 0, "--out", out, "--case", "L 12, C++"]
    run_program(monkeypatch, capfd, *quick)
    for _ in range(2):
        run_program(monkeypatch, capfd, *quick, "--merge", out, "--write-docs")
    page = docs.read_text()
    assert page.startswith("# Benchmarks\n")
    assert page.count("| call, B 1, H 1, L 12, C++ |") == 1
    assert page.endswith(f"|\n\n{pages.KEPT}\n\n## Before and after\n")


def test_program_lists_and_refuses(monkeypatch, capfd):
    listed = run_program(monkeypatch, capfd, "--list")
    assert all(f"{case.name} [{case.unit}]" in listed for case in bench_rows.all_cases())
    for words in (["--case", "nonsense"], ["--write-docs", "--case", "x"], ["--seconds", "nan"]):
        with pytest.raises(SystemExit) as end:
            run_program(monkeypatch, capfd, *words)
        assert words[0] in f"{end.value} {capfd.readouterr().err}"


def test_program_ends_at_an_interrupt(tmp_path):
    words = ["--case", "forward, L 8192", "--seconds", "600", "--out", tmp_path / "bench.json"]
    command = [sys.executable, program.__file__, *words]
    found = interrupted(command, lambda process: process.stderr.readline())  # run 1 of 1
    assert (found[0], found[2]) == (130, "interrupted\n")


# ---- the model of many threads

ONES = scaling.Costs(
    setup=0, pack=1, start=0, tile=1, shared=1, mask=0, finish=0, write=0, reduce=0
)


def test_workers_wait_for_each_other():
    done = []

    def first():
        yield 2.0
        done.append(1)

    def second():
        yield 0.5
        yield lambda: bool(done)
        yield 1.0

    assert scaling.replay([first(), second()]) == 3.0


def test_workers_that_wait_for_ever_are_an_error():
    with pytest.raises(RuntimeError, match="1 workers wait"):
        scaling.replay([iter([lambda: False])])


def test_the_model_of_two_blocks_by_hand():
    """Two tiles, packed by both workers at once; the second adds to each after the first has."""
    shape = scaling.Shape(1, 1, 1, 2 * scaling.ROWS, 2 * scaling.TILE)
    assert scaling.backward_seconds(shape, ONES, 1) == 2 + 2 * 2 * 2
    assert scaling.backward_seconds(shape, ONES, 2) == pytest.approx(6 + 2 * scaling.REGION)
    assert scaling.forward_seconds(shape, ONES, 1) == 2 + 2 * 2
    assert scaling.forward_seconds(shape, ONES, 2) == pytest.approx(3 + scaling.REGION)


def test_as_many_heads_as_threads_are_written_with_their_blocks():
    shape = scaling.Shape(2, 1, 1, scaling.ROWS, 2 * scaling.TILE)
    costs = ONES._replace(write=10, reduce=100)
    assert scaling.backward_seconds(shape, costs, 2) == pytest.approx(26 + scaling.REGION)
    trained = scaling.backward_seconds(shape._replace(biased=True), costs, 2)
    assert trained == pytest.approx(26 + 200 + 2 * scaling.REGION)
    assert scaling.backward_seconds(shape, costs, 3) == pytest.approx(26 + 2 * scaling.REGION)


def test_blocks_of_a_chunk_wait_for_each_other():
    shape = scaling.Shape(1, 1, 1, 2 * scaling.ROWS, 2 * scaling.TILE)
    blocks = scaling.Blocks(shape, ONES, adds=True, sums=1)
    assert blocks.seconds(range(1), 2) == pytest.approx(2 + 2 * 2 * 2 + scaling.REGION)


def test_costs_are_measured():
    for backward in (False, True):
        costs = scaling.measured_costs(scaling.Shape(1, 2, 1, 100, 130, 16, biased=True), backward)
        assert min(costs.pack, costs.tile, costs.start, costs.call) > 0
        assert (costs.write > 0) == (costs.reduce > 0) == backward
