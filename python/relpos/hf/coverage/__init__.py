"""python -m relpos.hf coverage: what relpos.hf.fuse does to every model type of transformers."""

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_PATIENCE = 300  # seconds for a model type


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns 1 where something is wrong or raises."""
    parser = argparse.ArgumentParser("python -m relpos.hf coverage", description=__doc__)
    parser.add_argument("--model", action="append", metavar="TYPE", help="these model types alone")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each model type")
    parser.add_argument("--part", metavar="K/N", help="every Nth model type, from the Kth on")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side; 2")
    parser.add_argument("--resume", metavar="FILE", help="keep results here, and go on from them")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        _work()
        return 0
    kept = Path(asked.resume) if asked.resume else None
    results = []
    for result in run(_chosen(asked), asked.jobs, kept):
        results.append(result)
        if asked.json:
            print(json.dumps(result), flush=True)
    if not asked.json:
        from relpos.hf.coverage._table import table

        print(table(results))
    return int(any(each["wrong"] for each in results))


def _chosen(asked: argparse.Namespace) -> list[str]:
    from relpos.hf.coverage._tiny import types

    chosen = asked.model or types()
    if asked.part:
        first, every = map(int, asked.part.split("/"))
        chosen = chosen[first::every]
    return chosen


def run(types: Iterable[str], jobs: int, kept: Path | None = None) -> Iterator[dict[str, Any]]:
    """The results of model types. Each runs in a child process, which is ended where it crashes or
    takes too long; `kept` is a file of results so far."""
    waiting = list(types)
    if kept is not None and kept.exists():
        before = [json.loads(line) for line in kept.read_text().splitlines()]
        done = {each["type"]: each for each in before}
        yield from (done[name] for name in waiting if name in done)
        waiting = [name for name in waiting if name not in done]
    waiting.reverse()
    children = [_Child() for _ in range(max(1, min(jobs, len(waiting))))]
    try:
        while waiting or any(child.busy for child in children):
            for child in children:
                if not child.busy and waiting:
                    child.give(waiting.pop())
            ready, _, _ = select.select([c.lines() for c in children if c.busy], [], [], 1.0)
            for child in children:
                result = child.result(ready)
                if result is not None:
                    if kept is not None:
                        with kept.open("a") as file:
                            file.write(json.dumps(result) + "\n")
                    yield result
    finally:
        for child in children:
            child.end()


class _Child:
    """A process that measures one model type after another."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.busy: str | None = None
        self.since = 0.0

    def give(self, name: str) -> None:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "relpos.hf", "coverage", "--worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                text=True,
            )
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        self.busy, self.since = name, time.monotonic()

    def lines(self) -> Any:
        assert self.process is not None
        return self.process.stdout

    def result(self, ready: list[Any]) -> dict[str, Any] | None:
        """Of the model type that it has, once it is there; or why there is none."""
        if self.busy is None:
            return None
        name = self.busy
        if self.lines() in ready:
            line = self.lines().readline()
            self.busy = None
            if line:
                return json.loads(line)
            self.end()
            return _none(name, "its process ended")
        if time.monotonic() - self.since > _PATIENCE:
            self.busy = None
            self.end()
            return _none(name, f"it took more than {_PATIENCE} seconds")
        return None

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _none(name: str, why: str) -> dict[str, Any]:
    return {"type": name, "classes": [], "passed": [], "wrong": [], "not_built": why}


def _work() -> None:
    """A child: model types come in by lines, results go out by lines of JSON."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # models print
    import torch
    import transformers

    from relpos.hf.coverage._measure import measured

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for line in sys.stdin:
        name = line.strip()
        try:
            result = measured(name)
        except Exception as error:
            result = _none(name, f"{type(error).__name__}: {error}"[:300])
        out.write(json.dumps(result) + "\n")
        out.flush()
