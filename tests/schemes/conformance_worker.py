"""Runs conformance cases in a process of its own, because RELPOS_TARGET is read at first use.

RELPOS_TARGET=avx2 python -m tests.schemes.conformance_worker --case "{...}"      one case, printed
... < FILE    each line of FILE is a list of cases, a chunk; prints a line of JSON a chunk
"""

import argparse
import ast
import json
import sys
import traceback

import relpos
import torch

from tests.support.call import Call
from tests.support.promise import missed, promised, promised_scores, promised_weights, work_type


def run_case(case):
    """The problems of one case, as lines; none when all is well."""
    call = Call(case)
    found, weights, keep = call.computed()
    promises, at = promised(call, keep)
    if weights is not None:
        found["weights"] = weights
        promises["weights"] = promised_weights(call, at, found["lse"], keep)
    if case["seed"] % 6 == 0:
        with torch.no_grad():
            found["scores"] = relpos.scores(*call.inputs[:2], **call.keywords())
        promises["scores"] = promised_scores(call, at)
    problems = [wrong_types(call, found)]
    problems += [missed(name, found[name], promise) for name, promise in promises.items()]
    return [problem for problem in problems if problem]


def wrong_types(call, found):
    wanted = {"out": call.dtype, "lse": work_type(call.dtype)}
    wanted |= {f"gradient of {name}": leaf.dtype for name, leaf in call.leaves()}
    wrong = [
        f"{name} is {x.dtype}, expected {wanted[name]}"
        for name, x in found.items()
        if x.dtype != wanted.get(name, x.dtype)
    ]
    return "; ".join(wrong) or None


def attempt(case):
    """Problems of a case as one-line repros."""
    try:
        problems = run_case(case)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        problems = [f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"]
    repro = (
        f'RELPOS_TARGET={case["target"]} python -m tests.schemes.conformance_worker --case "{case}"'
    )
    return [f"{problem}\n      {repro}" for problem in problems]


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--case")
    given = parse.parse_args()
    torch.set_num_threads(1)
    if given.case:
        problems = attempt(ast.literal_eval(given.case))
        print("\n".join(problems) or "no problem")
        return 1 if problems else 0
    for line in sys.stdin:
        cases = ast.literal_eval(line)
        problems = [found for case in cases for found in attempt(case)]
        print(json.dumps({"count": len(cases), "problems": problems}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
