"""Lines and branches of src/ that the C++ tests run, from the counts of a build with gcov. For each
folder a line; what was not run goes to build/coverage/not_run.txt. scripts/coverage.sh runs it.

Templates and SIMD targets compile a line several times: it has run where one copy has. Branches to
where an exception leaves do not count: tests of refusals and of out-of-memory take them.
"""

import collections
import concurrent.futures
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/coverage"


def counts_of(file):
    """gcov's report of one object."""
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BUILD).stdout
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def is_product(path):
    return "_test." not in path.name and "testing" not in path.parts


class Counts:
    """Of every line and branch of src/."""

    def __init__(self):
        self.lines = collections.Counter()  # (file, line)
        self.branches = collections.Counter()  # (file, line, which of how many)

    def add(self, report):
        for unit in report["files"]:
            path = pathlib.Path(report["current_working_directory"], unit["file"]).resolve()
            if not path.is_relative_to(ROOT / "src") or not is_product(path):
                continue
            name = str(path.relative_to(ROOT))
            for line in unit["lines"]:
                self.lines[name, line["line_number"]] += line["count"]
                own = [b["count"] for b in line["branches"] if not b["throw"]]
                for n, count in enumerate(own):
                    self.branches[name, line["line_number"], n, len(own)] += count

    def share(self, counts, folder):
        own = [count for at, count in counts.items() if at[0].startswith(folder + "/")]
        run = sum(count > 0 for count in own)
        return f"{run:6} of {len(own):6} {100 * run / max(1, len(own)):6.1f} %"

    def not_run(self):
        for name, line in sorted(at for at, count in self.lines.items() if count == 0):
            yield f"{name}:{line}"
        for name, line, n, many in sorted(at for at, count in self.branches.items() if count == 0):
            if self.lines[name, line] > 0:
                yield f"{name}:{line}: branch {n} of {many}"


def main():
    files = sorted(BUILD.rglob("*.gcda"))
    if not files:
        sys.exit("coverage: no counts; run scripts/coverage.sh")
    counts = Counts()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for reports in pool.map(counts_of, files):
            for report in reports:
                counts.add(report)
    folders = sorted({at[0].rpartition("/")[0] for at in counts.lines})
    print(f"{'':24}{'lines':>20}{'branches':>27}")
    for folder in ["src", *folders]:
        both = [counts.share(of, folder) for of in (counts.lines, counts.branches)]
        print(f"{folder:24}{both[0]}{both[1]:>28}")
    (BUILD / "not_run.txt").write_text("\n".join(counts.not_run()) + "\n")


if __name__ == "__main__":
    main()
