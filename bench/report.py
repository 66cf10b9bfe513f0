"""Rows of several runs joined, printed as a Markdown table, kept as JSON."""

import statistics
from typing import Any

from clock import counted, quartiles

Row = dict[str, Any]


def joined(runs: list[list[Row]]) -> list[Row]:
    """Each row once, by place: `value` is the median of the runs' medians; `low` and `high` their
    range, or the quartiles of the rounds where there is one run."""
    by_name: dict[str, list[Row]] = {}
    for run in runs:
        for row in run:
            by_name.setdefault(row["name"], []).append(row)
    rows = [join(same) for same in by_name.values()]
    return sorted(rows, key=lambda row: row["place"])


def join(same: list[Row]) -> Row:
    measured = [row for row in same if "values" in row]
    if not measured:
        return same[-1]
    measured = [row for row in measured if not row.get("noisy")] or measured
    medians = [statistics.median(row["values"]) for row in measured]
    row = {key: value for key, value in measured[-1].items() if key != "values"}
    row["value"], row["runs"] = statistics.median(medians), medians
    row["rounds"] = sum(len(one["values"]) for one in measured)
    if len(medians) > 1:
        row["low"], row["high"] = min(medians), max(medians)
    else:
        row["low"], _, row["high"] = quartiles(measured[0]["values"])
    times = [one["milliseconds"] for one in measured]
    # The best peer need not be the same in every run.
    sides = dict.fromkeys(side for one in times for side in one)
    row["milliseconds"] = {
        side: statistics.median(one[side] for one in times if side in one) for side in sides
    }
    return row


def judged(row: Row, best: float) -> Row:
    """A row whose values are those of quiet rounds, by the best look of all processes."""
    if "values" not in row:
        return row
    values, noisy = counted(row["values"], row.get("looks", []), best)
    return {**row, "values": values, "noisy": noisy, "looks": []}


def later_too(machine: Row, later: Row) -> Row:
    """The machine of a run, measured again at its end: its best, and the mean of what was ours."""
    bests = {
        key: max(machine[key], later[key])
        for key in ("peak_one", "peak_all", "read_bandwidth", "best_look")
    }
    look = (machine["look"] + later["look"]) / 2
    share = look / bests["best_look"]
    verdict = machine if later["counts"] else later
    return {**verdict, **bests, "look": look, "issue_share": share}


def add_limits(rows: list[Row], peak: float) -> None:
    """What a ratio would be if our side ran at the machine's peak, GFLOP/s."""
    for row in rows:
        if "flops" in row:
            theirs = list(row["milliseconds"].values())[-1]
            row["at_peak"] = theirs / (1e-6 * row["flops"] / peak)


def merged(rows: list[Row], kept: list[Row]) -> list[Row]:
    """`rows`, and what else an earlier report has."""
    names = {row["name"] for row in rows}
    return sorted(
        [*rows, *(row for row in kept if row["name"] not in names)], key=lambda row: row["place"]
    )


def reached(row: Row) -> str:
    if row.get("floor") is None:
        # There is still winning and losing.
        return "" if "faster" not in row["unit"] else "won" if row["value"] >= 1 else "lost"
    sign = 1 if row["better"] == "higher" else -1
    if sign * row["value"] >= sign * row["stretch"]:
        return "stretch"
    return "floor" if sign * row["value"] >= sign * row["floor"] else "**missed**"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def line(row: Row) -> str:
    bars = [number(row.get("floor")), number(row.get("stretch"))]
    if "error" in row:
        return cells([row["name"], *bars, "not measured", "", "", row["error"]])
    times = ", ".join(f"{side} {number(ms)}" for side, ms in row["milliseconds"].items())
    if limit := row.get("at_peak"):
        times += f"; at the peak it would be {number(limit)}"
    if note := row.get("note"):
        times += f"; {note}"
    if row.get("noisy"):
        times += "; noisy"
    measured = f"{number(row['value'])} {row['unit']}"
    spread = f"{number(row['low'])} to {number(row['high'])}"
    return cells([row["name"], *bars, measured, spread, reached(row), times])


def cells(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"


HEAD = [
    "| case | floor | stretch | measured | spread | reached | milliseconds |",
    "|---|---|---|---|---|---|---|",
]


def table(rows: list[Row]) -> str:
    return "\n".join([*HEAD, *map(line, rows)])


def machine_text(machine: Row) -> str:
    counts = "It counts." if machine["counts"] else f"**It is void: {machine['void']}.**"
    share = machine.get("issue_share")  # older reports have none
    issue = "" if share is None else f", {100 * share:.0f} % of the issue slots ours"
    return (
        f"{machine['date']}: {machine['cpu']}, family {machine['family']} model "
        f"{machine['model']}, target {machine['target']}, {machine['threads']} threads: "
        f"{machine['peak_all']:.0f} GFLOP/s of multiply-adds with all threads, "
        f"{machine['peak_one']:.0f} with one, {machine['read_bandwidth']:.1f} GB/s read{issue}. "
        f"{counts}"
    )


def summary(rows: list[Row]) -> str:
    floors = [row for row in rows if row.get("floor") is not None]
    words = [reached(row) if "error" not in row else "not measured" for row in floors]
    lost = [row for row in rows if "error" not in row and reached(row) == "lost"]
    return (
        f"Of {len(floors)} rows with a floor {words.count('stretch')} reach the stretch, "
        f"{words.count('floor')} the floor, {words.count('**missed**')} miss it, "
        f"{words.count('not measured')} were not measured. Of the rows without one we "
        f"lose {len(lost)}."
    )


def page(report: Row) -> str:
    """docs/benchmarks.md."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machines = [machine_text(machine) for machine in report["machines"]]
    lines = [
        "# Benchmarks",
        "",
        f"Written by `{report['command']}` on {report['date']}, with {versions}.",
        "",
        "float32, B 1, H 8, D 64, L 2048, full unless a row says otherwise. % of peak: "
        "4 B H Lq Lk D flops forward, 10 backward, half when causal, of the multiply-adds that the "
        "machine does in the same run, measured before and after; the higher one counts. Issue "
        "slots: no-ops that our threads retire, against the best moment seen; where neighbours run "
        "on the other half of our cores, they fall to 50 % while multiply-adds alone hardly "
        "notice. A round counts that found 85 % of them ours before and after each of its "
        "calls; a row that has fewer than three such rounds in every run says noisy and shows all "
        "its rounds. Against "
        "others: one process, sides take turns, outputs compared first; \"x faster\" is their time "
        "over ours. A row is the median of its runs, each the median of its rounds; spread is the "
        "range of the runs, or the quartiles of the rounds where there is one run. Rows without a "
        "floor are there because a reader would ask.",
        "",
        summary(report["rows"]),
        "",
        "The machine, run by run:",
        "",
        *(f"{n}. {text}" for n, text in enumerate(machines, 1)),
        "",
        table(report["rows"]),
        "",
    ]  # fmt: skip
    kept = sorted({row["date"] for row in report["rows"]} - {report["date"]})
    if kept:
        count = sum(row["date"] != report["date"] for row in report["rows"])
        lines += [f"{count} rows are kept from earlier: {', '.join(kept)}.", ""]
    return "\n".join(lines)
