"""Srinivas et al. 2021 (BoTNet), figure 4: as decomposed, of key - query, and with the scale."""

from tests.oracles.decomposed import configs, offsets, place, rows_of  # noqa: F401


def terms(options, parameters, pos_q, pos_k):
    tables = parameters["height_rel"], parameters["width_rel"]
    pairs = zip(tables, offsets(options, pos_q, pos_k), strict=True)
    return {"key_rows": sum(rows_of(table, side, -at) for table, (side, at) in pairs)}
