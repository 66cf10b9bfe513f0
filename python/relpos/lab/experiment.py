"""The jobs of the lab and their results."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

import relpos
from relpos.lab import chorales, compare, data
from relpos.lab.model import Shape
from relpos.lab.positions import Run, code_of, runs_of
from relpos.lab.progress import Progress, clock, show
from relpos.lab.runner import JobFailed, Jobs

PROMPT_STEPS = 64  # of the grid: 16 quarters
CONTINUED_STEPS = 128
PROMPT_BYTES, CONTINUED_BYTES = 256, 512
TEMPERATURE = 0.8
COMPARED_STEPS = 4
_LONG_COMPARISON = 2048  # tokens; the batch shrinks to match


@dataclass(frozen=True)
class Plan:
    corpus: data.Corpus
    shape: Shape
    schemes: list[str]
    tests: list[int]
    starts: np.ndarray  # [steps, batch]
    ends: np.ndarray
    unigram: float
    rate: float
    seed: int
    threads: int
    compare: str | None
    quiet: bool

    def asked(self) -> dict:
        """What the results depend on, by the names of the options."""
        tokens = hashlib.sha256()
        for part in (
            self.corpus.train,
            self.corpus.test,
            self.corpus.prompt,
            self.starts,
            self.ends,
        ):
            tokens.update(np.ascontiguousarray(part))
        return {
            "--schemes": self.schemes,
            "--steps": self.starts.shape[0],
            "--batch": self.starts.shape[1],
            "--length": self.shape.length,
            "--tests": self.tests,
            "--windows": len(self.ends),
            "--layers": self.shape.layers,
            "--width": self.shape.width,
            "--heads": self.shape.heads,
            "--rate": self.rate,
            "--seed": self.seed,
            "--threads": self.threads,
            "--compare": self.compare,
            "the tokens": tokens.hexdigest(),
            "relpos": relpos.__version__,
            "PyTorch": torch.__version__,
        }

    def job(self, kind: str, scheme: str, **more) -> dict:
        common = {"kind": kind, "shape": asdict(self.shape), "seed": self.seed}
        of_scheme = {"scheme": scheme, "code": code_of(scheme)}
        return {**common, "rate": self.rate, "threads": self.threads, **of_scheme, **more}


@dataclass
class Trained:
    """A scheme that was trained and tested."""

    scheme: str
    run: Run
    parameters: int
    position_parameters: int
    train_losses: list[float]
    ms_per_step: float
    peak_mb: float
    tests: dict[int, float]
    arrays: dict[str, np.ndarray]


@dataclass
class Outcome:
    plan: Plan
    trained: list[Trained] = field(default_factory=list)
    stopped: dict | None = None  # the scheme that Ctrl-C ended: scheme, steps, loss
    interrupted: bool = False
    failures: list[str] = field(default_factory=list)  # jobs that ended without a result
    comparisons: list[dict] = field(default_factory=list)
    continuation: np.ndarray | None = None
    continued_by: str | None = None
    seconds: float = 0.0

    @property
    def best(self) -> Trained | None:
        """The scheme with the lowest loss at the longest test."""
        longest = max(self.plan.tests)
        return min(self.trained, key=lambda t: t.tests[longest], default=None)

    def checks(self) -> list[tuple[str, bool]]:
        """What a correct run should show: (claim, whether it is true)."""
        nearest = min(self.plan.tests, key=lambda n: abs(n - self.plan.shape.length))
        made = [
            (
                f"{t.scheme} beats the unigram loss at {nearest} tokens "
                f"({t.tests[nearest]:.3f} < {self.plan.unigram:.3f})",
                t.tests[nearest] < self.plan.unigram,
            )
            for t in self.trained
        ]
        by_name = {t.scheme: t for t in self.trained}
        longer = [n for n in self.plan.tests if n >= 4 * self.plan.shape.length]
        if {"alibi", "rope"} <= by_name.keys() and longer:
            alibi, rope = (by_name[name].tests[longer[0]] for name in ("alibi", "rope"))
            made.append(
                (f"alibi beats rope at {longer[0]} tokens ({alibi:.3f} < {rope:.3f})", alibi < rope)
            )
        for row in self.comparisons:
            made.append(
                (
                    f"equal losses on PyTorch's own attention, {row['batch']} x {row['length']}",
                    compare.equal(row),
                )
            )
        return made

    @property
    def passed(self) -> bool:
        return not self.failures and all(held for _, held in self.checks())

    def as_json(self) -> dict:
        plan = self.plan
        return {
            "data": plan.corpus.name,
            "steps": len(plan.starts),
            "batch": plan.starts.shape[1],
            "model": asdict(plan.shape),
            "seed": plan.seed,
            "threads": plan.threads,
            "unigram_loss": plan.unigram,
            "schemes": [
                {key: value for key, value in vars(t).items() if key not in ("arrays", "run")}
                for t in self.trained
            ],
            "stopped": self.stopped,
            "interrupted": self.interrupted,
            "failures": self.failures,
            "best": self.best.scheme if self.best else None,
            "comparisons": self.comparisons,
            "checks": [{"claim": claim, "held": held} for claim, held in self.checks()],
            "seconds": self.seconds,
        }


def make_plan(options: argparse.Namespace) -> Plan:
    if options.text:
        corpus = data.load_text(options.text, PROMPT_BYTES, options.align)
    else:
        corpus = data.load_chorales(options.chorales, PROMPT_STEPS)
    ends = data.window_ends(corpus, longest=max(options.tests), windows=options.windows)
    shape = Shape(corpus.vocabulary, options.layers, options.width, options.heads, options.length)
    if options.compare != "off":
        compare.check_scheme(options.compare, shape)
    return Plan(
        corpus=corpus,
        shape=shape,
        schemes=options.schemes,
        tests=options.tests,
        starts=data.batch_starts(
            corpus,
            steps=options.steps,
            batch=options.batch,
            length=options.length,
            seed=options.seed,
        ),
        ends=ends,
        unigram=data.unigram_loss(corpus, ends),
        rate=options.rate,
        seed=options.seed,
        threads=options.threads,
        compare=None if options.compare == "off" else options.compare,
        quiet=options.quiet,
    )


def run(plan: Plan, work: Path) -> Outcome:
    """Trains all schemes, then compares, then continues a piece. Ctrl-C ends the training or the
    comparison and keeps the results so far; a second Ctrl-C ends the continuation, too."""
    outcome = Outcome(plan)
    begin = time.monotonic()
    if not plan.quiet:
        show(f"{plan.corpus.name}: {len(plan.corpus.train):,} tokens to train on")
    with Jobs(work, plan.threads) as jobs:
        try:
            for number, scheme in enumerate(plan.schemes, 1):
                title = f"[{number}/{len(plan.schemes)}] {scheme:<{max(map(len, plan.schemes))}}"
                _attempt(outcome, _train, jobs, scheme, title)
            if plan.compare:
                _attempt(outcome, _compare, jobs)
        except KeyboardInterrupt:
            outcome.interrupted = True
            if not plan.quiet:
                show(
                    "\ninterrupted: the report of what is done follows; --resume goes on with the "
                    "rest"
                )
        try:
            if outcome.best:
                _attempt(outcome, _continue, jobs)
        except KeyboardInterrupt:
            outcome.interrupted = True
    outcome.seconds = time.monotonic() - begin
    return outcome


def _folder(kind: str, plan: Plan, scheme: str) -> str:
    """A text of a position is no name of a file."""
    return f"{kind}-{plan.schemes.index(scheme)}"


def _attempt(outcome: Outcome, job: Callable[..., None], *arguments) -> None:
    """Runs one job; if it fails, the other jobs go on."""
    try:
        job(outcome, *arguments)
    except JobFailed as failure:
        outcome.failures.append(str(failure))
        show(f"\nrelpos lab: {failure}")


def _train(outcome: Outcome, jobs: Jobs, scheme: str, title: str) -> None:
    plan = outcome.plan
    progress = Progress(title, len(plan.starts), quiet=plan.quiet)
    begin = time.monotonic()
    last = {"scheme": scheme, "steps": 0, "loss": None}

    def on_event(event: dict) -> None:
        if event["event"] == "step":
            last.update(steps=event["done"], loss=event["loss"])
            progress.update(event["done"], event["loss"])
        else:
            progress.say(f"tested at {event['length']} tokens: loss {event['loss']:.3f}")

    progress.say("starts")
    try:
        result, arrays = jobs.run(
            _folder("train", plan, scheme),
            plan.job("train", scheme, tests=plan.tests),
            {
                "train": plan.corpus.train,
                "test": plan.corpus.test,
                "starts": plan.starts,
                "ends": plan.ends,
            },
            title=scheme,
            on_event=on_event,
        )
    except KeyboardInterrupt:
        outcome.stopped = last
        raise
    result["tests"] = {int(length): loss for length, loss in result["tests"].items()}
    outcome.trained.append(Trained(scheme, runs_of(plan.schemes)[scheme], arrays=arrays, **result))
    losses = ", ".join(f"{loss:.3f} at {length}" for length, loss in result["tests"].items())
    progress.close(f"loss {losses}  ({clock(time.monotonic() - begin)})")


def _compare(outcome: Outcome, jobs: Jobs) -> None:
    """The same few steps on relpos and on PyTorch, at the training shape and with long windows."""
    plan = outcome.plan
    batch, length = plan.starts.shape[1], plan.shape.length
    shapes = [(batch, length)]
    long = min(_LONG_COMPARISON, len(plan.corpus.train) - 1)
    if plan.starts.size and batch * length >= long > length:
        shapes.append((batch * length // long, long))
    for batch, length in shapes:
        starts = data.batch_starts(
            plan.corpus, steps=COMPARED_STEPS, batch=batch, length=length, seed=plan.seed
        )
        row = {"scheme": plan.compare, "batch": batch, "length": length}
        for attend in compare.IMPLEMENTATIONS:
            progress = Progress("compare", COMPARED_STEPS, quiet=plan.quiet)
            title = f"{batch} x {length} on {attend}"
            progress.say(title)
            row[attend], _ = jobs.run(
                f"compare-{attend}-{length}",
                plan.job("compare", plan.compare, attend=attend, length=length),
                {"train": plan.corpus.train, "starts": starts},
                title=f"{plan.compare}, {title}",
                on_event=lambda event: None,
            )
        outcome.comparisons.append(row)
        progress.close(compare.summary(row))


def _continue(outcome: Outcome, jobs: Jobs) -> None:
    """The best scheme continues the opening of a held-out piece."""
    plan, best = outcome.plan, outcome.best
    music = plan.corpus.kind == "chorales"
    count = CONTINUED_STEPS * chorales.VOICES if music else CONTINUED_BYTES
    progress = Progress(f"continue with {best.scheme}", count, quiet=plan.quiet)
    progress.say("starts")
    _, arrays = jobs.run(
        _folder("continue", plan, best.scheme),  # once more schemes are done, another may be best
        plan.job(
            "continue",
            best.scheme,
            weights=str(jobs.folder / _folder("train", plan, best.scheme) / "arrays.npz"),
            new_tokens=count,
            temperature=TEMPERATURE,
            forbidden=[chorales.START] if music else [],
        ),
        {"prompt": plan.corpus.prompt},
        title=best.scheme,
        on_event=lambda event: progress.update(event["done"]),
    )
    progress.close(f"{count} tokens after the opening of {plan.corpus.prompt_name}")
    outcome.continuation, outcome.continued_by = arrays["tokens"], best.run.label
