"""The pictures of the report."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from relpos.lab import svg
from relpos.lab.chorales import HIGHEST_PITCH, LOWEST_PITCH, STEPS_PER_QUARTER, Note
from relpos.lab.experiment import Outcome, Trained

_HEAD_COLOURS = ("#2b7bd0", "#e0602c", "#12a079", "#c86aa6", "#d99a0b", "#7a6ff0", "#8b919c")
FLOOR = -12.0  # scores below it are cut off: exp(-12) is next to nothing
VOICE_COLOURS = ("#e0602c", "#d99a0b", "#12a079", "#2b7bd0")


def head_colour(head: int) -> str:
    return _HEAD_COLOURS[head % len(_HEAD_COLOURS)]


def _size(width: int) -> str:
    """The size of a drawing; the page has one for wide windows and one for narrow ones."""
    return "narrow" if width < 500 else "wide"


def loss_against_length(outcome: Outcome, width: int, height: int) -> Markup:
    """Test length (log2) and loss, with the curves' names on the right."""
    plan, lengths = outcome.plan, outcome.plan.tests
    narrow = _size(width) == "narrow"
    drawing = svg.Drawing(width, height, left=40, right=96 if narrow else 158, top=24, bottom=44)
    left, edge, top, bottom = drawing.left, drawing.right, drawing.top, drawing.bottom
    losses = [plan.unigram, *(t.tests[n] for t in outcome.trained for n in lengths)]
    margin = 0.06 * (max(losses) - min(losses) or 1)
    low, high = min(losses) - margin, max(losses) + margin
    y = svg.scale(low, high, bottom, top)
    before = 0.12 * (math.log2(lengths[-1] / lengths[0]) or 1)
    start = math.log2(min(lengths[0], plan.shape.length)) - before
    of_log = svg.scale(start, math.log2(lengths[-1]), left, edge)

    def x(length: float) -> float:
        return of_log(math.log2(length))

    if lengths[-1] > plan.shape.length:
        drawing.unseen(x(plan.shape.length), top, bottom - top)
        drawing.text(edge, top - 10, "longer than in training", "faint end")
    for value in svg.ticks(low, high):
        drawing.level(y(value), f"{value:g}")
    for length in lengths:
        drawing.text(x(length), bottom + 20, f"{length:,}", "tick mid")
    drawing.text((left + edge) / 2, height - 6, "tokens in the test window", "axis mid")
    drawing.text(left - 30, top - 10, "loss (nats per token)", "axis")
    drawing.across(y(plan.unigram), "unigram")

    ends = [y(t.tests[lengths[-1]]) for t in outcome.trained] + [y(plan.unigram)]
    places = svg.spread(ends, 16, top + 4, bottom)
    for t, end, place in zip(outcome.trained, ends, places, strict=False):
        colour = t.run.colour
        drawing.curve([(x(n), y(t.tests[n])) for n in lengths], "curve", stroke=colour)
        for n in lengths:
            hint = svg.tag("title", f"{t.run.label}: {t.tests[n]:.3f} at {n:,} tokens")
            at = {"cx": x(n), "cy": y(t.tests[n]), "r": 4}
            drawing.add("circle", hint, **at, fill=colour, class_="dot")
        drawing.curve([(edge + 6, end), (edge + 14, place)], "leader", stroke=colour)
        short = t.scheme.replace("_transformer", " tr.")
        label = short if narrow and len(short) <= len(t.run.label) else t.run.label
        drawing.text(edge + 18, place + 4, label, "label", style=f"fill:{colour}")
    drawing.curve([(edge + 2, ends[-1]), (edge + 14, places[-1])], "leader faintline")
    drawing.text(edge + 18, places[-1] + 4, "unigram", "label faint")
    return drawing.svg("Loss against test length for every scheme", _size(width))


class DistanceAxis:
    """Backward distances on log2(1 + distance)."""

    def __init__(self, longest: int, left: float, right: float) -> None:
        self.longest = longest
        self._map = svg.scale(0, math.log2(1 + longest), left, right)

    def __call__(self, distance: float) -> float:
        return self._map(math.log2(1 + distance))

    def marks(self) -> list[int]:
        return [0, *(d for d in (1, 4, 16, 64, 256, 1024, 4096, 16384) if d <= self.longest)]


def what_it_learned(trained: Trained, train_length: int) -> Markup:
    """The card of a scheme: the score that it adds, and how its heads attend, over distance."""
    distances, curves = trained.arrays["distances"], trained.arrays["score"]
    layers, heads = trained.arrays["attention"].shape[:2]
    panel, row_height = 74, 7
    drawing = svg.Drawing(440, 0, left=36, right=8, top=12, bottom=0)
    axis = DistanceAxis(int(distances[-1]), drawing.left, drawing.right)
    low, high = max(FLOOR, min(0.0, float(curves.min()))), max(0.0, float(curves.max()))
    panels = _distinct_layers(curves) if high - low >= 1e-9 else []
    margin = 0.08 * (high - low)
    bottom = drawing.top
    for title, curve in panels:
        y = svg.scale(low - margin, high + margin, bottom + panel, bottom)
        drawing.unseen(axis(train_length), bottom, panel)
        for value in svg.ticks(low - margin, high + margin, 2):
            drawing.level(y(value), f"{value:g}", "small")
        for head, row in enumerate(curve):
            points = zip(distances.tolist(), row, strict=True)
            seen = [(axis(d), y(v)) for d, v in points if v >= low]
            drawing.curve(seen, "thin", stroke=head_colour(head))
        drawing.text(drawing.right - 4, bottom + 11, title, "tick small end")
        bottom += panel + 10
    bottom += 14 * bool(panels)
    drawing.text(drawing.left, bottom - 5, "where the heads look", "tick small")
    height = layers * heads * row_height
    drawing.unseen(axis(train_length), bottom, height)
    place = {"x": drawing.left, "y": bottom, "width": drawing.right - drawing.left}
    picture = _heat_rows(trained, axis, int(place["width"]))
    fit = {"preserveAspectRatio": "none", "class_": "pixels"}
    drawing.add("image", href=picture, **place, height=height, **fit)
    for layer in range(layers):
        edge = bottom + layer * heads * row_height
        middle = edge + 0.5 * heads * row_height
        drawing.text(drawing.left - 6, middle + 3.5, f"L{layer + 1}", "tick small end")
        if layer:
            drawing.across(edge, "gap")
    bottom += height
    for mark in axis.marks():
        drawing.text(axis(mark), bottom + 14, f"{mark:,}", "tick small mid")
    middle = (drawing.left + drawing.right) / 2
    drawing.text(middle, bottom + 29, "tokens back", "axis small mid")
    drawing.height = bottom + 34
    return drawing.svg(f"{trained.run.label}: score and attention over distance")


def _distinct_layers(curves: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if all(np.allclose(curves[0], layer, atol=1e-4) for layer in curves[1:]):
        return [("all layers", curves[0])]
    return [(f"layer {number}", layer) for number, layer in enumerate(curves, 1)]


def _heat_rows(trained: Trained, axis: DistanceAxis, width: int) -> str:
    """A picture of a row for each head, so that equal areas of colour are equal shares."""
    heat, edges = trained.arrays["attention"], trained.arrays["edges"]
    # The distance class of each column of pixels; the axis is longer than the picture's keys.
    distance = 2 ** ((np.arange(width) + 0.5) / width * math.log2(1 + axis.longest)) - 1
    classes = np.searchsorted(edges, distance, side="right") - 1
    inside = classes < len(edges) - 1
    density = heat.reshape(-1, heat.shape[-1]) / np.diff(np.log2(1 + edges))
    rows = density[:, np.minimum(classes, len(edges) - 2)] * inside
    return svg.picture(np.sqrt(rows), trained.run.colour)


def triangles(trained: Trained) -> list[tuple[str, str]]:
    """(caption, image address) of every head's weights over the first tokens."""
    weights = trained.arrays["triangle"]
    return [
        (
            f"layer {layer + 1}, head {head + 1}",
            svg.picture(np.sqrt(weights[layer, head]), trained.run.colour),
        )
        for layer in range(weights.shape[0])
        for head in range(weights.shape[1])
    ]


def training_curves(outcome: Outcome, width: int, height: int) -> Markup:
    """Training losses, smoothed over a twentieth of the run."""
    drawing = svg.Drawing(width, height, left=40, right=12, top=20, bottom=34)
    steps = len(outcome.plan.starts)
    kernel = max(1, steps // 20)
    smooth = [
        (t.run.colour, np.convolve(t.train_losses, np.ones(kernel) / kernel, mode="valid"))
        for t in outcome.trained
    ]
    low = min(float(values.min()) for _, values in smooth)
    high = max(float(values.max()) for _, values in smooth)
    high = min(high, low + 2.5)  # losses of the first steps may be far higher
    x = svg.scale(0, steps, drawing.left, drawing.right)
    y = svg.scale(low, high, drawing.bottom, drawing.top)
    for value in svg.ticks(low, high):
        drawing.level(y(value), f"{value:g}")
    for value in svg.ticks(0, steps, 4):
        drawing.text(x(value), drawing.bottom + 18, f"{value:g}", "tick mid")
    drawing.text(drawing.left - 30, 10, "training loss", "axis")
    drawing.text(drawing.right, height - 2, "steps", "axis end")
    for colour, values in smooth:
        points = [(x(n + kernel), y(value)) for n, value in enumerate(values) if value <= high]
        drawing.curve(points, "thin", stroke=colour)
    return drawing.svg("Training loss of every scheme", _size(width))


def piano_roll(notes: list[Note], prompt_steps: int, steps: int, width: int, height: int) -> Markup:
    drawing = svg.Drawing(width, height, left=34, right=6, top=22, bottom=22)
    left, right, top, bottom = drawing.left, drawing.right, drawing.top, drawing.bottom
    pitches = [note.pitch for note in notes] or [LOWEST_PITCH, HIGHEST_PITCH]
    x = svg.scale(0, steps, left, right)
    y = svg.scale(min(pitches) - 1.5, max(pitches) + 1.5, bottom, top)
    row = y(0) - y(1)
    begin = x(prompt_steps)
    drawing.unseen(begin, top, bottom - top)
    drawing.text(left + 2, top - 7, "Bach", "axis")
    drawing.text(begin + 2, top - 7, "the model goes on", "axis")
    for pitch in range(min(pitches) - 1, max(pitches) + 2):
        if pitch % 12 == 0:
            drawing.level(y(pitch), f"C{pitch // 12 - 1}")
    for quarter in range(0, steps // STEPS_PER_QUARTER + 1, 8):
        drawing.text(x(quarter * STEPS_PER_QUARTER), height - 6, f"{quarter}", "tick mid")
    drawing.text(right, top - 7, "quarters below", "tick end")
    for note in notes:
        place = {"x": x(note.start) + 0.4, "y": y(note.pitch) - row * 0.46}
        long = max(1.0, x(note.length) - left - 0.8)
        colour = VOICE_COLOURS[note.voice]
        drawing.add("rect", **place, width=long, height=row * 0.92, rx=1.5, fill=colour)
    ends = {"x1": left, "y1": top, "x2": left, "y2": bottom}
    path = {"data_left": left, "data_right": right, "data_steps": steps}
    drawing.add("line", **ends, class_="playhead", **path)
    return drawing.svg("The continuation as a piano roll", _size(width))
