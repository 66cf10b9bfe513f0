"""The room of bands, and the launch that finishes them."""

from typing import Any

import triton
from torch import Tensor

from relpos.gpu.layout import row_of
from relpos.gpu.sums.bands import Bands, finish_bands

FINISHED = {"ROWS": 16, "CELLS": 64}  # of a program of finish_bands


def bands_of(run: Any, lo: int, width: int, of_keys: bool) -> Bands:
    """Of so many distances from lo on, whose cells are not written yet."""
    sides = [(run.queries, 1), (run.keys, -1)]
    (length, sign), (others, _) = sides[::-1] if of_keys else sides
    cells = run.workspace(run.batch, run.heads, length, row_of(width, 4))[..., :width]
    return Bands(cells, lo, width, length, others, sign)


def finish(run: Any, bands: Bands, ends: Tensor, shifts: Tensor | None) -> None:
    """The last launch that writes bands."""
    if not bands.length:
        return
    run.launch(
        finish_bands,
        (run.batch * run.heads * triton.cdiv(bands.length, FINISHED["ROWS"]),),
        None,
        cells=bands.cells,
        ends=ends,
        shifts=shifts,
        heads=run.heads,
        pitch=bands.cells.stride(2),
        **{name: getattr(bands, name) for name in ("length", "others", "lo", "width", "sign")},
        **FINISHED,
    )
