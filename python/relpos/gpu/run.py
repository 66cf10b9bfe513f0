"""A call on the GPU: what relpos._core does on the CPU, by the kernels of this folder."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from relpos.gpu.backward_keys import backward_keys
from relpos.gpu.backward_queries import backward_queries
from relpos.gpu.device import chip, on
from relpos.gpu.distance_sums import fold_diagonals, fold_ends, sum_diagonals
from relpos.gpu.forward import forward
from relpos.gpu.layout import aligned, padded, strides_of
from relpos.gpu.lower import MOST_PAIRS, Lowered, TableBias, refuse
from relpos.gpu.mode import COUNTS, INTERPRETS
from relpos.gpu.pair_sums import sum_pairs
from relpos.gpu.score_gradient import row_sums
from relpos.gpu.terms.bias import (
    Bias,
    PlacedBias,
    bias_score,
    placed_bias_score,
    write_cells,
    write_table_gradient,
)
from relpos.gpu.tiles import Tile, tile

LOG2E = 1.4426950408889634
# Blocks of the kernels that go through no pairs: rows, then what adds up a table's gradient.
_ROWS, _FOLDED, _CLASSES, _ENDS = 32, 32, 16, 256


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Any,
    out: Tensor,
    lse: Tensor | None,
    softmax: Tensor | None,
) -> None:
    """Writes out [B, H, Lq, Dv], and lse [B, H, Lq] and softmax [B, H, Lq, 2] where given; all are
    contiguous."""
    lowered = Lowered(query, key, value, call)
    if not key.numel() or not query.numel() or not value.numel():
        out.zero_()
        for given, empty in ((lse, [-torch.inf]), (softmax, [-torch.inf, 1.0])):
            if given is not None:
                given.copy_(torch.tensor(empty, device=out.device).expand(given.shape))
        return
    with on(query.device):
        Run(lowered, query, key, value).forward(out, softmax, lse)


def attention_backward(given: Sequence[Any], call: Any, gradients: Sequence[Tensor | None]) -> None:
    """Writes the gradients of query, key, value, attn_mask and the parameters where they are
    wanted, from (query, key, value, out, softmax, dout, dlse)."""
    query, key, value, out, softmax, dout, dlse = given
    lowered = Lowered(query, key, value, call)
    if not key.numel() or not query.numel() or not value.numel():
        for wanted in gradients:
            if wanted is not None:
                wanted.zero_()
        return
    dq, dk, dv, _, *of_parameters = gradients
    with on(query.device):
        run = Run(lowered, query, key, value)
        run.backward(out, softmax, dout, dlse, (dq, dk, dv), of_parameters)


def attention_weights(*_: Any) -> None:
    refuse("return_weights")


def scores(*_: Any) -> None:
    refuse("relpos.scores")


scores_backward = scores


class Run:
    """The launches of one call, none of whose sizes is 0."""

    def __init__(self, lowered: Lowered, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.lowered, self.device = lowered, query.device
        self.query, self.key, self.value = map(aligned, (query, key, value))
        self.batch, self.heads, self.queries, self.head_dim = query.shape
        self.kv_heads, self.keys, self.value_dim = key.shape[1], key.shape[2], value.shape[3]
        self.chip = 0 if INTERPRETS else chip(self.device)
        narrow = query.element_size() == 2
        self.constants = {
            "PRECISION": "ieee" if narrow else "tf32x3",
            "WIDEN": narrow and INTERPRETS,
            "BD": padded(self.head_dim),
            "BV": padded(self.value_dim),
        }
        shifts = lowered.shifts
        self.bounds = {"shifts": shifts, "left": lowered.left, "right": lowered.right}
        self.terms = tuple(self.bias(term) for term in lowered.terms)
        score = bias_score if lowered.tokens is None else placed_bias_score
        self.scores = tuple(score for _ in self.terms)

    def tile(self, kernel: str) -> Tile:
        head_dim = max(self.head_dim, self.value_dim)
        return tile(self.chip, kernel, 8 * self.query.element_size(), head_dim)

    def rows(self, tensor: Tensor, count: int) -> Any:
        """Blocks of so many rows of a tensor [B, H, L, D]."""
        columns = padded(tensor.shape[3])
        return TensorDescriptor(
            tensor, list(tensor.shape), strides_of(tensor), [1, 1, count, columns]
        )

    def launch(self, kernel: Any, grid: tuple[int, ...], tile: Tile | None, **given: Any) -> None:
        name = kernel.fn.__name__
        COUNTS[name] += 1
        if tile is not None:
            given |= {"num_warps": tile.warps, "num_stages": tile.stages}
        kernel[grid](**given, enable_fp_fusion=True)

    def pairs(self, kernel: Any, programs: Any, of_keys: bool = False, **given: Any) -> None:
        """Launches a kernel that goes through tiles of pairs, for so many programs of its tile."""
        tile = self.tile(kernel.fn.__name__)
        rows = {"query": self.query, "dout": given.pop("dout", None)}
        given |= {n: self.rows(t, tile.queries) for n, t in rows.items() if t is not None}
        given |= {n: self.rows(t, tile.keys) for n, t in (("key", self.key), ("value", self.value))}
        heads = "kv_heads" if of_keys else "heads"
        self.launch(
            kernel,
            (programs(tile),),
            tile,
            **given,
            **{heads: getattr(self, heads)},
            group=self.heads // self.kv_heads,
            queries=self.queries,
            keys=self.keys,
            terms=self.terms,
            SCORES=self.scores,
            scale=self.lowered.scale * LOG2E,
            **({} if kernel is sum_pairs else self.bounds),
            **self.constants,
        )

    def of_queries(self, tile: Tile) -> int:
        return self.batch * self.heads * triton.cdiv(self.queries, tile.queries)

    def forward(self, out: Tensor, softmax: Tensor | None, lse: Tensor | None) -> None:
        tile = self.tile("forward")
        results = {"out": out, "softmax": softmax, "lse": lse}
        self.pairs(forward, self.of_queries, **results, value_dim=self.value_dim, **_blocks(tile))

    def backward(
        self,
        out: Tensor,
        softmax: Tensor,
        dout: Tensor,
        dlse: Tensor | None,
        of_inputs: Sequence[Tensor | None],
        of_parameters: Sequence[Tensor | None],
    ) -> None:
        dq, dk, dv = of_inputs
        dout = aligned(dout)
        sums = self.sums(out, dout, dlse)
        shared = {"dout": dout, "softmax": softmax, "sums": sums}
        slope = {"slope": self.lowered.scale}
        if dk is not None or dv is not None:
            tile = self.tile("backward_keys")
            self.pairs(
                backward_keys,
                lambda tile: self.batch * self.kv_heads * triton.cdiv(self.keys, tile.keys),
                of_keys=True,
                dk=torch.empty_like(self.key, memory_format=_DENSE) if dk is None else dk,
                dv=torch.empty_like(self.value, memory_format=_DENSE) if dv is None else dv,
                head_dim=self.head_dim,
                value_dim=self.value_dim,
                **shared,
                **slope,
                **_blocks(tile),
            )
        tables = [term for term in self.lowered.terms if of_parameters[term.parameter] is not None]
        if dq is not None or tables:
            self.backward_of_queries(dq, tables, shared | slope, of_parameters)
        read = {term.parameter for term in self.lowered.terms}
        for n, wanted in enumerate(of_parameters):
            if wanted is not None and n not in read:
                wanted.zero_()

    def sums(self, out: Tensor, dout: Tensor, dlse: Tensor | None) -> Tensor:
        sums = self.floats(self.batch, self.heads, self.queries)
        self.launch(
            row_sums,
            (self.batch * self.heads * triton.cdiv(self.queries, _ROWS),),
            None,
            sums=sums,
            out=out.contiguous(),
            dout=self.rows(dout, _ROWS),
            dlse=None if dlse is None else dlse.contiguous(),
            heads=self.heads,
            queries=self.queries,
            value_dim=self.value_dim,
            BV=self.constants["BV"],
            BM=_ROWS,
        )
        return sums

    def backward_of_queries(
        self,
        dq: Tensor | None,
        tables: Sequence[TableBias],
        shared: dict[str, Any],
        of_parameters: Sequence[Tensor | None],
    ) -> None:
        """Gradients of query and of the tables."""
        ends, lo, hi = None, 0, 1
        by_pairs = tables and self.lowered.tokens is not None
        if tables and not by_pairs:
            ends = self.floats(self.batch, self.heads, self.queries, 2)
            lo = min(term.map.lo for term in tables)
            hi = max(term.map.hi for term in tables)
            lo, hi = self.lowered.window(lo, hi)
        self.pairs(
            backward_queries,
            self.of_queries,
            dq=torch.empty_like(self.query, memory_format=_DENSE) if dq is None else dq,
            ends=ends,
            lo=lo,
            hi=hi,
            head_dim=self.head_dim,
            **shared,
            **_blocks(self.tile("backward_queries")),
        )
        if not tables:
            return
        sums = self.by_pairs(shared) if by_pairs else self.by_distance(lo, hi, ends, shared)
        for term in tables:
            gradient = term.view(of_parameters[term.parameter])
            rows = gradient.shape[1]
            cells = (
                term.map.pairs(self.lowered.tokens, rows, self.device)
                if by_pairs
                else term.map.cells(lo, hi, rows, self.device)
            )
            self.table_gradient(term, gradient, sums, cells)

    def by_distance(self, lo: int, hi: int, ends: Tensor, shared: dict[str, Any]) -> Tensor:
        """float64 [H, hi - lo + 1]: the sums of the scores' gradients at each distance, the first
        and the last with those outside."""
        width = hi - lo + 1
        found = self.floats(self.heads, width, dtype=torch.float64)
        sizes = {"batch": self.batch, "heads": self.heads, "queries": self.queries, "width": width}
        given = {"by_distance": found, "ends": ends, **sizes}
        self.launch(fold_ends, (2, self.heads), None, **given, BLOCK=_ENDS)
        if width == 2:
            return found
        side = self.tile("sum_diagonals").queries
        log = side.bit_length() - 1
        most = triton.cdiv(self.queries, side) + triton.cdiv(self.keys, side)
        diagonals = min(width // side + 3, most)
        tiles = self.floats(self.batch, self.heads, diagonals, side, side)
        of_tiles = {"tiles": tiles, "lo": lo, "diagonals": diagonals, "BM": side, "LOG": log}
        del (shared := dict(shared))["slope"]
        self.pairs(
            sum_diagonals, lambda _: self.batch * self.heads * diagonals, **shared, **of_tiles
        )
        self.launch(
            fold_diagonals,
            (triton.cdiv(width, _FOLDED), self.heads),
            None,
            by_distance=found,
            shifts=self.lowered.shifts,
            **sizes,
            **of_tiles,
            BLOCK=_FOLDED,
        )
        return found

    def by_pairs(self, shared: dict[str, Any]) -> Tensor:
        """[H, Lq Lk]: the sums of the scores' gradients over the batch, for each pair of tokens."""
        if self.queries * self.keys > MOST_PAIRS:
            refuse(
                "position",
                f"the gradient of a grid's table over more than {MOST_PAIRS} pairs has no kernel",
                f"{self.queries} x {self.keys}",
            )
        pairs = self.floats(self.heads, self.queries * self.keys)
        del (shared := dict(shared))["slope"]
        tile = self.tile("sum_pairs")
        self.pairs(
            sum_pairs,
            lambda tile: (
                self.heads
                * triton.cdiv(self.queries, tile.queries)
                * triton.cdiv(self.keys, tile.keys)
            ),
            pairs=pairs,
            batch=self.batch,
            **shared,
            **_blocks(tile),
        )
        return pairs

    def table_gradient(
        self, term: TableBias, to: Tensor, sums: Tensor, listed: tuple[Tensor, Tensor, int]
    ) -> None:
        """Writes the gradient [H, M] of a table from sums [H, ..] and what of them each class
        has."""
        cells, starts, longest = listed
        rows = to.shape[1]
        self.launch(
            write_table_gradient,
            (triton.cdiv(rows, _CLASSES), self.heads),
            None,
            gradient=to,
            sums=sums,
            cells=cells,
            starts=starts,
            head_stride=to.stride(0),
            class_stride=to.stride(1),
            multiplier=term.multiplier,
            width=sums.shape[1],
            rows=rows,
            longest=longest,
            ROWS=_CLASSES,
            CELLS=32,
            WIDEN=INTERPRETS,
        )

    def bias(self, term: TableBias) -> Bias | PlacedBias:
        """What the kernels read of a distance bias."""
        lo, hi = self.lowered.window(term.map.lo, term.map.hi)
        width = hi - lo + 1
        stride = triton.cdiv(width, 16) * 16
        cells = self.floats(self.heads, stride)
        table = term.view(self.lowered.parameters[term.parameter])
        self.launch(
            write_cells,
            (triton.cdiv(width, 256), self.heads),
            None,
            cells=cells,
            table=table,
            classes=term.map.classes(lo, hi, self.device),
            head_stride=table.stride(0),
            class_stride=table.stride(1),
            multiplier=term.multiplier * LOG2E,
            stride=stride,
            width=width,
            BLOCK=256,
        )
        if self.lowered.tokens is None:
            return Bias(cells, stride, lo, width)
        q, k = self.lowered.tokens
        base = q.min()  # where differences start
        rows, columns = ((x - least).int() for x, least in ((q, base), (k, base + lo)))
        at = rows.to(self.device), columns.to(self.device)
        return PlacedBias(cells, stride, width, *at, self.queries, self.keys)

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Workspace: each element is written before a later kernel reads it."""
        return torch.empty(shape, dtype=dtype, device=self.device)


_DENSE = torch.contiguous_format


def _blocks(tile: Tile) -> dict[str, int]:
    return {"BM": tile.queries, "BN": tile.keys}
