"""Every scheme and sum of schemes against its oracle, forward and backward.

Cases come from `cases.py` (a pairwise cover and random draws, fixed seed; more of them with
RELPOS_FULL=1), run in one process per SIMD target, and are judged in `conformance_worker.py` by the
promise about errors (`promise.py`, docs/accuracy.md).
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import relpos
import torch

from tests import ROOT
from tests.support.cases import all_cases
from tests.support.oracle import gradients, place_of, positions
from tests.support.sample import UNBOUND, configurations, trained

WORKER = f"{__package__}.conformance_worker"
CHUNK = 100
TARGETS = tuple(sorted(relpos.show_config()["targets available"].split()))


@cache
def chunks():
    """{(target, number): cases}"""
    mine = {t: [case for case in all_cases(TARGETS)[0] if case["target"] == t] for t in TARGETS}
    starts = {t: range(0, len(mine[t]), CHUNK) for t in TARGETS}
    return {(t, n // CHUNK): mine[t][n : n + CHUNK] for t in TARGETS for n in starts[t]}


class Workers:
    """One process per target, as many at a time as there are cores; results by (target, chunk)."""

    def __init__(self, wanted):
        self.results, self.arrived, self.ended = {}, threading.Condition(), {}
        self.processes = []
        self.pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))
        for target in dict.fromkeys(t for t, _ in wanted):
            self.pool.submit(self.run, target, [n for t, n in wanted if t == target])

    def run(self, target, numbers):
        own = {"RELPOS_TARGET": target, "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as errors:
            given.writelines(f"{chunks()[target, number]!r}\n" for number in numbers)
            given.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER],
                cwd=ROOT,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | own,
            )
            self.processes.append(process)
            for number, line in zip(numbers, process.stdout, strict=False):
                with self.arrived:
                    self.results[target, number] = json.loads(line)
                    self.arrived.notify_all()
            process.wait()
            errors.seek(0)
            why = f"exit status {process.returncode}: {errors.read()[-2000:]}"
        with self.arrived:
            self.ended[target] = why
            self.arrived.notify_all()

    def wait(self, target, number):
        with self.arrived:
            while (target, number) not in self.results:
                if target in self.ended:
                    why = self.ended[target]
                    return {"count": 0, "problems": [f"the worker of {target} ended: {why}"]}
                self.arrived.wait()
            return self.results[target, number]

    def close(self):
        for process in self.processes:
            process.kill()
        self.pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def workers(request, summary):
    wanted = [
        (item.callspec.params["target"], item.callspec.params["chunk"])
        for item in request.session.items
        if item.name.startswith("test_equals_the_formula[")
    ]
    running = Workers(wanted)
    ran = Counter()
    yield running, ran
    running.close()
    each = ", ".join(f"{target} {count}" for target, count in sorted(ran.items()))
    note = all_cases(TARGETS)[1]
    summary.append(f"conformance: {sum(ran.values())} cases ({each}); {note}")


@pytest.mark.parametrize(("target", "chunk"), chunks())
def test_equals_the_formula(workers, target, chunk):
    running, ran = workers
    found = running.wait(target, chunk)
    ran[target] += found["count"]
    problems = found["problems"]
    shown = "\n".join(f"  {line}" for line in problems[:10])
    assert not problems, f"{len(problems)} problems in {found['count']} cases:\n{shown}"


GRIDS = [(7, 7, None), (1, 9, 8), (5, 9, 0), (9, 4, -20), (3, 200, 150)]


@pytest.mark.parametrize(("name", "number"), configurations(4, 6, 5, UNBOUND))
def test_dense_forms_equal_the_formula(name, number):
    module, part = trained(name, number, 4, 6, 5, torch.float64)
    for queries, keys, q_offset in GRIDS:
        place = place_of([(name, part.options)])
        pos_q, pos_k = (p[0] for p in positions(1, queries, keys, q_offset or 0, place=place))
        terms = part.terms(pos_q, pos_k)
        if "rotate" in terms and "decay" not in terms:
            x = torch.randn(2, 4, queries, 6, dtype=torch.float64)
            turned = module.rotate(x, offset=q_offset or 0)
            rotate = part.terms(pos_q, pos_q)["rotate"]
            expected = torch.stack([rotate(one, pos_q) for one in x])
            torch.testing.assert_close(turned, expected, rtol=1e-12, atol=1e-12)
            check_dense_gradients(module, part, turned, expected)
        asked = {"q_offset": q_offset} if q_offset is not None else {}
        for which, names in {"key": ("bias", "key_rows"), "value": ("value_rows",)}.items():
            for expected in (terms[n] for n in names if n in terms):
                dense = module.dense(queries, keys, which=which, **asked)
                torch.testing.assert_close(dense, expected, rtol=1e-12, atol=1e-12)
                check_dense_gradients(module, part, dense, expected)


def check_dense_gradients(module, part, dense, expected):
    seed = torch.randn_like(expected)
    leaves = list(module.parameters())
    if not leaves:
        return
    ours = gradients([dense], [seed], leaves)
    own = [part.parameters[n] for n, _ in module.named_parameters()]
    for got, want in zip(ours, gradients([expected], [seed], own), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
