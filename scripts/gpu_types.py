"""The types of the arguments of the GPU's kernels, as run.py gives them, for gpu_check.py."""

from typing import Any

from relpos.gpu.masks import dense, padding
from relpos.gpu.masks import tiles as tile_masks
from relpos.gpu.pairs.dropout import Dropout
from relpos.gpu.problem import Places, Problem, Spans
from relpos.gpu.terms import bias, classes, columns, coordinates, key_bias, rotation, sinks, slopes
from relpos.gpu.terms import rows as row_terms

ELEMENTS = {16: "bf16", 32: "fp32"}
PLACES = Places("*i64", "*i64", "i32", "i32")
PROBLEM = Problem(
    scale="fp32",
    shifts="*i64",
    left="i64",
    right="i64",
    places=None,
    spans=None,
    terms=(),
    window=("i64", "i64"),
    masks=(),
    sinks=(),
    softcap=None,
    dropout=None,
    row_shift=None,
)
SPANS = Spans("*i32", "i32", "*i32", "i32")
SINK = sinks.Sink("*fp32", "i32", "i32", "i32", "fp32")
MASK = dense.Pairs("*bf16", "i32", "i32", "i32", "i32")
TILES = tile_masks.Tiles("*i32", "*i64", "i32", "i32", "i32", "i32", "i32")
NUMBERS = rotation.Strided("*fp32", "i32", "i32", "i32", "i32", "fp32")  # of a rotation
HALF = NUMBERS._replace(data="*bf16")
TURN = rotation.Turn(NUMBERS, NUMBERS, "i32", "i32", "i32", "i32", "i32")
EVERYTHING = PROBLEM._replace(
    places=PLACES,
    spans=SPANS,
    sinks=(SINK,),
    softcap="fp32",
    dropout=Dropout("*i64", "fp32", "i32"),
)
PADDING = (padding.hide_padding, padding.Padding("*u8", "i32", "i32"))
MASKS = {
    "added mask": (PADDING, (dense.add_mask, MASK)),
    "mask by tiles": (PADDING, (tile_masks.hide_by_tiles, TILES)),
    "mask of bool": (PADDING, (dense.hide_unseen, MASK._replace(data="*u8"))),
}
ROWS = row_terms.Rows("*fp32", "*fp32", "i32", "i64", "i32")
COLUMNS = columns.Columns("*fp32", "*fp32", "i32", "i32", "i64", "i32")
NEAREST = slopes.Nearest("*i64", "i32", "i32")
LINES = (
    (slopes.Slopes("*fp32", "i32", NEAREST), slopes.slope_score),
    (key_bias.KeyBias("*fp32", "*fp32", "i32", "i32", "*fp32", "*fp32"), key_bias.key_score),
)
BIAS = bias.Bias("*fp32", "i32", "i64", "i32"), bias.bias_score
OF_QUERIES, OF_KEYS = (ROWS, row_terms.row_score), (COLUMNS, columns.column_score)
AT_COORDINATES = (
    (coordinates.AtCoordinates(BIAS[0], PLACES), coordinates.coordinate_score),
    *((coordinates.AtCoordinates(ROWS, PLACES), coordinates.coordinate_row_score),) * 2,
)
CLASSES = MASK._replace(data="*u8")
CLASSED = (
    (classes.OfClasses(BIAS[0], CLASSES), classes.class_score),
    (classes.OfClasses(ROWS, CLASSES), classes.class_row_score),
)
HIDDEN = (dense.hide_class, dense.Hidden(CLASSES, "i32"))
# Types of arguments by name; others are int32, or DESCRIPTORS, or constants.
TYPES: dict[str, Any] = dict.fromkeys(
    [
        "softmax",
        "cos",
        "sin",
        "lse",
        "sums",
        "ends",
        "tiles",
        "pairs",
        "cells",
        "dlse",
        "parts",
        "states",
        "shift",
        "lines",
        "key_sums",
    ],
    "*fp32",
)
TYPES |= dict.fromkeys(["slope", "multiplier"], "fp32")
TYPES |= dict.fromkeys(["lo", "hi"], "i64") | {"edges": "*i64"}
TYPES |= {"by_distance": "*fp64", "shifts": "*i64", "places": PLACES, "ordered": "*i64"}
TYPES |= {"added": row_terms.Added("*fp32", "i32", "i32", "fp32"), "band": "*fp32"}
TYPES |= {"spans": SPANS, "found": "*i32", "sink": SINK}
TYPES |= dict.fromkeys(["x", "to", "of_cos", "of_sin"], HALF)
TYPES |= {"dy": NUMBERS, "turn": TURN, "turns": (TURN, TURN), "at": HALF._replace(data="*i64")}
TYPES |= {"frequency": NUMBERS._replace(data="*fp64"), "factors": "*fp64"}
TYPES |= {"nearest": NEAREST}
TYPES |= dict.fromkeys(["classes", "starts", "order"], "*i32") | {"odd": "*i8"}
OF_KERNEL: dict[str, dict[str, Any]] = {
    "write_table_gradient": {"cells": "*i32", "sums": "*fp64"},
    "sink_gradient": {"gradient": SINK},
    "sum_mask": {"gradient": MASK},
    "find_nearest": {"distance": "*i64", "which": "*i32"},
    "sum_along": {"to": "*fp64", "x": "*fp64"},
    "write_turns": {"pairs": "i32"},
    "sum_angles": {"parts": "*fp64"},
    "fold_angles": {"parts": "*fp64", "gradient": HALF, "pairs": "i32"},
    "sum_band_rows": {"sums": "*fp64", "parts": "i32"},
    "write_rows_gradient": {"cells": "*i32", "sums": "*fp64", "parts": "i32"},
    "write_bands": {"columns": "*fp32"},
    "gather_bands": {"own": "*i64"},
    "gather_classes": {"classes": CLASSES},
    "multiply_bands": {"gradient": "*fp32"},
    "mark_rows": {"x": "*bf16", "y": "*bf16"},
    "join_shares": {"to": "*bf16", "shares": "*fp32", "slope": "fp32"},
    "write_parts": {"parts": "*bf16", "table": "*fp32"},
    "write_pairs": {"to": "*bf16"},
    "write_cells_of_tiles": {"cells": "*i32", "ranges": "*i64", "entries": "*i64", "tiles": "i32"},
}
# Elements, None for those of the call, and blocks of what kernels of tables read.
DESCRIPTORS = {
    ("write_products", "factor"): (None, "ROWS", "COLUMNS"),
    ("sum_band_rows", "factor"): (None, "ROWS", "COLUMNS"),
    ("write_products", "parts"): ("bf16", "CELLS", "COLUMNS"),
    ("multiply_bands", "parts"): ("bf16", "CELLS", "COLUMNS"),
    ("multiply_bands", "bands"): ("fp32", "ROWS", "CELLS"),
    ("sum_band_rows", "bands"): ("fp32", "ROWS", "CELLS"),
}


def pointers(path: tuple[int, ...], type_: Any, attributes: dict[Any, Any]) -> Any:
    """The type as a signature has it, with the alignment of each pointer noted."""
    if isinstance(type_, tuple):
        made = [pointers((*path, n), each, attributes) for n, each in enumerate(type_)]
        return type(type_)(*made) if hasattr(type_, "_fields") else tuple(made)
    if type_ is None:
        return "constexpr"
    if type_.startswith("*"):
        attributes[path] = [["tt.divisibility", 16]]
    return type_
