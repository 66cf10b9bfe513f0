"""Draws docs/schemes.svg: what relpos gives to every pair of a small grid, scheme by scheme.

.venv/bin/python scripts/draw_picture.py [FILE]
"""

import sys
from pathlib import Path

import relpos
import torch
from relpos.lab import svg
from relpos.lab.positions import RUNS

LENGTH = 24  # queries and keys of a matrix; the curve goes as far to both sides
CELL = 5.5
SIDE = LENGTH * CELL
GAP, LEFT, TOP = 26, 20, 62
CURVE = 64
NONE_COLOUR = "#dfe2e7"  # a pair without a class
RAMP = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")


def classes(position):
    return lambda *grid, q_offset=None: position.indices(*grid, q_offset=q_offset)[None]


def numbers(position):
    return lambda *grid, q_offset=None: position.dense(*grid, q_offset=q_offset)


def turned(dim):
    """The score that a rotation leaves of equal queries and keys."""

    def values(queries, keys, q_offset=None):
        rows = [torch.ones(1, 1, n, dim) for n in (queries, keys)]
        rope = relpos.RoPE(dim, layout="half")
        return relpos.scores(*rows, position=rope, scale=1 / dim, q_offset=q_offset or 0)[0]

    return values


PANELS = [
    ("rope", "score of equal vectors", turned(32)),
    ("alibi", "bias, 8 heads", numbers(relpos.ALiBi(8))),
    ("t5", "bucket of each pair", classes(relpos.T5Bias(1, 16, 24))),
    ("shaw", "row of each pair", classes(relpos.Shaw(7, 8))),
    ("music_transformer", "row of each pair", classes(relpos.MusicTransformer(17, 8))),
    ("bias_rpe", "number of each pair", classes(relpos.BiasRPE(1, 12))),
]


def colour(t):
    place = min(max(t, 0.0), 1.0) * (len(RAMP) - 1)
    n = min(int(place), len(RAMP) - 2)
    low, high = ([int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in RAMP[n : n + 2])
    return "#" + "".join(
        f"{round(a + (place - n) * (b - a)):02x}" for a, b in zip(low, high, strict=True)
    )


def matrix(values, x, y):
    """Queries go down, keys to the right; cells of one colour are one path."""
    low, high = float(values.min()), float(values.max())
    cells = {}
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            none = values.dtype == torch.int64 and value < 0
            fill = NONE_COLOUR if none else colour((value - low) / ((high - low) or 1))
            cells.setdefault(fill, []).append(f"M{j} {i}h1v1h-1z")
    paths = "".join(svg.tag("path", d="".join(d), fill=fill) for fill, d in cells.items())
    return svg.tag(
        "g", paths, transform=f"translate({x:g} {y:g}) scale({CELL})", shape_rendering="crispEdges"
    )


def curves(heads, x, y, stroke):
    """One query's row over the distance of the key, past to the left."""
    shown = heads[heads >= 0] if heads.dtype == torch.int64 else heads
    low, high = float(shown.min()), float(shown.max())
    to_x = svg.scale(1 - LENGTH, LENGTH - 1, x, x + SIDE)
    to_y = svg.scale(low, high, y + CURVE - 4, y + 4)
    parts = [
        svg.line(to_x(0), y, to_x(0), y + CURVE, stroke="#c9ced6"),
        svg.line(x, y + CURVE, x + SIDE, y + CURVE, stroke="#c9ced6"),
    ]
    for row in heads.tolist():
        stretch = [
            (to_x(n - LENGTH + 1), to_y(value))
            for n, value in enumerate(row)
            if heads.dtype != torch.int64 or value >= 0
        ]
        parts.append(svg.polyline(stretch, fill="none", stroke=stroke, stroke_width=1.4))
    for distance, anchor in ((1 - LENGTH, "start"), (0, "middle"), (LENGTH - 1, "end")):
        text = f"{distance:+d}".replace("+0", "0").replace("-", "−")
        parts.append(
            svg.text(to_x(distance), y + CURVE + 14, text, text_anchor=anchor, class_="small")
        )
    return "".join(parts)


def picture():
    parts = []
    for n, (name, about, values) in enumerate(PANELS):
        x = LEFT + n * (SIDE + GAP)
        parts.append(svg.text(x, TOP - 26, name, class_="name"))
        parts.append(svg.text(x, TOP - 10, about, class_="small"))
        square = values(LENGTH, LENGTH, q_offset=0).detach()
        parts.append(matrix(square[len(square) // 3], x, TOP))
        row = values(1, 2 * LENGTH - 1, q_offset=LENGTH - 1)[:, 0].detach()
        parts.append(curves(row, x, TOP + SIDE + 12, RUNS[name].colour))
    width = 2 * LEFT + len(PANELS) * (SIDE + GAP) - GAP
    bottom = TOP + SIDE + 12 + CURVE + 34
    note = (
        "above: queries down, keys to the right, one head   ·   below: the same over "
        "position of the key − position of the query   ·   grey: no term"
    )
    parts.append(svg.text(width / 2, bottom, note, text_anchor="middle", class_="small"))
    style = (
        "text{font-family:system-ui,sans-serif;fill:#2a2f37}.name{font-size:13px;font-weight:600}"
        ".small{font-size:10.5px;fill:#5b6472}"
    )
    height = bottom + 14
    page = svg.tag("rect", width=width, height=height, rx=8, fill="#ffffff")
    label = "What rope, alibi, t5, shaw, music_transformer and bias_rpe give to pairs of positions"
    content = svg.tag("style", style) + page + "".join(parts)
    drawing = svg.drawing(width, height, content, label=label)
    return drawing.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1) + "\n"


if __name__ == "__main__":
    default = Path(__file__).resolve().parent.parent / "docs" / "schemes.svg"
    Path(sys.argv[1] if len(sys.argv) > 1 else default).write_text(picture())
