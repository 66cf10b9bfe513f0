"""The sizes of tiles: a table, so that the same call has the same bits wherever and whenever it
runs on a chip. scripts/gpu_check.py compiles each row and reads its registers.

Keys of the table: chip (80: Ampere and Ada, with 99 KiB of shared memory on the smallest; 90:
Hopper; 100: Blackwell), kernel, bits of an element, largest head size. Rows of Hopper in 16 bits
are the fastest of some that were timed on an H200 and an H100 (docs/gpu.md); the others are what
fits."""

from typing import Any, NamedTuple


class Tile(NamedTuple):
    queries: int
    keys: int
    warps: int
    stages: int


SHARED_KIB = {80: 99, 90: 227, 100: 227}  # of a block, on the smallest chip of the row
HEAD_DIMS = (64, 128, 256)
# Kernels that multiply a part of D at a time.
SLICED = ("sum_diagonals", "sum_pairs", "sum_mask", "write_bands", "write_pairs")
# Kernels that have the tiles of others.
_LIKE = {"sum_mask": "sum_pairs", "write_pairs": "sum_pairs"}

# Kernels whose registers do not depend on the head size have one row, of the largest.
TABLE = {
    (80, "forward", 16, 64): Tile(128, 64, 8, 3),
    (80, "forward", 16, 128): Tile(128, 32, 8, 2),
    (80, "forward", 32, 64): Tile(64, 32, 4, 2),
    (80, "forward", 32, 128): Tile(32, 32, 8, 1),
    (80, "backward_queries", 16, 64): Tile(64, 32, 4, 2),
    (80, "backward_queries", 16, 128): Tile(64, 32, 8, 2),
    (80, "backward_queries", 32, 64): Tile(32, 32, 8, 1),
    (80, "backward_queries", 32, 128): Tile(32, 16, 8, 1),
    (80, "backward_keys", 16, 64): Tile(16, 128, 8, 1),
    (80, "backward_keys", 16, 128): Tile(32, 64, 8, 1),
    (80, "backward_keys", 32, 64): Tile(32, 32, 8, 1),
    (80, "backward_keys", 32, 128): Tile(16, 16, 4, 1),
    (80, "forward", 16, 256): Tile(64, 16, 8, 1),
    (80, "forward", 32, 256): Tile(16, 16, 8, 1),
    (80, "backward_queries", 16, 256): Tile(32, 16, 8, 1),
    (80, "backward_queries", 32, 256): Tile(16, 16, 8, 1),
    (80, "backward_keys", 16, 256): Tile(16, 32, 8, 1),
    (80, "backward_keys", 32, 256): Tile(16, 16, 8, 1),
    (80, "sum_diagonals", 16, 256): Tile(64, 64, 8, 1),
    (80, "sum_pairs", 16, 256): Tile(16, 16, 8, 1),
    (80, "sum_diagonals", 32, 256): Tile(32, 32, 4, 1),
    (80, "sum_pairs", 32, 256): Tile(16, 16, 8, 1),
    (80, "write_bands", 16, 256): Tile(16, 16, 8, 1),
    (80, "write_weights", 16, 256): Tile(16, 16, 4, 1),
    (80, "write_bands", 32, 256): Tile(16, 16, 8, 1),
    (80, "write_weights", 32, 256): Tile(16, 16, 8, 1),
    (90, "forward", 16, 64): Tile(128, 64, 8, 3),
    (90, "forward", 16, 128): Tile(64, 64, 4, 3),
    (90, "forward", 32, 64): Tile(64, 32, 4, 2),
    (90, "forward", 32, 128): Tile(16, 32, 4, 2),
    (90, "backward_queries", 16, 64): Tile(128, 64, 8, 3),
    (90, "backward_queries", 16, 128): Tile(64, 64, 4, 2),
    (90, "backward_queries", 32, 64): Tile(16, 32, 4, 2),
    (90, "backward_queries", 32, 128): Tile(16, 32, 8, 2),
    (90, "backward_keys", 16, 64): Tile(32, 128, 8, 2),
    (90, "backward_keys", 16, 128): Tile(32, 64, 4, 2),
    (90, "backward_keys", 32, 64): Tile(16, 16, 4, 1),
    (90, "backward_keys", 32, 128): Tile(16, 16, 4, 1),
    (90, "forward", 16, 256): Tile(64, 32, 8, 2),
    (90, "forward", 32, 256): Tile(16, 16, 8, 1),
    (90, "backward_queries", 16, 256): Tile(16, 32, 8, 1),
    (90, "backward_queries", 32, 256): Tile(16, 16, 8, 1),
    (90, "backward_keys", 16, 256): Tile(16, 32, 8, 1),
    (90, "backward_keys", 32, 256): Tile(16, 16, 8, 1),
    (90, "sum_diagonals", 16, 128): Tile(64, 64, 4, 2),
    (90, "sum_diagonals", 16, 256): Tile(64, 64, 8, 2),
    (90, "sum_pairs", 16, 256): Tile(64, 64, 8, 2),
    (90, "sum_diagonals", 32, 256): Tile(32, 32, 4, 1),
    (90, "sum_pairs", 32, 256): Tile(32, 32, 8, 1),
    (90, "write_bands", 16, 256): Tile(64, 32, 8, 2),
    (90, "write_weights", 16, 128): Tile(64, 32, 4, 2),
    (90, "write_weights", 16, 256): Tile(64, 32, 8, 1),
    (90, "write_bands", 32, 256): Tile(32, 32, 8, 1),
    (90, "write_weights", 32, 256): Tile(32, 32, 8, 1),
    (100, "forward", 16, 64): Tile(128, 64, 8, 3),
    (100, "forward", 16, 128): Tile(64, 64, 4, 2),
    (100, "forward", 32, 64): Tile(64, 32, 8, 2),
    (100, "forward", 32, 128): Tile(64, 32, 8, 1),
    (100, "backward_queries", 16, 64): Tile(128, 64, 8, 3),
    (100, "backward_queries", 16, 128): Tile(128, 64, 8, 2),
    (100, "backward_queries", 32, 64): Tile(64, 32, 8, 2),
    (100, "backward_queries", 32, 128): Tile(64, 16, 8, 1),
    (100, "backward_keys", 16, 64): Tile(32, 128, 8, 1),
    (100, "backward_keys", 16, 128): Tile(32, 128, 8, 1),
    (100, "backward_keys", 32, 64): Tile(32, 64, 8, 1),
    (100, "backward_keys", 32, 128): Tile(16, 64, 8, 1),
    (100, "forward", 16, 256): Tile(64, 32, 8, 1),
    (100, "forward", 32, 256): Tile(16, 16, 8, 1),
    (100, "backward_queries", 16, 256): Tile(64, 32, 8, 1),
    (100, "backward_queries", 32, 256): Tile(16, 16, 8, 1),
    (100, "backward_keys", 16, 256): Tile(16, 32, 8, 1),
    (100, "backward_keys", 32, 256): Tile(16, 16, 8, 1),
    (100, "sum_diagonals", 16, 256): Tile(64, 64, 8, 2),
    (100, "sum_pairs", 16, 256): Tile(64, 64, 8, 2),
    (100, "sum_diagonals", 32, 256): Tile(64, 64, 8, 1),
    (100, "sum_pairs", 32, 256): Tile(64, 64, 8, 1),
    (100, "write_bands", 16, 256): Tile(64, 32, 8, 2),
    (100, "write_weights", 16, 256): Tile(32, 32, 8, 1),
    (100, "write_bands", 32, 256): Tile(32, 32, 8, 1),
    (100, "write_weights", 32, 256): Tile(32, 32, 8, 1),
}
# Of calls that read biases of tables, which take registers.
BIASED = {
    (80, "backward_keys", 16, 128): Tile(32, 64, 8, 2),
}
# Of calls that read numbers of rows by distance, of keys, too, and no bias.
WITH_COLUMNS = {
    (90, "forward", 16, 128): Tile(64, 32, 4, 2),
    (90, "backward_queries", 16, 128): Tile(64, 32, 4, 3),
    (90, "backward_keys", 16, 128): Tile(16, 64, 4, 2),
    (90, "write_bands", 16, 128): Tile(64, 32, 4, 2),
}
# Of keys not.
WITH_ROWS = WITH_COLUMNS | {(90, "forward", 16, 128): Tile(64, 64, 4, 3)}
# Whose rows join values, too.
WITH_VALUES = WITH_ROWS | {(90, "backward_queries", 16, 128): Tile(64, 32, 4, 2)}
# Of tiles of backward_keys in which tables change.
NEAR = {
    "biased": {
        (90, "backward_keys", 16, 128): Tile(32, 64, 4, 1),
        (100, "backward_keys", 16, 128): Tile(16, 32, 8, 1),
    },
    "rows": {(90, "backward_keys", 16, 128): Tile(16, 64, 4, 1)},
    "values": {(90, "backward_keys", 16, 128): Tile(16, 64, 4, 1)},
    "columns": {(90, "backward_keys", 16, 128): Tile(16, 64, 8, 1)},
}
# Of calls with masks, intervals of keys, softcap or dropout, and of gradients of scores that are
# given, whose tiles take more registers, and of what the kinds above have no row for.
MASKED = {
    (80, "forward", 16, 64): Tile(32, 32, 4, 1),
    (80, "backward_queries", 16, 64): Tile(32, 32, 8, 1),
    (80, "backward_keys", 16, 64): Tile(16, 32, 4, 1),
    (80, "forward", 16, 128): Tile(32, 32, 8, 1),
    (80, "backward_queries", 16, 128): Tile(32, 32, 8, 1),
    (80, "backward_keys", 16, 128): Tile(16, 32, 8, 1),
    (80, "forward", 16, 256): Tile(32, 16, 8, 1),
    (80, "backward_queries", 16, 256): Tile(16, 16, 8, 1),
    (80, "backward_keys", 16, 256): Tile(16, 16, 8, 1),
    (90, "forward", 16, 64): Tile(64, 32, 8, 1),
    (90, "backward_queries", 16, 64): Tile(32, 32, 8, 1),
    (90, "backward_keys", 16, 64): Tile(16, 64, 4, 1),
    (90, "forward", 16, 128): Tile(64, 32, 8, 1),
    (90, "backward_queries", 16, 128): Tile(32, 32, 8, 1),
    (90, "backward_keys", 16, 128): Tile(32, 32, 8, 1),
    (90, "forward", 16, 256): Tile(32, 32, 8, 1),
    (90, "backward_queries", 16, 256): Tile(16, 32, 8, 1),
    (90, "backward_keys", 16, 256): Tile(16, 16, 8, 1),
    (100, "forward", 16, 64): Tile(64, 32, 8, 1),
    (100, "backward_queries", 16, 64): Tile(32, 32, 8, 1),
    (100, "backward_keys", 16, 64): Tile(32, 32, 8, 1),
    (100, "forward", 16, 128): Tile(64, 32, 8, 1),
    (100, "backward_queries", 16, 128): Tile(32, 32, 8, 1),
    (100, "backward_keys", 16, 128): Tile(32, 32, 8, 1),
    (100, "forward", 16, 256): Tile(32, 32, 8, 1),
    (100, "backward_queries", 16, 256): Tile(16, 32, 8, 1),
    (100, "backward_keys", 16, 256): Tile(16, 16, 8, 1),
}
# Of calls with slopes or key biases that hold numbers of each row, and of those with biases beside
# numbers of rows or keys.
CROWDED = MASKED | {
    (90, "write_bands", 16, 128): Tile(64, 32, 8, 2),
    (80, "backward_keys", 16, 64): Tile(32, 16, 8, 1),
    (80, "backward_keys", 16, 128): Tile(16, 16, 8, 1),
    (100, "forward", 16, 64): Tile(32, 32, 8, 1),
    (100, "forward", 16, 128): Tile(32, 32, 8, 1),
    (100, "backward_queries", 16, 64): Tile(16, 32, 8, 1),
}
# Of calls with tables that coordinates or classes of pairs choose from.
APART = CROWDED | {
    (90, "forward", 16, 128): Tile(32, 32, 8, 1),
    (90, "backward_keys", 16, 64): Tile(16, 32, 4, 1),
    (90, "sum_pairs", 16, 256): Tile(64, 32, 8, 2),
    (90, "sum_diagonals", 16, 128): Tile(32, 32, 8, 1),
    (90, "write_weights", 16, 128): Tile(64, 32, 8, 2),
    (100, "sum_pairs", 16, 256): Tile(32, 32, 8, 2),
}
KINDS = {
    "plain": TABLE,
    "biased": TABLE | BIASED,
    "rows": TABLE | MASKED | WITH_ROWS,
    "values": TABLE | MASKED | WITH_VALUES,
    "columns": TABLE | MASKED | WITH_COLUMNS,
    "masked": TABLE | MASKED,
    "crowded": TABLE | CROWDED,
    "apart": TABLE | APART,
}
DECODE = {16: Tile(16, 32, 4, 2), 32: Tile(16, 16, 4, 1)}  # of few queries, on every chip
# Rows and cells of what multiplies tables of rows and bands, and at most so many columns at a time.
OF_ROWS = {
    (80, "write_products"): (Tile(64, 64, 8, 2), 32),
    (80, "multiply_bands"): (Tile(64, 32, 8, 1), 64),
    (80, "sum_band_rows"): (Tile(64, 64, 8, 1), 32),
    (90, "write_products"): (Tile(128, 64, 8, 3), 64),
    (90, "multiply_bands"): (Tile(64, 64, 4, 2), 128),
    (90, "sum_band_rows"): (Tile(64, 128, 8, 2), 64),
    (100, "write_products"): (Tile(128, 64, 8, 3), 64),
    (100, "multiply_bands"): (Tile(64, 64, 4, 2), 128),
    (100, "sum_band_rows"): (Tile(64, 128, 8, 2), 64),
}
# Of what is computed anew: rare, and its products take registers. The more rows, the fewer programs
# have to find out that nothing is; with 64 of them Triton 3.9 fails to compile for Blackwell.
AGAIN = {
    "forward": Tile(32, 16, 4, 1),
    "backward_queries": Tile(32, 16, 4, 1),
    "backward_keys": Tile(16, 32, 4, 1),
}
AGAIN_IN_FLOAT32 = Tile(16, 16, 4, 1)  # which takes shared memory
NEAREST = Tile(64, 64, 4, 1)  # of what rows count from, on every chip
INTERPRETED = Tile(64, 64, 4, 1)  # the interpreter takes its time by operations, not by elements


def tile(
    chip: int, kernel: str, bits: int, head_dim: int, again: bool = False, kind: str = "plain"
) -> Tile:
    """The tile of a kernel for elements of so many bits, head_dim the larger of D and Dv. Chip 0 is
    the interpreter. again: of Config.again. kind: of KINDS."""
    if chip == 0:
        return INTERPRETED
    if again:
        return AGAIN[kernel] if bits == 16 else AGAIN_IN_FLOAT32
    return KINDS[kind][_key(KINDS[kind], chip, kernel, bits, head_dim)]


def tile_of_rows(chip: int, kernel: str) -> tuple[Tile, int]:
    """Of OF_ROWS."""
    return OF_ROWS[chip or 90, kernel]


def slice_of(chip: int, bits: int, head_dim: int) -> int:
    """So many columns SLICED kernels multiply at a time."""
    if bits == 32:
        return 32
    return 128 if chip == 90 and head_dim <= 128 else 64


def splits(chip: int, bits: int, head_dim: int, kind: str) -> bool:
    """Whether tiles that are seen as a whole have loops, or launches, of their own: elsewhere two
    take too many registers."""
    if kind not in ("rows", "values", "columns"):
        return kind in ("plain", "biased")
    return chip == 0 or _key(KINDS[kind], chip, "forward", bits, head_dim) in WITH_ROWS


def near_tile(chip: int, bits: int, head_dim: int, kind: str) -> Tile:
    """Of the tiles of backward_keys in which tables change. It divides that of the others."""
    row = chip, "backward_keys", bits, head_dim
    key = _key(KINDS[kind], *row) if chip else None
    if key in NEAR.get(kind, ()):
        return NEAR[kind][key]
    own, least = tile(*row, False, kind), tile(*row, False, "crowded")
    return Tile(min(own.queries, least.queries), min(own.keys, least.keys), least.warps, 1)


def kind_of(run: Any, tables: int) -> str:
    """Of KINDS, of a call that reads so many tables by distance."""
    problem, lowered = run.problem, run.lowered
    given = (problem.spans, problem.places, problem.softcap, problem.dropout)
    by_row = bool(lowered.rows or lowered.columns or lowered.values)
    biased = tables > bool(lowered.rows) + bool(lowered.columns)
    apart = bool(lowered.rows_apart) or any(term.delta is not None for term in lowered.terms)
    if apart:
        return "apart"
    if run.lines.wide or (by_row and biased):
        return "crowded"
    if any(each is not None for each in given) or problem.masks or run.of_scores:
        return "masked"
    if by_row:
        if lowered.values:
            return "crowded" if lowered.columns else "values"
        return "columns" if lowered.columns else "rows"
    return "biased" if biased else "plain"


def _key(rows: Any, chip: int, kernel: str, bits: int, head_dim: int) -> Any:
    """Of the row with the smallest head size that is enough."""
    name = _LIKE.get(kernel, kernel)
    keys = ((chip, name, bits, each) for each in HEAD_DIMS if head_dim <= each)
    return next(key for key in keys if key in rows)
