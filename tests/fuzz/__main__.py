"""Calls that combine features: every pair of their values in one call at least, forward and
backward, against the formula in float64 and the bounds of docs/accuracy.md.

.venv/bin/python -m tests.fuzz --quick        the twelve most used features; half a minute
.venv/bin/python -m tests.fuzz --full         all features on every SIMD target, then random calls
.venv/bin/python -m tests.fuzz --case '...'   one call, as a failure prints it

`--full` keeps its tally in a file, by which the next one goes on where this one stopped.
"""

import argparse
import ast
import os
import sys
import time

import relpos
import torch

from tests.fuzz.factors import TARGETS, case_of
from tests.fuzz.judge import line_of, problems_of, shrunk
from tests.fuzz.plan import full_cases, quick_cases
from tests.fuzz.tally import Tally
from tests.support.target_server import Server, serve

TALLY = "build/fuzz.json"


def quick():
    """Exit status; failures are shrunk."""
    torch.set_num_threads(1)
    cases, cover = quick_cases()
    failed = 0
    for case in cases:
        problems = problems_of(case)
        if problems:
            failed += 1
            print(line_of(*shrunk(case, problems)), flush=True)
    print(f"{len(cases)} cases, {failed} failed; {cover}")
    return 1 if failed else 0


class Judges:
    """One process a target, each started when it is first asked."""

    def __init__(self):
        self.servers = {}

    def __call__(self, case):
        """The problems of a case."""
        target = TARGETS[0] if case["target"] == "here" else case["target"]
        server = self.servers.get(target) or Server(target, __package__)
        self.servers[target] = server
        server.ask(repr(case))
        try:
            found = server.answer()
        except EOFError:
            status = server.process.wait()
            del self.servers[target]
            return [f"the process ended with status {status}"]
        return [found] if isinstance(found, str) else found

    def close(self):
        for server in self.servers.values():
            server.close()


def full(path, minutes, seed):
    """Exit status, once the cover is done and the time is over, or at Ctrl-C."""
    tally, judges = Tally.at(path, seed), Judges()
    end = time.monotonic() + 60 * minutes
    try:
        cases = full_cases(seed)
        if tally.done:
            print(f"goes on after {tally.done} cases of {path}", flush=True)
        for number, (case, note) in enumerate(cases):
            if number < tally.done:
                continue
            if note is None and time.monotonic() > end:
                break
            problems = judges(case)
            if problems:
                case, problems = shrunk(case, problems, judges)
                print(line_of(case, problems), flush=True)
            tally.add(line_of(case, problems) if problems else None, note)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        judges.close()
        tally.write()
    print(tally.verdict())
    return 1 if tally.failures else 0


def one(text):
    case = case_of(text)
    target = case["target"]
    if target not in ("here", relpos.show_config()["target"]):
        again = [sys.executable, "-m", "tests.fuzz", "--case", text]
        os.execve(sys.executable, again, os.environ | {"RELPOS_TARGET": target})
    problems = problems_of(case)
    print("\n".join(problems) or "no problem")
    return 1 if problems else 0


def answered(line):
    return problems_of(ast.literal_eval(line))


def main():
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parse.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--quick", action="store_true")
    kinds.add_argument("--full", action="store_true")
    kinds.add_argument("--case", help="what is not plain in it")
    kinds.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parse.add_argument("--minutes", type=float, default=60, help="of --full; its cover ends first")
    parse.add_argument("--seed", type=int, default=1, help="of --full")
    parse.add_argument("--tally", default=TALLY, help=f"of --full; {TALLY} where none is given")
    given = parse.parse_args()
    if given.serve:
        return serve(answered)
    if given.case is not None:
        return one(given.case)
    return quick() if given.quick else full(given.tally, given.minutes, given.seed)


if __name__ == "__main__":
    sys.exit(main())
