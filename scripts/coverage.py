"""Lines and branches of src/ that programs ran, from the counts of a build by clang: for each
folder a line, and what was not run in not_run.txt beside the counts. scripts/coverage.sh runs it.

    scripts/coverage.py COUNTS PROGRAM...

A line or a side of a branch has run where one copy of a template's has. A condition that the
compiler decides is no branch.
"""

import collections
import json
import pathlib
import subprocess
import sys

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "src"


def is_product(path):
    return (
        path.is_relative_to(SOURCES) and "_test." not in path.name and "testing" not in path.parts
    )


def exported(counts, programs, form):
    first, *others = programs
    command = ["llvm-cov", "export", f"-format={form}", f"-instr-profile={counts}", first]
    command += [f"-object={program}" for program in others]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def name_of(path):
    return str(path.relative_to(SOURCES.parent))


def lines_of(text):
    """{(file, line): how often it ran}, of a report in lcov's form."""
    found = collections.Counter()
    name = None
    for row in text.splitlines():
        key, _, value = row.partition(":")
        if key == "SF":
            path = pathlib.Path(value).resolve()
            name = name_of(path) if is_product(path) else None
        elif key == "DA" and name:
            line, count = value.split(",")[:2]
            found[name, int(line)] += int(count)
    return found


def branches_of(text):
    """{(file, line, column, "true" or "false"): how often that side ran}. Of the lists that clang
    gives, those of the functions leave out what the compiler decides; those of the files do not."""
    found = collections.Counter()
    for function in json.loads(text)["data"][0]["functions"]:
        paths = [pathlib.Path(name).resolve() for name in function["filenames"]]
        for line, column, _, _, true, false, unit, *_ in function["branches"]:
            if not is_product(paths[unit]):
                continue
            at = name_of(paths[unit]), line, column
            found[(*at, "true")] += true
            found[(*at, "false")] += false
    return found


def share(counts, folder):
    own = [count for at, count in counts.items() if at[0].startswith(folder + "/")]
    run = sum(count > 0 for count in own)
    return f"{run:6} of {len(own):6} {100 * run / max(1, len(own)):6.1f} %"


def main(counts, *programs):
    lines = lines_of(exported(counts, programs, "lcov"))
    branches = branches_of(exported(counts, programs, "text"))
    folders = sorted({at[0].rpartition("/")[0] for at in lines})
    print(f"{'':24}{'lines':>20}{'branches':>27}")
    for folder in ["src", *folders]:
        print(f"{folder:24}{share(lines, folder)}{share(branches, folder):>28}")
    not_run = [f"{name}:{line}" for (name, line), count in sorted(lines.items()) if count == 0]
    for (name, line, column, side), count in sorted(branches.items()):
        if count == 0 and lines[name, line] > 0:
            not_run.append(f"{name}:{line}:{column}: never {side}")
    pathlib.Path(counts).with_name("not_run.txt").write_text("\n".join(not_run) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
