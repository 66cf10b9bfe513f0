"""Li et al. 2022 (MViTv2), section 4.1, as SAM has it: the query meets a row for the offset in
height and one for that in width, without the scale."""

import torch

from tests.oracles import swin
from tests.oracles.levit import place  # noqa: F401


def configs(heads, head_dim, value_dim):
    return [{"head_dim": head_dim, "grid": grid} for grid in (8, [3, 5], [1, 6], 1)]


def offsets(options, pos_q, pos_k):
    """(side, query - key) of both axes, where a position is y (2 width - 1) + x."""
    height, width = swin.sides({"window": options["grid"]})
    rows = [p.div(2 * width - 1, rounding_mode="floor") for p in (pos_q, pos_k)]
    columns = [p.remainder(2 * width - 1) for p in (pos_q, pos_k)]
    apart = (q[:, None] - k[None, :] for q, k in (rows, columns))
    return zip((height, width), apart, strict=True)


def rows_of(table, side, offset):
    """Rows of a table whose middle one is of offset 0; zeros outside."""
    held = (offset.abs() < side)[..., None]
    return torch.where(held, table[(offset + side - 1).clamp(0, 2 * side - 2)], 0.0)


def terms(options, parameters, pos_q, pos_k):
    tables = parameters["rel_pos_h"], parameters["rel_pos_w"]
    pairs = zip(tables, offsets(options, pos_q, pos_k), strict=True)
    return {"unscaled_rows": sum(rows_of(table, *at) for table, at in pairs)}
