"""Draws docs/schemes.svg and docs/families/*.svg: what relpos gives to every pair of a small grid,
scheme by scheme; and the picture of one scheme for its page (scripts/scheme_pages.py).

.venv/bin/python scripts/draw_picture.py [FOLDER]    FOLDER: docs
"""

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

import relpos
import torch
from relpos.lab import svg
from relpos.lab.positions import RUNS

LENGTH = 24  # queries and keys of a matrix; the curve goes as far to both sides
GRID = (4, 6)  # the same number of patches, for schemes of images
CELL = 5.5
SIDE = LENGTH * CELL
GAP, LEFT, TOP = 26, 20, 62
CURVE = 64
QUERY = 8  # the patch whose row is drawn on the grid
NONE_COLOUR = "#dfe2e7"  # a pair without a class
RAMP = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
STROKES = [run.colour for run in RUNS.values()][1:]


class Panel(NamedTuple):
    """values(queries, keys, q_offset=...) is [heads, queries, keys]; integers are classes, -1 for
    none. Of schemes of images the row of one query is drawn on the grid. `limits` are the lowest
    and highest value of the colours and curves, if not those of the values."""

    name: str
    about: str
    values: Callable[..., torch.Tensor]
    image: bool = False
    limits: tuple[float, float] | None = None


def classes(position):
    return lambda *grid, q_offset=None: position.indices(*grid, q_offset=q_offset)[None]


def numbers(position):
    return lambda *grid, q_offset=None: position.dense(*grid, q_offset=q_offset)


def products(position):
    """A position's rows times a query of ones."""
    return lambda *grid, q_offset=None: position.dense(*grid, q_offset=q_offset).sum(-1)


def turned(position, dim=32):
    """The score that a rotation leaves of equal queries and keys."""

    def values(queries, keys, q_offset=None):
        rows = [torch.ones(1, 1, n, dim) for n in (queries, keys)]
        options = {"scale": 1 / dim, "q_offset": q_offset or 0}
        return relpos.scores(*rows, position=position, **options)[0]

    return values


def weights(sink):
    """Causal weights with the biases of ALiBi and a sink."""

    def values(queries, keys, q_offset=None):
        rows = [torch.zeros(1, 1, n, 2) for n in (queries, keys, keys)]
        sinks = None if sink is None else torch.tensor([sink])
        options = {"is_causal": True, "q_offset": q_offset or 0, "return_weights": True}
        position = relpos.ALiBi(1, slopes=[0.15])
        return relpos.attention(*rows, position=position, sinks=sinks, **options)[1][0]

    return values


def rope(kind, **options):
    return turned(kind(32, layout="half", **options))


def drawn(position):
    """Its random numbers, always the same."""
    torch.manual_seed(0)
    position.reset_parameters()
    return position


FIRE_EXAMPLE = relpos.FIRE(8, init_L=2 * LENGTH)
MASS = (0.0, 0.2)  # of the weights of attention
SHORT = {"original_max_position_embeddings": 8}
PICTURES = {
    "schemes.svg": [
        Panel("rope", "score of equal vectors", rope(relpos.RoPE)),
        Panel("alibi", "bias, 8 heads", numbers(relpos.ALiBi(8))),
        Panel("t5", "bucket of each pair", classes(relpos.T5Bias(1, 16, 24))),
        Panel("shaw", "row of each pair", classes(relpos.Shaw(7, 8))),
        Panel("music_transformer", "row of each pair", classes(relpos.MusicTransformer(17, 8))),
        Panel("bias_rpe", "number of each pair", classes(relpos.BiasRPE(1, 12))),
    ],
    "families/rotations.svg": [
        Panel("rope", "score of equal vectors", rope(relpos.RoPE)),
        Panel("rope_linear", "factor 4", rope(relpos.LinearRoPE, factor=4.0)),
        Panel("rope_ntk", "factor 4", rope(relpos.NTKRoPE, factor=4.0)),
        Panel("rope_yarn", "factor 4", rope(relpos.YaRN, factor=4.0, **SHORT)),
        Panel("xpos", "for past keys alone", rope(relpos.XPos, scale_base=16)),
        Panel("rope_axial", "4 x 6 patches", rope(relpos.AxialRoPE, grid=GRID), image=True),
    ],
    "families/biases.svg": [
        Panel("alibi", "8 heads", numbers(relpos.ALiBi(8))),
        Panel("t5", "bucket of each pair", classes(relpos.T5Bias(1, 16, 24))),
        Panel("kerple_log", "8 heads", numbers(drawn(relpos.KerpleLog(8)))),
        Panel("sandwich", "8 heads", numbers(relpos.Sandwich(8))),
        Panel("fire", "8 heads, untrained", numbers(drawn(FIRE_EXAMPLE))),
        Panel("alibi_2d", "4 x 6 patches", numbers(relpos.ALiBi2D(8, grid=GRID)), image=True),
    ],
    "families/rows.svg": [
        Panel("shaw", "row of each pair", classes(relpos.Shaw(7, 8))),
        Panel(
            "deberta", "row of each pair", classes(relpos.DeBERTa(1, 8, buckets=8, max_distance=24))
        ),
        Panel("vits", "row of each pair", classes(relpos.VITS(4, 8))),
        Panel("transformer_xl", "query of ones", products(drawn(relpos.TransformerXL(1, 8, 32)))),
        Panel("relative_key", "row of each pair", classes(relpos.RelativeKey(12, 8))),
        Panel("decomposed", "row of rel_pos_h", classes(relpos.Decomposed(8, GRID)), image=True),
    ],
    "families/sinks.svg": [
        Panel("none", "weights sum to 1", weights(None), limits=MASS),
        *(
            Panel(f"sinks {sink}".replace("-", "−"), "to less", weights(float(sink)), limits=MASS)
            for sink in (-2, 0, 1, 2, 4)
        ),
    ],
}


def text(x, y, content, **attributes):
    return svg.tag("text", escape(content), x=x, y=y, **attributes)


def line(x1, y1, x2, y2):
    return svg.tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="#c9ced6")


def drawing(width, height, content, label, shown=None):
    """A white page, so that it can be read on a dark one; `shown` times as large, or as wide as its
    place."""
    style = (
        "text{font-family:system-ui,sans-serif;fill:#2a2f37}.name{font-size:13px;font-weight:600}"
        ".small{font-size:10.5px;fill:#5b6472}"
    )
    page = svg.tag("rect", width=width, height=height, rx=8, fill="#ffffff")
    about = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria_label": label}
    if shown:
        about |= {"width": f"{shown * width:g}", "height": f"{shown * height:g}"}
    content = svg.tag("style", style) + page + content
    return svg.tag("svg", content, xmlns="http://www.w3.org/2000/svg", **about) + "\n"


def colour(t):
    place = min(max(t, 0.0), 1.0) * (len(RAMP) - 1)
    n = min(int(place), len(RAMP) - 2)
    low, high = ([int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in RAMP[n : n + 2])
    return "#" + "".join(
        f"{round(a + (place - n) * (b - a)):02x}" for a, b in zip(low, high, strict=True)
    )


def matrix(values, limits, x, y, cell=CELL):
    """Queries go down, keys to the right; cells of one colour are one path."""
    low, high = limits or (float(values.min()), float(values.max()))
    cells = {}
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            none = values.dtype == torch.int64 and value < 0
            fill = NONE_COLOUR if none else colour((value - low) / ((high - low) or 1))
            cells.setdefault(fill, []).append(f"M{j} {i}h1v1h-1z")
    paths = "".join(svg.tag("path", d="".join(d), fill=fill) for fill, d in cells.items())
    return svg.tag(
        "g", paths, transform=f"translate({x:g} {y:g}) scale({cell})", shape_rendering="crispEdges"
    )


def curves(heads, limits, x, y, stroke):
    """One query's row over the distance of the key, past to the left."""
    shown = heads[heads >= 0] if heads.dtype == torch.int64 else heads
    low, high = limits or (float(shown.min()), float(shown.max()))
    to_x = svg.scale(1 - LENGTH, LENGTH - 1, x, x + SIDE)
    to_y = svg.scale(low, high, y + CURVE - 4, y + 4)
    parts = [
        line(to_x(0), y, to_x(0), y + CURVE),
        line(x, y + CURVE, x + SIDE, y + CURVE),
    ]
    for row in heads.tolist():
        stretch = [
            (to_x(n - LENGTH + 1), to_y(value))
            for n, value in enumerate(row)
            if heads.dtype != torch.int64 or value >= 0
        ]
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in stretch)
        parts.append(
            svg.tag("polyline", points=points, fill="none", stroke=stroke, stroke_width=1.4)
        )
    for distance, anchor in ((1 - LENGTH, "start"), (0, "middle"), (LENGTH - 1, "end")):
        told = f"{distance:+d}".replace("+0", "0").replace("-", "−")
        parts.append(text(to_x(distance), y + CURVE + 14, told, text_anchor=anchor, class_="small"))
    return "".join(parts)


def image(row, x, y):
    """What one patch, the outlined one, gets with every patch of the grid."""
    rows, columns = GRID
    cell = CURVE / rows
    left = x + (SIDE - cell * columns) / 2
    at = QUERY // columns, QUERY % columns
    place = {"x": left + at[1] * cell, "y": y + at[0] * cell, "width": cell, "height": cell}
    outline = svg.tag("rect", **place, fill="none", stroke="#ffffff", stroke_width=2)
    told = text(x + SIDE / 2, y + CURVE + 14, "one patch", text_anchor="middle", class_="small")
    return matrix(row.view(GRID), None, left, y, cell) + outline + told


def drawn_at(panel, x, stroke, beside=None):
    """The matrix, and what its rows are: below it, or at `beside`."""
    parts = [
        text(x, TOP - 26, panel.name, class_="name"),
        text(x, TOP - 10, panel.about, class_="small"),
    ]
    square = panel.values(LENGTH, LENGTH, q_offset=0).detach()
    head = square[len(square) // 3]
    parts.append(matrix(head, panel.limits, x, TOP))
    place = beside or (x, TOP + SIDE + 12)
    if panel.image:
        parts.append(image(head[QUERY], *place))
    else:
        row = panel.values(1, 2 * LENGTH - 1, q_offset=LENGTH - 1)[:, 0].detach()
        parts.append(curves(row, panel.limits, *place, stroke))
    return "".join(parts)


def picture(panels):
    colours = [
        RUNS[panel.name].colour if panel.name in RUNS else STROKES[n % len(STROKES)]
        for n, panel in enumerate(panels)
    ]
    parts = [drawn_at(panel, LEFT + n * (SIDE + GAP), colours[n]) for n, panel in enumerate(panels)]
    width = 2 * LEFT + len(panels) * (SIDE + GAP) - GAP
    bottom = TOP + SIDE + 12 + CURVE + 34
    note = (
        "above: queries down, keys to the right, one head   ·   below: the same over "
        "position of the key − position of the query   ·   grey: no term"
    )
    parts.append(text(width / 2, bottom, note, text_anchor="middle", class_="small"))
    *names, last = (panel.name for panel in panels)
    label = f"What {', '.join(names)} and {last} give to pairs of positions"
    return drawing(width, bottom + 14, "".join(parts), label)


def inputs_of(scheme, description, queries, keys, q_offset):
    """Inputs of a call for the picture: one segment and then another, boxes along a line, gates of
    a tenth, angles of RoPE."""
    made = []
    at = {"q": torch.arange(queries) + (q_offset or 0), "k": torch.arange(keys)}
    sizes = {"batch": 1, "heads": 8, "queries": queries, "keys": keys}
    for spec in [p for p in description.parameters if p.input]:
        places = at["k" if "keys" in spec.shape else "q"]
        if spec.name.endswith("segments"):
            value = (places >= LENGTH // 2).long()[None]
        elif spec.name.endswith("coordinates"):
            value = 10 * places.expand(1, spec.shape[1], -1)
        elif scheme.name == "rotary_tables":
            turns = relpos.RoPE(DIM, layout="half").tables(int(places[-1]) + 1)
            value = turns[spec.name.endswith("sin")][places, : DIM // 2][None]
        elif spec.name == "log_f":
            value = torch.full([1, 8, keys], -0.1)
        else:  # what a query says of each row
            shape = [sizes.get(size, size) for size in spec.shape]
            value = torch.linspace(1, 0, shape[-1]).expand(shape)
        made.append(value)
    return made


DIM = 32
IMAGES = {"grid": GRID, "window": GRID}


def of_scheme(scheme):
    """The panel of a scheme's page: as in the picture of its family, else what joins the score of a
    query and a key of ones."""
    for panel in [panel for panels in PICTURES.values() for panel in panels]:
        if panel.name == scheme.name:
            return panel
    if scheme.family == "sink":
        return Panel(scheme.name, "causal weights, sink 0", weights(0.0), limits=MASS)
    given = {name: value for name, value in scheme.example().items() if name not in IMAGES}
    if "head_dim" in given:
        given["head_dim"] = DIM
    if "layout" in given:
        given["layout"] = "half"
    names = {option.name for option in scheme.options}
    of_images = names & IMAGES.keys()
    if of_images:
        given |= dict.fromkeys(of_images, GRID)
    if "prefix" in names:
        given["prefix"] = 0
    position = getattr(relpos, scheme.class_name)(**given)
    description = scheme.describe(**given)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in position.parameters():
            if parameter.numel() > 1 and parameter.min() == parameter.max():
                parameter.normal_()

    def values(queries, keys, q_offset=None):
        rows = [torch.ones(1, 8, n, DIM) for n in (queries, keys)]
        inputs = inputs_of(scheme, description, queries, keys, q_offset)
        of_call = position(*inputs) if inputs else position
        if isinstance(q_offset, int) and (of_images or not description.reads_positions):
            q_offset = None if queries == keys else q_offset
        options = {} if q_offset is None else {"q_offset": q_offset}
        with torch.no_grad():
            return relpos.scores(*rows, position=of_call, scale=1 / DIM, **options)[0]

    return Panel(scheme.name, "score of vectors of ones", values, image=bool(of_images))


def of_page(scheme):
    """The picture of one scheme: the matrix on the left, its rows on the right."""
    right = 2 * LEFT + SIDE + GAP, TOP + (SIDE - CURVE) / 2
    width = right[0] + SIDE + LEFT
    content = drawn_at(of_scheme(scheme), LEFT, STROKES[0], right)
    label = f"What {scheme.name} gives to pairs of positions"
    return drawing(width, TOP + SIDE + LEFT, content, label, shown=1.25)


if __name__ == "__main__":
    default = Path(__file__).resolve().parent.parent / "docs"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    (folder / "families").mkdir(parents=True, exist_ok=True)
    for name, panels in PICTURES.items():
        (folder / name).write_text(picture(panels))
