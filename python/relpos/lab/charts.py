"""The pictures of the report."""

from __future__ import annotations

import math

import numpy as np

from relpos.lab import svg
from relpos.lab.chorales import HIGHEST_PITCH, LOWEST_PITCH, STEPS_PER_QUARTER, Note
from relpos.lab.experiment import Outcome, Trained

HEAD_COLOURS = ("#2b7bd0", "#e0602c", "#12a079", "#c86aa6", "#d99a0b", "#7a6ff0", "#8b919c")
FLOOR = -12.0  # scores below it are cut off: exp(-12) is next to nothing
VOICE_COLOURS = ("#e0602c", "#d99a0b", "#12a079", "#2b7bd0")


def _size(width: int) -> str:
    """The size of a drawing; the page has one for wide windows and one for narrow ones."""
    return "narrow" if width < 500 else "wide"


class LossAxes:
    """Test length (log2) and loss, with room for the curves' names on the right."""

    def __init__(self, outcome: Outcome, width: int, height: int) -> None:
        self.plan = plan = outcome.plan
        self.narrow = _size(width) == "narrow"
        self.left, self.edge = 40, width - (96 if self.narrow else 158)
        self.top, self.bottom, self.height = 24, height - 44, height
        losses = [t.tests[n] for t in outcome.trained for n in plan.tests]
        low, high = min([*losses, plan.unigram]), max([*losses, plan.unigram])
        margin = 0.06 * (high - low or 1)
        self.range = low - margin, high + margin
        self.y = svg.scale(*self.range, self.bottom, self.top)
        first, last = plan.tests[0], plan.tests[-1]
        x_edge = 0.12 * (math.log2(last / first) or 1)
        start = math.log2(min(first, plan.shape.length)) - x_edge
        self._x = svg.scale(start, math.log2(last), self.left, self.edge)

    def x(self, length: float) -> float:
        return self._x(math.log2(length))

    def drawn(self) -> list[str]:
        plan, parts = self.plan, []
        if plan.tests[-1] > plan.shape.length:
            begin = self.x(plan.shape.length)
            size = {"width": self.edge - begin, "height": self.bottom - self.top}
            parts.append(svg.tag("rect", x=begin, y=self.top, **size, class_="unseen"))
            over = "longer than in training"
            parts.append(svg.text(self.edge, self.top - 10, over, class_="faint end"))
        for value in svg.ticks(*self.range):
            at = self.y(value)
            parts.append(svg.line(self.left, at, self.edge, at, class_="grid"))
            parts.append(svg.text(self.left - 8, at + 4, f"{value:g}", class_="tick end"))
        for length in plan.tests:
            at = self.x(length)
            parts.append(svg.text(at, self.bottom + 20, f"{length:,}", class_="tick mid"))
        middle, below = (self.left + self.edge) / 2, self.height - 6
        parts.append(svg.text(middle, below, "tokens in the test window", class_="axis mid"))
        corner = self.left - 30, self.top - 10
        parts.append(svg.text(*corner, "loss (nats per token)", class_="axis"))
        level = self.y(plan.unigram)
        parts.append(svg.line(self.left, level, self.edge, level, class_="unigram"))
        return parts


def loss_against_length(outcome: Outcome, width: int, height: int) -> str:
    axes = LossAxes(outcome, width, height)
    lengths, edge = outcome.plan.tests, axes.edge
    level = axes.y(outcome.plan.unigram)
    parts = axes.drawn()
    ends = [axes.y(t.tests[lengths[-1]]) for t in outcome.trained] + [level]
    places = svg.spread(ends, 16, axes.top + 4, axes.bottom)
    for t, end, place in zip(outcome.trained, ends, places, strict=False):
        colour = t.run.colour
        points = [(axes.x(n), axes.y(t.tests[n])) for n in lengths]
        parts.append(svg.polyline(points, class_="curve", stroke=colour))
        for (px, py), n in zip(points, lengths, strict=True):
            hint = svg.tag("title", f"{t.run.label}: {t.tests[n]:.3f} at {n:,} tokens")
            parts.append(svg.tag("circle", hint, cx=px, cy=py, r=4, fill=colour, class_="dot"))
        leader = [(edge + 6, end), (edge + 14, place)]
        parts.append(svg.polyline(leader, class_="leader", stroke=colour))
        short = t.scheme.replace("_transformer", " tr.")
        label = short if axes.narrow and len(short) <= len(t.run.label) else t.run.label
        parts.append(svg.text(edge + 18, place + 4, label, class_="label", style=f"fill:{colour}"))
    leader = [(edge + 2, level), (edge + 14, places[-1])]
    parts.append(svg.polyline(leader, class_="leader faintline"))
    parts.append(svg.text(edge + 18, places[-1] + 4, "unigram", class_="label faint"))
    name = "Loss against test length for every scheme"
    return svg.drawing(width, height, "".join(parts), label=name, class_=_size(width))


class DistanceAxis:
    """Backward distances on log2(1 + distance)."""

    def __init__(self, longest: int, left: float, right: float) -> None:
        self.longest = longest
        self._map = svg.scale(0, math.log2(1 + longest), left, right)

    def __call__(self, distance: float) -> float:
        return self._map(math.log2(1 + distance))

    def marks(self) -> list[int]:
        return [0, *(d for d in (1, 4, 16, 64, 256, 1024, 4096, 16384) if d <= self.longest)]


def what_it_learned(trained: Trained, train_length: int) -> str:
    """The card of a scheme: the score that it adds, and how its heads attend, over distance."""
    width, left, right, top = 440, 36, 432, 12
    panel, gap = 74, 10
    distances, curves = trained.arrays["distances"], trained.arrays["score"]
    axis = DistanceAxis(int(distances[-1]), left, right)
    panels = _distinct_layers(curves)
    low, high = max(FLOOR, min(0.0, float(curves.min()))), max(0.0, float(curves.max()))
    if high - low < 1e-9:
        panels = []
    margin = 0.08 * (high - low)
    parts = []
    bottom = top
    for title, curve in panels:
        y = svg.scale(low - margin, high + margin, bottom + panel, bottom)
        parts.append(_unseen(axis, train_length, bottom, panel, right))
        for value in svg.ticks(low - margin, high + margin, 2):
            parts.append(svg.line(left, y(value), right, y(value), class_="grid"))
            parts.append(svg.text(left - 6, y(value) + 3.5, f"{value:g}", class_="tick small end"))
        for head, row in enumerate(curve):
            parts.append(
                svg.polyline(
                    [
                        (axis(d), y(v))
                        for d, v in zip(distances.tolist(), row, strict=True)
                        if v >= low
                    ],
                    class_="thin",
                    stroke=HEAD_COLOURS[head % len(HEAD_COLOURS)],
                )
            )
        parts.append(svg.text(right - 4, bottom + 11, title, class_="tick small end"))
        bottom += panel + gap
    heat = trained.arrays["attention"]
    layers, heads = heat.shape[:2]
    row_height = 7
    if panels:
        bottom += 14
    parts.append(svg.text(left, bottom - 5, "where the heads look", class_="tick small"))
    height = layers * heads * row_height
    parts.append(_unseen(axis, train_length, bottom, height, right))
    parts.append(_heat_rows(trained, axis, left, right, bottom, height))
    for layer in range(layers):
        middle = bottom + (layer + 0.5) * heads * row_height
        parts.append(svg.text(left - 6, middle + 3.5, f"L{layer + 1}", class_="tick small end"))
        if layer:
            edge = bottom + layer * heads * row_height
            parts.append(svg.line(left, edge, right, edge, class_="gap"))
    bottom += height
    for mark in axis.marks():
        parts.append(svg.text(axis(mark), bottom + 14, f"{mark:,}", class_="tick small mid"))
    parts.append(svg.text((left + right) / 2, bottom + 29, "tokens back", class_="axis small mid"))
    return svg.drawing(
        width,
        bottom + 34,
        "".join(parts),
        label=f"{trained.run.label}: score and attention over distance",
    )


def _distinct_layers(curves: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if all(np.allclose(curves[0], layer, atol=1e-4) for layer in curves[1:]):
        return [("all layers", curves[0])]
    return [(f"layer {number}", layer) for number, layer in enumerate(curves, 1)]


def _unseen(axis: DistanceAxis, length: int, top: float, height: float, right: float) -> str:
    begin = axis(length)
    if begin >= right:
        return ""
    return svg.tag("rect", x=begin, y=top, width=right - begin, height=height, class_="unseen")


def _heat_rows(
    trained: Trained, axis: DistanceAxis, left: float, right: float, top: float, height: float
) -> str:
    heat, edges = trained.arrays["attention"], trained.arrays["edges"]
    columns = np.arange(int(right - left))
    # The distance class of each column of pixels; the axis is longer than the picture's keys.
    distance = 2 ** ((columns + 0.5) / len(columns) * math.log2(1 + axis.longest)) - 1
    classes = np.searchsorted(edges, distance, side="right") - 1
    inside = classes < len(edges) - 1
    # Attention per unit of the axis, so that equal areas of colour are equal shares.
    density = heat.reshape(-1, heat.shape[-1]) / np.diff(np.log2(1 + edges))
    rows = density[:, np.minimum(classes, len(edges) - 2)] * inside
    return svg.tag(
        "image",
        href=svg.picture(np.sqrt(rows), trained.run.colour),
        x=left,
        y=top,
        width=right - left,
        height=height,
        preserveAspectRatio="none",
        class_="pixels",
    )


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


def training_curves(outcome: Outcome, width: int, height: int) -> str:
    """Training losses, smoothed over a twentieth of the run."""
    left, right, top, bottom = 40, 12, 20, 34
    steps = len(outcome.plan.starts)
    kernel = max(1, steps // 20)
    smooth = {
        t.scheme: np.convolve(t.train_losses, np.ones(kernel) / kernel, mode="valid")
        for t in outcome.trained
    }
    colours = {t.scheme: t.run.colour for t in outcome.trained}
    low = min(float(values.min()) for values in smooth.values())
    high = max(float(values.max()) for values in smooth.values())
    high = min(high, low + 2.5)  # losses of the first steps may be far higher
    x = svg.scale(0, steps, left, width - right)
    y = svg.scale(low, high, height - bottom, top)
    parts = []
    for value in svg.ticks(low, high):
        parts.append(svg.line(left, y(value), width - right, y(value), class_="grid"))
        parts.append(svg.text(left - 8, y(value) + 4, f"{value:g}", class_="tick end"))
    for value in svg.ticks(0, steps, 4):
        parts.append(svg.text(x(value), height - bottom + 18, f"{value:g}", class_="tick mid"))
    parts.append(svg.text(left - 30, 10, "training loss", class_="axis"))
    parts.append(svg.text(width - right, height - 2, "steps", class_="axis end"))
    for scheme, values in smooth.items():
        points = [
            (x(step + kernel), y(value)) for step, value in enumerate(values) if value <= high
        ]
        parts.append(svg.polyline(points, class_="thin", stroke=colours[scheme]))
    return svg.drawing(
        width, height, "".join(parts), label="Training loss of every scheme", class_=_size(width)
    )


def piano_roll(notes: list[Note], prompt_steps: int, steps: int, width: int, height: int) -> str:
    left, right, top, bottom = 34, 6, 22, 22
    pitches = [note.pitch for note in notes] or [LOWEST_PITCH, HIGHEST_PITCH]
    x = svg.scale(0, steps, left, width - right)
    y = svg.scale(min(pitches) - 1.5, max(pitches) + 1.5, height - bottom, top)
    row = abs(y(1) - y(0))
    begin = x(prompt_steps)
    parts = [
        svg.tag(
            "rect",
            x=begin,
            y=top,
            width=width - right - begin,
            height=height - bottom - top,
            class_="unseen",
        ),
        svg.text(left + 2, top - 7, "Bach", class_="axis"),
        svg.text(begin + 2, top - 7, "the model goes on", class_="axis"),
    ]
    for pitch in range(min(pitches) - 1, max(pitches) + 2):
        if pitch % 12 == 0:
            parts.append(svg.line(left, y(pitch), width - right, y(pitch), class_="grid"))
            name = f"C{pitch // 12 - 1}"
            parts.append(svg.text(left - 6, y(pitch) + 4, name, class_="tick end"))
    for quarter in range(0, steps // STEPS_PER_QUARTER + 1, 8):
        at = x(quarter * STEPS_PER_QUARTER)
        parts.append(svg.text(at, height - 6, f"{quarter}", class_="tick mid"))
    parts.append(svg.text(width - right, top - 7, "quarters below", class_="tick end"))
    for note in notes:
        parts.append(
            svg.tag(
                "rect",
                x=round(x(note.start) + 0.4, 2),
                y=round(y(note.pitch) - row * 0.46, 2),
                width=round(max(1.0, x(note.start + note.length) - x(note.start) - 0.8), 2),
                height=round(row * 0.92, 2),
                rx=1.5,
                fill=VOICE_COLOURS[note.voice],
            )
        )
    parts.append(
        svg.line(
            left,
            top,
            left,
            height - bottom,
            class_="playhead",
            data_left=left,
            data_right=width - right,
            data_steps=steps,
        )
    )
    return svg.drawing(
        width, height, "".join(parts), label="The continuation as a piano roll", class_=_size(width)
    )
