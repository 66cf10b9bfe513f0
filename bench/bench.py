"""relpos against its floors and against other libraries: make bench, or scripts/bench.sh.

A run is `relpos bench` (the machine, then the C++ rows), then the rows against peers in this
process, then the machine again. --runs repeats all of it; a void run is left out of the medians,
and so are rounds beside neighbours that took our cores' issue slots.
Prints a Markdown table with every row, won or lost, and writes build/bench.json.
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import peers
import report
from clock import Budget, IssueSlots, Lost
from rows import Case, Row, all_cases, measure

ROOT = Path(__file__).resolve().parent.parent
TOOL = Path(os.environ.get("RELPOS_TOOL") or ROOT / "build" / "relpos")
DOCS = ROOT / "docs" / "benchmarks.md"
NOW = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tool(*words: str) -> Row:
    """What `relpos bench` reports; its progress goes to stderr."""
    if not TOOL.exists():
        sys.exit(f"{TOOL} is missing: make build makes it")
    run = subprocess.run(
        [TOOL, "bench", *words, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(run.stdout)


def wanted(name: str, only: str) -> bool:
    return only.lower() in name.lower()


def one_run(
    only: str, cpp: bool, cases: list[Case], budget: Budget, first: bool, best: float
) -> Row:
    """best: look of the runs before."""
    words = ["--machine"]
    if cpp:
        words = ["--case", only, "--seconds", budget.seconds, "--patience", budget.patience]
    words += ["--best-look", best, *([] if first else ["--skip-once"])]
    found = tool(*map(str, words))
    rows = list(found.get("rows", []))
    best = found["machine"]["best_look"]
    if cases:
        with IssueSlots(TOOL, best) as slots:
            for case in cases:
                measured = measure(case, replace(budget, slots=slots))
                rows += measured
                shown = report.judged(measured[0], slots.best)
                say(report.line(report.join([shown])))
            best = slots.best
    later = tool("--machine", "--best-look", str(best))
    machine = report.later_too(found["machine"], later["machine"])
    machine["date"] = NOW
    return {"machine": machine, "rows": rows}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="", help="only rows whose name contains this")
    parser.add_argument("--runs", type=int, default=1, help="of the whole; five count [1]")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each row and run [1.5]")
    patience = "seconds of a row to wait for neighbours to be quiet [10]"
    parser.add_argument("--patience", type=float, default=10, help=patience)
    quick = "the same as --seconds 0.1 --patience 0"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--merge", type=Path, help="a report whose other rows are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--list", action="store_true", help="name the rows, measure nothing")
    options = parser.parse_args()
    if options.runs < 1 or options.seconds <= 0 or options.patience < 0:
        parser.error("--runs and --seconds: expected more than 0; --patience: at least 0")
    if options.write_docs and options.case and not options.merge:
        parser.error("--write-docs: the page has every row: add --merge build/bench.json")
    return options


def chosen(only: str) -> tuple[list[Row], list[Case]]:
    cpp = [row for row in tool("--list")["rows"] if wanted(row["name"], only)]
    cases = [case for case in all_cases() if any(wanted(name, only) for name in case.names())]
    if not cpp and not cases:
        sys.exit(f"--case: no row's name contains {only}; --list names them")
    return cpp, cases


def result(runs: list[Row], earlier: Row) -> Row:
    """What the runs so far say, and what an earlier report has beside them."""
    best = max(run["machine"]["best_look"] for run in runs)
    judged = [[report.judged(row, best) for row in run["rows"]] for run in runs]
    counts = [run["machine"]["counts"] for run in runs]
    counted = [rows for rows, good in zip(judged, counts, strict=True) if good] or judged
    rows = report.joined(counted)
    rows = report.merged(rows, report.joined([judged[0]]))  # what one run alone measures
    report.add_limits(rows, max(run["machine"]["peak_all"] for run in runs))
    for row in rows:
        row["date"] = NOW
    words = shlex.join(sys.argv[1:])
    return {
        "command": f'make bench ARGS="{words}"' if words else "make bench",
        "date": NOW,
        "versions": peers.versions(),
        "machines": earlier["machines"] + [run["machine"] for run in runs],
        "rows": report.merged(rows, earlier["rows"]),
    }


def main() -> None:
    options = parse()
    cpp, cases = chosen(options.case)
    if options.list:
        rows = [*cpp, *(case.row() for case in cases)]
        for row in sorted(rows, key=lambda row: row["place"]):
            print(f"{row['name']} [{row['unit']}]: {row['floor']}, {row['stretch']}")
        return
    budget = Budget(options.seconds, patience=options.patience)
    if options.quick:
        budget = Budget(0.1, patience=0)
    earlier = {"machines": [], "rows": []}
    if options.merge:
        earlier = json.loads(options.merge.read_text())
    runs: list[Row] = []
    for n in range(options.runs):
        say(f"run {n + 1} of {options.runs}")
        best = max((run["machine"]["best_look"] for run in runs), default=0.0)
        try:
            runs.append(one_run(options.case, bool(cpp), cases, budget, n == 0, best))
        except Lost as error:
            sys.exit(f"{error}; the runs before are in {options.out}" if runs else str(error))
        if not runs[-1]["machine"]["counts"]:
            say(f"run {n + 1} is void: {runs[-1]['machine']['void']}")
        found = result(runs, earlier)
        options.out.parent.mkdir(exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(report.page(found))
    if options.write_docs:
        DOCS.write_text(report.page(found))


if __name__ == "__main__":
    main()
