"""The report: a table on the terminal, a page, the numbers and the continuation."""

from __future__ import annotations

import importlib.resources
import json
import os
import stat
import tempfile
from html import escape
from pathlib import Path
from string import Template

import numpy as np

from relpos.lab import charts, chorales, compare, midi
from relpos.lab.data import SCORED
from relpos.lab.experiment import PROMPT_STEPS, Outcome, Trained
from relpos.lab.look import PICTURE_LENGTH, TRIANGLE
from relpos.lab.positions import runs_of
from relpos.lab.progress import clock

HOLDS, BENDS = 1.05, 1.25  # loss at the longest test over loss at the trained length


class CannotWrite(OSError):
    """The folder of the report cannot be made or written to."""


def check_folder(folder: Path) -> None:
    """Makes `folder`; raises CannotWrite before the training, so that no training time is lost."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise CannotWrite(f"--out {folder}: cannot write there: {error.strerror}") from error


def write(outcome: Outcome, folder: Path) -> Path:
    """Writes all files of the report to `folder`, or none; returns the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"results.json": json.dumps(outcome.as_json(), indent=1).encode()}
    music = _add_continuation(outcome, files)
    template = importlib.resources.files("relpos.lab").joinpath("page.html").read_text("utf-8")
    page = Template(template).substitute(
        setting=escape(setting(outcome)),
        banner=_banner(outcome),
        answer="".join(f"<p>{escape(sentence)}</p>" for sentence in answer(outcome)),
        figures=_figures(outcome),
        continuation=music,
        comparison=_comparison(outcome),
        checks=_checks(outcome),
    )
    files["report.html"] = page.encode()
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
            f"At {far:,} tokens {' and '.join(lost)} guess no better than token frequencies "
            f"alone ({outcome.plan.unigram:.3f})."
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


def _banner(outcome: Outcome) -> str:
    notes = []
    if outcome.interrupted:
        notes.append("This run was interrupted: the page shows what was done by then.")
    if outcome.stopped:
        notes.append(_stopped(outcome.stopped) + ".")
    notes += outcome.failures
    return "".join(f'<p class="banner">{escape(note)}</p>' for note in notes)


def _figures(outcome: Outcome) -> str:
    if not outcome.trained:
        return ""
    best = outcome.best
    cards = "".join(
        f'<article class="card" style="--own:{t.run.colour}"><h3>{escape(_name(t))}</h3>'
        f"<p>{escape(t.run.says)}</p>"
        f"{charts.what_it_learned(t, outcome.plan.shape.length)}</article>"
        for t in outcome.trained
    )
    pictures = "".join(
        f'<figure><img src="{source}" alt="attention of {caption}"><figcaption>{caption}'
        "</figcaption></figure>"
        for caption, source in charts.triangles(best)
    )
    music = outcome.plan.corpus.kind == "chorales"
    tokens = f"{TRIANGLE // 4} sixteenths of four voices" if music else f"{TRIANGLE} bytes"
    heads = "".join(
        f'<span><i style="background:{charts.HEAD_COLOURS[h % len(charts.HEAD_COLOURS)]}"></i>'
        f"head {h + 1}</span>"
        for h in range(outcome.plan.shape.heads)
    )
    window = min(PICTURE_LENGTH, max(outcome.plan.tests))
    return f"""
<section class="hero">
{charts.loss_against_length(outcome, 860, 430)}{charts.loss_against_length(outcome, 390, 400)}
<p class="note">Every length is tested on the same {len(outcome.plan.ends) * SCORED:,} held-out
tokens: the last {SCORED} of each window, with more or less before them. Lower is better.</p>
</section>
<section><h2>The numbers</h2>{_table(outcome)}</section>
<section><h2>What each scheme learned about distance</h2>
<p>The curves show what a position adds to a head’s score when the content says nothing (the mean
query against the mean key): for a bias per head that is the learned bias itself. Below them, one
row per head, where the attention at the end of a window of {window:,} tokens goes: equal areas of
colour are equal shares. The shaded part was never seen in training.</p>
<p class="legend">{heads}</p>
<div class="cards">{cards}</div></section>
<section><h2>{escape(_name(best))}, head by head</h2>
<p>Attention over the opening of a held-out piece: {tokens}. Each row is a token that asks,
each column one that is looked at; the stronger the colour, the more.</p>
<div class="triangles">{pictures}</div></section>
"""


def _table(outcome: Outcome) -> str:
    tests = outcome.plan.tests
    head = "".join(f"<th>{n:,}</th>" for n in tests)
    lowest = {n: min(t.tests[n] for t in outcome.trained) for n in tests}
    rows = []
    for t in sorted(outcome.trained, key=lambda t: t.tests[max(tests)]):
        cells = "".join(
            f"<td{' class=best' if t.tests[n] == lowest[n] else ''}>{t.tests[n]:.3f}</td>"
            for n in tests
        )
        rows.append(
            f'<tr><th><i style="background:{t.run.colour}"></i>{escape(_name(t))}</th>{cells}'
            f"<td>{t.ms_per_step:.0f}</td><td>{t.peak_mb:.0f}</td>"
            f"<td>{t.position_parameters:,}</td></tr>"
        )
    guess = "".join(f"<td>{outcome.plan.unigram:.3f}</td>" for _ in tests)
    return (
        '<div class="scroll"><table><thead><tr><th rowspan="2">position</th>'
        f'<th colspan="{len(tests)}" class="group">loss at a window of … tokens</th>'
        '<th rowspan="2">ms per<br>step</th><th rowspan="2">peak<br>MB</th>'
        f'<th rowspan="2">position<br>parameters</th></tr><tr>{head}</tr></thead>'
        f'<tbody>{"".join(rows)}<tr class="faint"><th><i></i>unigram</th>{guess}'
        "<td></td><td></td><td></td></tr></tbody></table></div>"
        f'<p class="note">Each scheme trains in a process of its own on {outcome.plan.threads} '
        "threads; peak MB is that process’s resident memory while training, PyTorch and Python "
        "included. One seed, so small differences may be chance.</p>"
    )


def _comparison(outcome: Outcome) -> str:
    if not outcome.comparisons:
        return ""
    rows = "".join(
        f"<tr><th>{row['batch']} × {row['length']:,}</th>"
        f"<td>{row['relpos']['ms']:.0f}</td><td>{row['torch']['ms']:.0f}</td>"
        f"<td>{row['relpos']['extra_mb']:.0f}</td><td>{row['torch']['extra_mb']:.0f}</td>"
        f"<td>{escape(compare.equality(row))}</td></tr>"
        for row in outcome.comparisons
    )
    compared = outcome.comparisons[0]["scheme"]
    scheme = runs_of([compared])[compared].label
    return (
        "<section><h2>The same step on PyTorch’s own attention</h2>"
        f"<p>One training step of the model with {escape(scheme)}, once on "
        "<code>relpos.attention</code>, once on <code>scaled_dot_product_attention</code> with the "
        "bias written out as a mask; memory is what the steps add to the process.</p>"
        '<div class="scroll"><table><thead><tr><th rowspan="2">tokens a step</th>'
        '<th colspan="2" class="group">ms per step</th><th colspan="2" class="group">MB</th>'
        '<th rowspan="2"></th></tr><tr><th>relpos</th><th>PyTorch</th><th>relpos</th>'
        f"<th>PyTorch</th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _checks(outcome: Outcome) -> str:
    items = "".join(
        f'<li class="{"held" if held else "failed"}">{escape(claim)}</li>'
        for claim, held in outcome.checks()
    )
    curves = (
        charts.training_curves(outcome, 860, 260) + charts.training_curves(outcome, 390, 240)
        if outcome.trained
        else ""
    )
    source = (
        " The chorales are read from the installed music21 package, whose corpus has its own terms."
        if outcome.plan.corpus.kind == "chorales"
        else ""
    )
    return (
        f"<section><h2>How it was made</h2>{curves}<ul class=checks>{items}</ul>"
        f'<p class="note">seed {outcome.plan.seed}, {outcome.plan.threads} threads, learning rate '
        f"{outcome.plan.rate:g}, {clock(outcome.seconds)} minutes in all. A second run on this "
        'machine gives the same losses. The numbers are in <a href="results.json">results.json</a>.'
        f"{source}</p></section>"
    )


def _add_continuation(outcome: Outcome, files: dict[str, bytes]) -> str:
    """Adds the continuation to the files; returns the section of the page that shows it."""
    if outcome.continuation is None:
        return ""
    corpus, by = outcome.plan.corpus, outcome.continued_by
    if corpus.kind == "text":
        name = "continuation.txt"
        whole = np.concatenate([corpus.prompt, outcome.continuation]).astype(np.uint8).tobytes()
        files[name] = whole
        opening, rest = (
            escape(part.astype(np.uint8).tobytes().decode("utf-8", "replace"))
            for part in (corpus.prompt, outcome.continuation)
        )
        return (
            f'<section><h2>{escape(by)} goes on</h2><p><a class="file" href="{name}">{name}</a></p>'
            f"<pre><span>{opening}</span>{rest}</pre></section>"
        )
    name = "continuation.mid"
    grid = np.concatenate([corpus.prompt[chorales.VOICES :], outcome.continuation])
    grid = grid.reshape(-1, chorales.VOICES)
    notes = chorales.notes_of(grid)
    files[name] = midi.midi_bytes(notes, title=f"{corpus.prompt_name}, continued by {by}")
    steps = len(grid)
    roll = charts.piano_roll(notes, PROMPT_STEPS, steps, 860, 300)
    small = charts.piano_roll(notes, PROMPT_STEPS, steps, 390, 300)
    events = json.dumps([list(note) for note in notes], separators=(",", ":"))
    voices = "".join(
        f'<span><i style="background:{colour}"></i>{voice.lower()}</span>'
        for voice, colour in zip(midi.VOICE_NAMES, charts.VOICE_COLOURS, strict=True)
    )
    return (
        f"<section><h2>{escape(by)} goes on with a chorale</h2>"
        f"<p>The opening of {escape(corpus.prompt_name)}, which no model saw, then what the best "
        f"scheme’s model makes of it, {len(outcome.continuation)} tokens one at a time.</p>"
        f'<p><button id="play" data-tempo="{midi.TEMPO}">▶ play</button> '
        f'<a class="file" href="{name}">{name}</a></p><p class="legend">{voices}</p>'
        f'{roll}{small}<script type="application/json" id="notes">{events}</script></section>'
    )


def _put(folder: Path, files: dict[str, bytes]) -> None:
    """All of the files or none; a file that is replaced keeps its mode."""
    temporaries = {}
    try:
        for name, data in files.items():
            temporary = temporaries[name] = folder / f"{name}.tmp{os.getpid()}"
            old = folder / name
            if old.exists():
                temporary.touch(mode=0o600)
                temporary.chmod(stat.S_IMODE(old.stat().st_mode))
            temporary.write_bytes(data)
        for name, temporary in temporaries.items():
            os.replace(temporary, folder / name)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
