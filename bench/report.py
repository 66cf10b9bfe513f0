"""Rows of several runs joined, and printed as a Markdown table."""

import statistics
from typing import Any

from clock import counted, machine_text, quartiles, void_reason

Row = dict[str, Any]


def join(same: list[Row], best: float) -> Row:
    """One row of several runs. `value` is the median of the runs' medians; `low` and `high` their
    range, or the quartiles of the rounds where there is one run."""
    measured = [row for row in same if "values" in row]
    if not measured:
        return same[-1]
    kept = [(row, *counted(row["values"], row["rates"], best)) for row in measured]
    kept = [one for one in kept if not one[2]] or kept
    medians = [statistics.median(values) for _, values, _ in kept]
    row = {k: v for k, v in kept[-1][0].items() if k not in ("values", "rates", "seconds")}
    row["value"], row["runs"], row["noisy"] = statistics.median(medians), medians, kept[0][2]
    row["low"], row["high"] = min(medians), max(medians)
    if len(kept) == 1:
        row["low"], _, row["high"] = quartiles(kept[0][1])
    times: dict[str, list[float]] = {}  # the best peer need not be the same in every run
    for one, _, _ in kept:
        for side, seconds in one["seconds"].items():
            middle = statistics.median(counted(list(seconds), one["rates"], best)[0])
            times.setdefault(side, []).append(1e3 * middle)
    row["milliseconds"] = {side: statistics.median(all_runs) for side, all_runs in times.items()}
    return row


def joined(runs: list[Row]) -> list[Row]:
    """Each row once. Of rows that some run measured, runs that do not count are left out."""
    best = max(run["machine"]["best_rate"] for run in runs)
    by_name: dict[str, list[tuple[bool, Row]]] = {}
    for run in runs:
        counts = not void_reason(run["machine"])
        for row in run["rows"]:
            by_name.setdefault(row["name"], []).append((counts, row))
    return [
        join([row for counts, row in same if counts] or [row for _, row in same], best)
        for same in by_name.values()
    ]


def merged(rows: list[Row], kept: list[Row], order: list[str]) -> list[Row]:
    """`rows`, and what else an earlier report has, in the order of these names."""
    names = {row["name"] for row in rows}
    every = [*rows, *(row for row in kept if row["name"] not in names)]
    places = {name: n for n, name in enumerate(order)}
    return sorted(every, key=lambda row: places.get(row["name"], len(places)))


def reached(row: Row) -> str:
    if "error" in row:
        return "not measured"
    floor, stretch = row["floor"], row["stretch"]
    if floor is None:  # there is still winning and losing
        return "" if "faster" not in row["unit"] else "won" if row["value"] >= 1 else "**lost**"
    sign = 1 if row["better"] == "higher" else -1
    if stretch is not None and sign * row["value"] >= sign * stretch:
        return "stretch"
    return "floor" if sign * row["value"] >= sign * floor else "**missed**"


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def line(row: Row, targets: bool) -> str:
    bars = [number(row["floor"]), number(row["stretch"]), reached(row)] if targets else []
    if "error" in row:
        return cells([row["name"], "not measured", "", *bars, row["error"]])
    times = [", ".join(f"{side} {number(ms)}" for side, ms in row["milliseconds"].items())]
    times += [row.get("note"), "noisy" if row["noisy"] else ""]
    digits = 4 if row["unit"].startswith("x of") else 3
    measured = f"{number(row['value'], digits)} {row['unit']}"
    spread = f"{number(row['low'], digits)} to {number(row['high'], digits)}"
    return cells([row["name"], measured, spread, *bars, "; ".join(filter(None, times))])


def cells(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"


def table(rows: list[Row], targets: bool) -> str:
    bars = ["floor", "stretch", "reached"] if targets else []
    head = ["case", "measured", "spread", *bars, "milliseconds"]
    return "\n".join([cells(head), "|---" * len(head) + "|", *(line(row, targets) for row in rows)])


def summary(rows: list[Row]) -> str:
    words = [reached(row) for row in rows if row["floor"] is not None]
    lost = sum(reached(row) == "**lost**" for row in rows)
    return (
        f"Of {len(words)} rows with a floor {words.count('stretch')} reach the stretch, "
        f"{words.count('floor')} the floor, {words.count('**missed**')} miss it, "
        f"{words.count('not measured')} were not measured. Of the others {lost} lose to a peer."
    )


EXPLAINED = """\
float32, B 1, H 8, D 64, L 2048, full unless a row says otherwise; calls go through Python. % of \
peak: 4 B H Lq Lk D flops forward, 10 backward, half when causal, of the multiply-adds that the \
machine does in the same run, measured before and after; the higher one counts. x of plain: times \
the same call without a position. x faster: the other side's time over ours, outputs compared \
first. Sides take turns in one process. A row is the median of its runs, each the median of its \
rounds; spread is the range of the runs, or the quartiles of the rounds where there is one run. \
Instructions: no-ops that our threads execute, against the best rate seen; they halve where \
another program, or another machine, uses our cores. A round counts that found 85 % of them before \
and after each of its calls; a row with fewer than three such rounds says noisy and shows all. \
Beside busy programs of the bench's own every round counts."""


KEPT = "<!-- By hand from here on: --write-docs keeps it. -->"


def kept(earlier: str) -> str:
    """What an earlier page has that no bench writes."""
    return "\n" + earlier[earlier.index(KEPT) :] if KEPT in earlier else ""


def page(report: Row, targets: bool) -> str:
    """The whole report; without targets it is docs/benchmarks.md."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machines = [f"{n}. {machine_text(one)}" for n, one in enumerate(report["machines"], 1)]
    lines = [
        "# Benchmarks", "",
        f"Written by `{report['command']}` on {report['date']}, with {versions}.", "",
        EXPLAINED, "", *([summary(report["rows"]), ""] if targets else []),
        "The machine, run by run:", "", *machines, "", table(report["rows"], targets), "",
    ]  # fmt: skip
    kept = [row["date"] for row in report["rows"] if row["date"] != report["date"]]
    if kept:
        dates = ", ".join(sorted(set(kept)))
        lines += [f"{len(kept)} rows are kept from earlier: {dates}.", ""]
    return "\n".join(lines)
