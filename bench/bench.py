"""relpos against its own targets and against other libraries: make bench, or scripts/bench.sh.

A run measures the machine, then every row in this process, then the machine again. --runs repeats
all of it; a run whose machine does not count is left out of the medians, and so are rounds that
other programs disturbed. Prints a Markdown table with every row, won or lost, and writes
build/bench.json.
"""

import argparse
import datetime
import json
import shlex
import sys
from pathlib import Path

import peers
import report
from case import Case, Row
from clock import Budget, Interference, joined_machine, measured_machine, void_reason
from measure import measure, of_peak
from rows import all_cases

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "benchmarks.md"
NOW = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def one_run(cases: list[Case], budget: Budget) -> Row:
    before = measured_machine(budget.interference)
    rows: list[Row] = []
    for case in cases:
        found = measure(case, budget)
        shown = [dict(found[0])]
        of_peak(shown, before["peak_all"])
        say(report.line(report.join(shown, budget.interference.best), targets=True))
        rows += found
    whole = joined_machine(before, measured_machine(budget.interference))
    of_peak(rows, whole["peak_all"])
    return {"machine": {**whole, "date": NOW}, "rows": rows}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="", help="only rows whose name contains this")
    parser.add_argument("--runs", type=int, default=1, help="of the whole [1]")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each row and run [1.5]")
    wait = "seconds of a row to wait for other programs to leave our cores [10]"
    parser.add_argument("--wait", type=float, default=10, help=wait)
    parser.add_argument("--merge", type=Path, help="a report whose other rows are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--list", action="store_true", help="name the rows, measure nothing")
    options = parser.parse_args()
    if not (options.runs >= 1 and 0 < options.seconds < 1e6 and 0 <= options.wait < 1e6):
        parser.error("--runs and --seconds: expected more than 0; --wait: at least 0")
    if options.write_docs and options.case and not options.merge:
        parser.error("--write-docs: the page has every row: add --merge build/bench.json")
    return options


def chosen(only: str) -> list[Case]:
    cases = [c for c in all_cases() if any(only.lower() in name.lower() for name in c.names())]
    if not cases:
        sys.exit(f"--case: no row's name contains {only}; --list names them")
    return cases


def result(runs: list[Row], earlier: Row) -> Row:
    """What the runs so far say, and what an earlier report has beside them."""
    rows = [{**row, "date": NOW} for row in report.joined(runs)]
    order = [name for case in all_cases() for name in case.names()]
    words = shlex.join(sys.argv[1:])
    return {
        "command": f'make bench ARGS="{words}"' if words else "make bench",
        "date": NOW,
        "versions": peers.versions(),
        "machines": earlier["machines"] + [run["machine"] for run in runs],
        "rows": report.merged(rows, earlier["rows"], order),
    }


def main() -> None:
    options = parse()
    cases = chosen(options.case)
    if options.list:
        for case in cases:
            print(f"{case.name} [{case.unit}]:", *map(report.number, case.target))
        return
    earlier = {"machines": [], "rows": []}
    if options.merge:
        earlier = json.loads(options.merge.read_text())
    budget = Budget(options.seconds, options.wait, Interference())
    runs: list[Row] = []
    try:
        for n in range(options.runs):
            say(f"run {n + 1} of {options.runs}")
            runs.append(one_run([c for c in cases if n == 0 or not c.once], budget))
            if reason := void_reason(runs[-1]["machine"]):
                say(f"run {n + 1} does not count: {reason}")
            found = result(runs, earlier)
            options.out.parent.mkdir(exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    except KeyboardInterrupt:
        say(f"interrupted; {len(runs)} whole runs are in {options.out}" if runs else "interrupted")
        sys.exit(130)
    print(json.dumps(found, indent=1) if options.json else report.page(found, targets=True))
    if options.write_docs:
        DOCS.write_text(report.page(found, targets=False) + report.kept(DOCS.read_text()))


if __name__ == "__main__":
    main()
