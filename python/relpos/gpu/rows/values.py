"""Tables whose rows join the values: out_i += sum_j w_ij t[m(delta)], from the weights by query and
distance."""

from typing import Any

from torch import Tensor

from relpos.gpu.lowered.tables import Table
from relpos.gpu.rows.launches import Side, ends_of, products_of, window_of
from relpos.gpu.sums.band_launches import bands_of, finish
from relpos.gpu.sums.bands import Bands, write_weights
from relpos.gpu.sums.pair_launches import gather
from relpos.gpu.sums.row_gradients import bands_times, write_table
from relpos.gpu.sums.targets import Targets
from relpos.gpu.terms.rows import Rows


def add_values(run: Any, out: Tensor, softmax: Tensor) -> None:
    """To out float32 [B, H, Lq, Dv], contiguous."""
    bands = _weights(run, softmax)
    for table in run.lowered.values:
        out += bands_times(run, table, Side(out, run.heads, run.queries), bands)


def met_of(run: Any, dout: Tensor) -> Rows:
    """The products of dout and the tables, which join those of dout and values."""
    side = Side(dout, run.heads, run.queries)
    lo, width, cells = products_of(run, run.lowered.values, side, run.heads, 1.0)
    return Rows(cells, ends_of(cells), run.heads, lo, width)


def write_value_gradients(
    run: Any, tables: list[Table], dout: Tensor, softmax: Tensor, targets: Targets
) -> None:
    if not tables:
        return
    bands = _weights(run, softmax)
    for table in tables:
        write_table(run, table, Side(dout, run.heads, run.queries), bands, targets)


def _weights(run: Any, softmax: Tensor) -> Bands:
    lo, hi = window_of(run, run.lowered.values)
    width, places = hi - lo + 1, run.lowered.places
    bands = bands_of(run, lo, width, of_keys=False)
    if not run.keys:
        bands.cells.zero_()
        return bands
    ends = run.workspace(run.batch, run.heads, run.queries, 2)
    pairs = None
    if places is not None:
        pairs = run.workspace(run.batch, run.heads, run.queries, run.keys)
    sizes = {"heads": run.heads, "lo": lo, "width": width, "pitch": bands.cells.stride(2)}
    to = {"band": bands.cells, "ends": ends, "pairs": pairs}
    run.pairs(write_weights, run.of_queries, softmax=softmax, **to, **sizes)
    if pairs is not None and width > 2:
        gather(run, bands, pairs, places)
    finish(run, bands, ends, run.lowered.shifts if places is None else None)
    return bands
