"""Compiles each row of the table of tiles for its chip, without a GPU, and prints registers, stack
and shared memory. Fails where a kernel of 16-bit types spills, where one takes more shared memory
than the chip has, where one adds atomically, which would not give the same bits twice, and where
Triton lays out a product's operand wrongly.

.venv/bin/python scripts/gpu_check.py [--chip 90] [--kernel forward] [--compile]
"""

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import triton
from gpu_types import (
    AT_COORDINATES,
    BIAS,
    CLASSED,
    DESCRIPTORS,
    ELEMENTS,
    EVERYTHING,
    HIDDEN,
    LINES,
    MASK,
    MASKS,
    OF_KERNEL,
    OF_KEYS,
    OF_QUERIES,
    PLACES,
    PROBLEM,
    ROWS,
    TYPES,
    pointers,
)
from relpos.gpu.masks import dense
from relpos.gpu.masks import tiles as tile_masks
from relpos.gpu.pairs import visibility
from relpos.gpu.passes.backward_keys import backward_keys
from relpos.gpu.passes.backward_queries import backward_queries
from relpos.gpu.passes.emit import write_pairs
from relpos.gpu.passes.finish import join_shares, mark_rows
from relpos.gpu.passes.forward import forward, merge_chunks
from relpos.gpu.problem import ALL, FAR_AWAY, NEAR, Config
from relpos.gpu.rows.launches import blocks_of
from relpos.gpu.sums import (
    band_launches,
    band_products,
    bands,
    class_sums,
    distance_sums,
    pair_launches,
    pair_sums,
    row_gradients,
    row_sums,
)
from relpos.gpu.terms import bias, key_bias, rotation, sinks, slopes
from relpos.gpu.terms import rows as row_terms
from relpos.gpu.tiles import (
    BIASED,
    CROWDED,
    DECODE,
    HEAD_DIMS,
    KINDS,
    MASKED,
    OF_ROWS,
    SHARED_KIB,
    SLICED,
    TABLE,
    WITH_COLUMNS,
    WITH_ROWS,
    WITH_VALUES,
    Tile,
    near_tile,
    slice_of,
    splits,
    tile,
)
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

KERNELS = {
    kernel.fn.__name__: kernel
    for kernel in (
        *(forward, backward_queries, backward_keys, row_sums.row_sums),
        *(distance_sums.sum_diagonals, distance_sums.fold_diagonals, distance_sums.fold_ends),
        *(pair_sums.sum_pairs, pair_sums.fold_pairs, pair_sums.write_ends),
        *(bias.write_cells, bias.write_table_gradient, sinks.sink_gradient),
        *(dense.sum_mask, visibility.find_queries, merge_chunks, join_shares, write_pairs),
        *(mark_rows,),
        tile_masks.write_cells_of_tiles,
        *(rotation.write_turns, rotation.turn_rows, rotation.write_turn_gradient),
        *(rotation.sum_angles, rotation.fold_angles),
        *(row_terms.write_parts, row_terms.write_products),
        *(bands.write_bands, bands.write_weights, bands.finish_bands),
        *(band_products.multiply_bands, band_products.sum_band_rows),
        *(band_products.write_rows_gradient,),
        *(bands.gather_bands, class_sums.gather_classes),
        *(slopes.find_nearest, key_bias.sum_along),
    )
}
LIKE_PAIRS = ("write_pairs", "sum_mask")  # which have the tiles of sum_pairs
OF_TILES = {kernel for _, kernel, _, _ in TABLE} | {*LIKE_PAIRS}
AGAIN_TOO = ("forward", "backward_queries", "backward_keys")
LOG2 = {16: 4, 32: 5, 64: 6, 128: 7}
# Terms by kind; "values" and "all" have rows that join values, too.
TERMS: dict[str, tuple[tuple[Any, Any], ...]] = {
    "plain": ((slopes.Slopes("*fp32", "i32", None), slopes.slope_score),),
    "biased": (BIAS,),
    "rows": (OF_QUERIES,),
    "values": (OF_QUERIES,),
    "columns": (OF_QUERIES, OF_KEYS),
    "all": (BIAS, OF_QUERIES, OF_KEYS),
    "coordinates": AT_COORDINATES,
    "classes": CLASSED,
}
WITH = {"rows": WITH_ROWS, "values": WITH_VALUES, "columns": WITH_COLUMNS}
APART_KINDS = ("coordinates", "classes")
NOT_TABLES = ("plain", *APART_KINDS)  # that distances of tokens choose
BLOCKS_OF: dict[str, dict[str, Any]] = {}
BLOCKS_OF |= {"write_rows_gradient": row_gradients.CLASSES}
BLOCKS_OF |= {"gather_classes": pair_launches.BY_CLASS, "finish_bands": band_launches.FINISHED}
BLOCKS_OF |= {"gather_bands": pair_launches.GATHERED, "write_turns": {"BLOCK": 8}}
# Arguments of kernels in calls that train slopes, and key biases; and rows that meet keys.
OF_LINES, OF_COLUMNS = ("lines", "nearest", "key_sums"), ("backward_keys", "ends")
TURNED = ("turn_rows", "write_turn_gradient", "sum_angles")


class Row(NamedTuple):
    chip: int
    kernel: str
    bits: int
    head_dim: int
    tile: Tile
    again: bool = False  # of Config.again
    everything: str = ""  # with each promise, too, and this kind of attn_mask
    kind: str = "biased"  # what is read: of TERMS
    lines: bool = False  # with slopes and a key bias that are trained, too
    scores: bool = False  # of relpos.scores, whose gradients are given
    share: int = ALL  # of backward_keys

    def name(self) -> str:
        """As it is shown."""
        more = (", anew", self.again), (", lines", self.lines), (", scores", self.scores)
        more = *more, (", near", self.share == NEAR), (", far", self.share == FAR_AWAY)
        everything = f", everything, {self.everything}" if self.everything else ""
        kind = "" if self.kind == "biased" else f", {self.kind}"
        return self.kernel + everything + kind + "".join(text for text, held in more if held)

    def splits(self) -> bool:
        """Config.open."""
        crowded = self.lines or self.kind in ("all", *APART_KINDS)
        kind = "masked" if self.everything or self.scores or crowded else self.kind
        return not self.again and splits(self.chip, self.bits, self.head_dim, kind)

    def reads_columns(self) -> bool:
        return self.kind in ("columns", "all")


class Found(NamedTuple):
    row: Row
    registers: int
    stack: int
    shared: int
    atomics: list[str]
    wrong: list[str]

    def faults(self) -> list[str]:
        spills = self.stack and self.row.bits == 16 and self.row in of_table()
        found = [f"{self.stack} bytes of stack: it spills"] if spills else []
        if self.shared > SHARED_KIB[self.row.chip] * 1024:
            found.append(f"{self.shared} bytes of shared memory: the chip has fewer")
        return found + self.wrong + [f"{op} in its ptx" for op in self.atomics]


def of_table() -> list[Row]:
    found = [Row(*key, tile) for key, tile in (TABLE | BIASED).items()]
    plain = [Row(*key, tile, kind="plain") for key, tile in TABLE.items()]
    few = [row._replace(tile=DECODE[row.bits]) for row in found if row.kernel == "forward"]
    masked = [Row(*key, tile) for key, tile in MASKED.items()]
    found += few + [row._replace(everything=kind) for row in masked for kind in MASKS]
    pairs = [row for row in found if row.kernel == "sum_pairs"]
    apart = [
        Row(*key, tile, kind=kind) for key, tile in KINDS["apart"].items() for kind in APART_KINDS
    ]
    of_pairs = [row for row in apart if row.kernel == "sum_pairs"]
    found += apart + [row._replace(kernel=name) for row in of_pairs for name in LIKE_PAIRS]
    found += [row._replace(kernel="write_pairs", kind="all") for row in pairs]
    found += [row._replace(kernel="sum_mask") for row in pairs]
    crowded = [Row(*key, tile) for key, tile in CROWDED.items()]
    found += [row._replace(lines=True) for row in crowded]
    found += [row._replace(kind="all") for row in crowded]
    weights = [row for row in found if row.kernel == "write_weights"]
    found += [row._replace(kind="all") for row in weights]
    for kind, own in WITH.items():
        found += [Row(*key, tile, kind=kind) for key, tile in own.items()]
    found += [row._replace(scores=True) for row in masked if row.kernel != "forward"]
    found += [row for row in plain if row.kernel in AGAIN_TOO]
    return [each for row in found for each in shares_of(row)]


def shares_of(row: Row) -> list[Row]:
    """The launches of a row: of backward_keys with tables two, where masks allow."""
    if row.kernel != "backward_keys" or row.kind in NOT_TABLES or not row.splits():
        return [row]
    near = near_tile(row.chip, row.bits, row.head_dim, row.kind)
    return [row._replace(share=FAR_AWAY), row._replace(share=NEAR, tile=near)]


def rows() -> list[Row]:
    """Those of the table, what computes anew, rows with each mask and promise, and a launch of each
    other kernel on each chip."""
    found = of_table()
    found += [
        Row(*key, own, kind="classes", everything="mask of bool")
        for key, own in KINDS["apart"].items()
        if key[1] in AGAIN_TOO
    ]
    found += [
        Row(chip, kernel, bits, head_dim, tile(chip, kernel, bits, head_dim, True), again=True)
        for chip, kernel, bits, head_dim in TABLE
        if kernel in AGAIN_TOO and head_dim == max(HEAD_DIMS)
    ]
    tiles = dict.fromkeys(sorted(KERNELS.keys() - OF_TILES), Tile(64, 64, 4, 3))
    tiles |= {"row_sums": Tile(32, 64, 4, 3)}
    tiles |= dict.fromkeys(TURNED, Tile(16, 64, 4, 3))
    of_rows = {name for _, name in OF_ROWS}
    found += [
        Row(chip, name, 32, 128, tile)
        for chip in SHARED_KIB
        for name, tile in tiles.items()
        if name not in of_rows
    ]
    return found + [
        Row(chip, name, bits, 128, tile)
        for (chip, name), (tile, _) in OF_ROWS.items()
        for bits in (16, 32)
    ]


def constants_of(row: Row) -> dict[str, Any]:
    bits16 = row.bits == 16
    return {
        "CONFIG": Config(
            precision="ieee" if bits16 else "tf32x3",
            widen=False,
            head_dim=row.head_dim,
            value_dim=row.head_dim,
            queries=row.tile.queries,
            keys=row.tile.keys,
            scores=tuple(score for _, score in terms_of(row)),
            masks=tuple(f for f, _ in masks_of(row)),
            tiles=1 if row.everything == "mask by tiles" else -1,
            sinks=int(bool(row.everything)),
            tables=0 if row.kind in NOT_TABLES else len(TERMS[row.kind]),
            open=row.splits(),
            stages=min(row.tile.stages, 2),
            bare=row.kind in ("biased", "rows", "values") and not (row.everything or row.lines),
            far=row.kind not in NOT_TABLES,
            aligned=bool(row.everything),
            slice=slice_of(row.chip, row.bits, row.head_dim),
            again=row.again,
            share=row.share,
            parted=row.tile[:2] if row.share else (),
        ).constants(),
        "SHARED_BY_QUERIES": False,
        "SHARED_BY_KEYS": False,
        "OF_ROWS": False,
        "KEYS": 64,
        "WIDEN": False,
        "BV": row.head_dim,
        "BM": row.tile.queries,
        "LOG": LOG2[row.tile.queries],
        "BLOCK": 32,
        "ROWS": 16,
        "CELLS": 32,
        "BD": row.head_dim,
        "PAIRS": (64, 16) if row.kernel == "turn_rows" else 64,
        "INVERSE": True,
        "FLOAT32": False,
        "REVERSE": True,
        "COLUMNS": 32,
        "DEPTH": 3,
        "COUNT": 3,
        "X": 128,
        "Y": 128,
        "AGAIN": row.again,
    } | blocks(row)


def blocks(row: Row) -> dict[str, Any]:
    """Constants of kernels that are not of pairs."""
    if (row.chip, row.kernel) in OF_ROWS:
        return blocks_of(row.chip, row.kernel, row.head_dim)[1] | {"WIDEN": False}
    return BLOCKS_OF.get(row.kernel, {})


def terms_of(row: Row) -> tuple[tuple[Any, Any], ...]:
    """With their functions."""
    return (*TERMS[row.kind], *LINES * row.lines)


def masks_of(row: Row) -> tuple[tuple[Any, Any], ...]:
    """With their functions."""
    return MASKS.get(row.everything, ()) + (HIDDEN,) * (row.kind == "classes")


def source(row: Row) -> ASTSource:
    """The kernel as run.py launches it, with a distance bias."""
    kernel, tile, element = KERNELS[row.kernel], row.tile, ELEMENTS[row.bits]
    constants: dict[Any, Any] = constants_of(row)
    signature: dict[str, Any] = {}
    attributes: dict[Any, Any] = {}
    for n, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("query", "dout", "key", "value"):
            count = tile.keys if name in ("key", "value") else tile.queries
            sliced = slice_of(row.chip, row.bits, row.head_dim)
            columns = min(sliced if row.kernel in SLICED else 256, row.head_dim)
            signature[name] = f"tensordesc<{element}[1,1,{count},{columns}]>"
        elif (row.kernel, name) in DESCRIPTORS:
            kind, *block = DESCRIPTORS[row.kernel, name]
            rows, columns = (blocks(row)[each] for each in block)
            signature[name] = f"tensordesc<{kind or element}[1,1,{rows},{columns}]>"
        elif name == "problem":
            given = EVERYTHING if row.everything else PROBLEM
            given = given._replace(masks=tuple(mask for _, mask in masks_of(row)))
            given = given._replace(terms=tuple(term for term, _ in terms_of(row)))
            if row.kind in ("values", "all"):
                given = given._replace(value_rows=ROWS)
            if row.lines:
                given = given._replace(row_shift="*fp32")
            if row.scores:
                given = given._replace(given=MASK)
            if row.kernel == "sum_pairs":
                given = given._replace(places=PLACES)
            signature[name] = pointers((n,), given, attributes)
            constants |= {(n, at): None for at, type_ in enumerate(given) if type_ is None}
        elif (name in OF_LINES and not row.lines) or (
            (row.kernel, name) == OF_COLUMNS and not row.reads_columns()
        ):
            constants[name] = None
            signature[name] = "constexpr"
        else:
            given = OF_KERNEL.get(row.kernel, {})
            outputs = ("out", "dq", "dk", "dv", "table", "gradient")
            plain = f"*{element}" if name in outputs else "i32"
            signature[name] = pointers((n,), given.get(name, TYPES.get(name, plain)), attributes)
    constants = {
        name: value
        for name, value in constants.items()
        if isinstance(name, tuple) or name in signature
    }
    return ASTSource(kernel, signature, constants, attributes)


def compiled(row: Row) -> Found:
    options = {"num_warps": row.tile.warps, "num_stages": row.tile.stages, "enable_fp_fusion": True}
    made = triton.compile(source(row), target=GPUTarget("cuda", row.chip, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = (
        max(map(int, re.findall(rf"\b{name}:(\d+)", text))) for name in ("REG", "STACK")
    )
    atomics = sorted(set(re.findall(r"\b(?:atom|red)\.[\w.]+", made.asm["ptx"])))
    return Found(row, registers, stack, made.metadata.shared, atomics, misread(made.asm["ttgir"]))


def misread(ttgir: str) -> list[str]:
    """Operands of which four lanes read more than one has in the axis that is summed: some numbers
    would be read twice, and others never (triton #10645)."""
    layout = r"tensor<(\d+)x(\d+)x\w+, #ttg\.dot_op<\{opIdx = ([01]), parent = #mma\d*, "
    layout += r"kWidth = (\d+)\}>>"
    found = {match.groups() for match in re.finditer(layout, ttgir)}
    return sorted(
        f"an operand {rows} x {columns} in layouts of {4 * int(width)}"
        for rows, columns, index, width in found
        if 4 * int(width) > int(rows if index == "1" else columns)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--chip", type=int, choices=SHARED_KIB, help="only this one")
    parser.add_argument("--kernel", choices=KERNELS, help="only this one")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--compile", action="store_true", help="fail where a row does not compile, or is wrong"
    )
    chosen = parser.parse_args()
    wanted = [
        row
        for row in rows()
        if chosen.chip in (None, row.chip) and chosen.kernel in (None, row.kernel)
    ]
    print(
        "| chip | kernel | bits, D | queries x keys, warps, stages | registers | stack "
        "| shared KiB |"
    )
    print("|---|---|---|---|---|---|---|")
    failed = 0
    with ProcessPoolExecutor(chosen.processes) as pool:
        for found in pool.map(compiled, wanted):
            row, tile = found.row, found.row.tile
            print(
                f"| {row.chip} | {row.name()} "
                f"| {row.bits}, {row.head_dim} | {tile.queries} x "
                f"{tile.keys}, {tile.warps}, {tile.stages} | {found.registers} | {found.stack} | "
                f"{found.shared / 1024:.0f} |",
                flush=True,
            )
            for fault in found.wrong if chosen.compile else found.faults():
                failed += 1
                print(f"gpu-check: sm_{row.chip} {row.name()}: {fault}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
