"""The report: a table on the terminal, a page, the numbers and the continuation."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from pathlib import Path

import jinja2
import numpy as np

from relpos.lab import charts, chorales, compare, midi
from relpos.lab.data import SCORED
from relpos.lab.experiment import PROMPT_STEPS, Outcome, Trained
from relpos.lab.kept import writing
from relpos.lab.look import PICTURE_LENGTH, TRIANGLE
from relpos.lab.positions import runs_of
from relpos.lab.progress import clock

HOLDS, BENDS = 1.05, 1.25  # loss at the longest test over loss at the trained length


def check_folder(folder: Path) -> None:
    """Makes `folder`; raises CannotWrite before the training, so that no training time is lost."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def write(outcome: Outcome, folder: Path) -> Path:
    """Writes all files of the report to `folder`, or none; returns the path of the page. Raises
    CannotWrite."""
    files, continued = _continuation(outcome)
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("relpos.lab", "."), autoescape=True, trim_blocks=True
    )
    plan = outcome.plan
    html = pages.get_template("page.html").render(
        outcome=outcome,
        plan=plan,
        setting=setting(outcome),
        notes=_notes(outcome),
        answer=answer(outcome),
        by_loss=sorted(outcome.trained, key=lambda t: t.tests[max(plan.tests)]),
        lowest={n: min((t.tests[n] for t in outcome.trained), default=0) for n in plan.tests},
        runs=runs_of(row["scheme"] for row in outcome.comparisons),
        continued=continued,
        charts=charts,
        clock=clock,
        equality=compare.equality,
        picture_length=min(PICTURE_LENGTH, max(plan.tests)),
        scored=SCORED,
        triangle=TRIANGLE,
    )
    files["results.json"] = json.dumps(outcome.as_json(), indent=1).encode()
    files["report.html"] = html.encode(errors="replace")  # names of files may not be UTF-8
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _put(folder, files)
    return folder / "report.html"


def setting(outcome: Outcome) -> str:
    plan, shape = outcome.plan, outcome.plan.shape
    steps, batch = plan.starts.shape
    return (
        f"{plan.corpus.name}. {shape.layers} layers, width {shape.width}, {shape.heads} heads; "
        f"{steps} steps of {batch} × {shape.length} tokens; the same start and the same batches "
        "for every scheme."
    )


def nearest_test(outcome: Outcome) -> int:
    """The test length that is nearest to the training length."""
    return min(outcome.plan.tests, key=lambda n: abs(n - outcome.plan.shape.length))


def answer(outcome: Outcome) -> list[str]:
    """Sentences that say which positions still work at longer lengths, made from the numbers."""
    if not outcome.trained:
        return ["No scheme was trained to the end, so there is no answer yet."]
    near, far = nearest_test(outcome), max(outcome.plan.tests)
    best = outcome.best
    if far <= outcome.plan.shape.length:
        return [f"No test was longer than the training windows; {_name(best)} has the lowest loss."]
    growth = {t.scheme: t.tests[far] / t.tests[near] for t in outcome.trained}
    change = growth[best.scheme]
    verb = "holds best" if change <= BENDS else "loses least"
    sentences = [
        f"{_name(best)} {verb}: trained on windows of {outcome.plan.shape.length:,} tokens, its "
        f"loss is {best.tests[near]:.3f} at {near:,} tokens and {best.tests[far]:.3f} at {far:,}, "
        f"{_in_words(change)}."
    ]
    steady = min(outcome.trained, key=lambda t: growth[t.scheme])
    if steady is not best:
        sentences.append(
            f"{_name(steady)} changes least, from {steady.tests[near]:.3f} to "
            f"{steady.tests[far]:.3f} ({_in_words(growth[steady.scheme])})."
        )
    short = min(outcome.trained, key=lambda t: t.tests[near])
    if short is not best:
        sentences.append(
            f"{_name(short)} is best at {near:,} tokens ({short.tests[near]:.3f}), but at {far:,} "
            f"its loss is {short.tests[far]:.3f}, {_in_words(growth[short.scheme])}."
        )
    others = [t for t in outcome.trained if t not in (best, short, steady)]
    for phrase, low, high in (
        ("Steady too, within 5 %", 0.0, HOLDS),
        ("Bending, 5 to 25 % more", HOLDS, BENDS),
        ("Breaking, over 25 % more", BENDS, float("inf")),
    ):
        group = [t for t in others if low < growth[t.scheme] <= high]
        if group:
            named = "; ".join(
                f"{_name(t)}, {t.tests[near]:.3f} to {t.tests[far]:.3f}" for t in group
            )
            sentences.append(f"{phrase}: {named}.")
    lost = [_name(t) for t in outcome.trained if t.tests[far] >= outcome.plan.unigram]
    if lost:
        sentences.append(
            f"At {far:,} tokens {' and '.join(lost)} guess{'' if lost[1:] else 'es'} no better "
            f"than token frequencies alone ({outcome.plan.unigram:.3f})."
        )
    return sentences


def text_table(outcome: Outcome) -> str:
    """The result for a terminal."""
    tests = outcome.plan.tests
    head = ["scheme", *(f"loss {n}" for n in tests), "ms/step", "peak MB"]
    rows = [
        [
            t.scheme,
            *(f"{t.tests[n]:.4f}" for n in tests),
            f"{t.ms_per_step:.0f}",
            f"{t.peak_mb:.0f}",
        ]
        for t in outcome.trained
    ]
    rows.append(["unigram", *(f"{outcome.plan.unigram:.4f}" for _ in tests), "", ""])
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, ["-" * width for width in widths], *rows]
    ]
    if outcome.stopped:
        lines.append(_stopped(outcome.stopped))
    lines += ["", *answer(outcome), ""]
    lines += [compare.summary(row) for row in outcome.comparisons]
    lines += [f"{'ok  ' if held else 'FAIL'} {claim}" for claim, held in outcome.checks()]
    lines += [f"FAIL {failure}" for failure in outcome.failures]
    return "\n".join(lines)


def _in_words(growth: float) -> str:
    if growth > 1.995:
        return f"{growth:.1f} times as much"
    percent = 100 * (growth - 1)
    if abs(percent) < 0.5:
        return "as good as unchanged"
    return f"{abs(percent):.0f} % {'more' if percent > 0 else 'less'}"


def _name(trained: Trained) -> str:
    return trained.run.label


def _stopped(stopped: dict) -> str:
    loss = "" if stopped["loss"] is None else f", training loss {stopped['loss']:.3f}"
    return f"{stopped['scheme']} was stopped after {stopped['steps']} steps{loss}; not tested"


def _notes(outcome: Outcome) -> list[str]:
    """What a reader must know first."""
    notes = []
    if outcome.interrupted:
        notes.append("This run was interrupted: the page shows what was done by then.")
    if outcome.stopped:
        notes.append(_stopped(outcome.stopped) + ".")
    return notes + outcome.failures


def _continuation(outcome: Outcome) -> tuple[dict[str, bytes], dict]:
    """The file of the continuation, and what the page says of it."""
    if outcome.continuation is None:
        return {}, {}
    corpus = outcome.plan.corpus
    if corpus.kind == "text":
        parts = [part.astype(np.uint8).tobytes() for part in (corpus.prompt, outcome.continuation)]
        name = "continuation.txt"
        return {name: b"".join(parts)}, {
            "file": name,
            "texts": [part.decode("utf-8", "replace") for part in parts],
        }
    grid = np.concatenate([corpus.prompt[chorales.VOICES :], outcome.continuation])
    grid = grid.reshape(-1, chorales.VOICES)
    notes = chorales.notes_of(grid)
    name = "continuation.mid"
    music = midi.midi_bytes(
        notes, title=f"{corpus.prompt_name}, continued by {outcome.continued_by}"
    )
    return {name: music}, {
        "file": name,
        "rolls": [charts.piano_roll(notes, PROMPT_STEPS, len(grid), w, 300) for w in (860, 390)],
        "notes": json.dumps([list(note) for note in notes], separators=(",", ":")),
        "voices": dict(zip(midi.VOICE_NAMES, charts.VOICE_COLOURS, strict=True)),
        "tempo": midi.TEMPO,
    }


def _put(folder: Path, files: dict[str, bytes]) -> None:
    """All of the files or none; a file that is replaced keeps its mode."""
    temporaries = {}
    try:
        for name, data in files.items():
            path = folder / name
            temporary = temporaries[path] = folder / f"{name}.tmp{os.getpid()}"
            with writing(path):
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                if path.exists():
                    temporary.touch(mode=0o600)
                    temporary.chmod(stat.S_IMODE(path.stat().st_mode))
                temporary.write_bytes(data)
        for path, temporary in temporaries.items():
            with writing(path):
                os.replace(temporary, path)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
