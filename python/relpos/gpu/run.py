"""The launches of a call, in their order."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from relpos.gpu.device import chip
from relpos.gpu.inputs import dropout_of, masks_of, sink_of, spans_of
from relpos.gpu.layout import aligned, padded, strides_of
from relpos.gpu.lines import Lines
from relpos.gpu.lower import Lowered
from relpos.gpu.lowered.tables import Table
from relpos.gpu.masks.dense import pairs_of
from relpos.gpu.masks.tiles import index_in
from relpos.gpu.mode import COUNTS, INTERPRETS
from relpos.gpu.pairs.visibility import find_queries
from relpos.gpu.passes.backward_keys import backward_keys
from relpos.gpu.passes.backward_queries import backward_queries
from relpos.gpu.passes.emit import write_pairs
from relpos.gpu.passes.finish_launches import odd_of
from relpos.gpu.passes.forward_launches import mix
from relpos.gpu.passes.key_launches import write_key_gradients
from relpos.gpu.problem import ALL, Config, Problem, Spans
from relpos.gpu.rotations import Rotations
from relpos.gpu.rows.added import with_added, write_added_gradient
from relpos.gpu.rows.launches import terms_of, window_of_call
from relpos.gpu.rows.values import add_values, met_of, write_value_gradients
from relpos.gpu.sums.mask_gradient import write_mask_gradient
from relpos.gpu.sums.row_gradients import write_row_gradients
from relpos.gpu.sums.row_sums import row_sums
from relpos.gpu.sums.sink_gradients import write_sink_gradients
from relpos.gpu.sums.table_gradients import Sums, write_gradient_apart, write_gradients
from relpos.gpu.sums.targets import Targets
from relpos.gpu.tiles import DECODE, SLICED, Tile, kind_of, near_tile, slice_of, splits, tile

LOG2E = 1.4426950408889634
_ROWS = 32  # of a program of row_sums


class Run:
    """The launches of one call with queries. query and key are as the scores multiply them, plain
    as the call gives them, and summed is the query with what is added to it."""

    of_scores = False  # else rows count slopes and key biases from their nearest visible key

    def __init__(self, lowered: Lowered, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.lowered, self.device = lowered, query.device
        self.batch, self.heads, self.queries, self.head_dim = query.shape
        self.kv_heads, self.keys, self.value_dim = key.shape[1], key.shape[2], value.shape[3]
        self.chip = 0 if INTERPRETS else chip(self.device)
        self.plain = query, key
        self.rotations = Rotations(self, lowered.turns)
        self.summed = with_added(self, query)
        self.query, self.key = map(aligned, self.rotations.turned(self.summed, key))
        self.value = aligned(value)
        masks, of_masks = masks_of(self)
        self.functions: dict[str, Any] = {"scores": (), "tables": 0, "masks": of_masks}
        self.kind = "masked"  # until the terms are known
        self.problem = Problem(
            scale=lowered.scale * LOG2E,
            shifts=lowered.shifts,
            left=lowered.left,
            right=lowered.right,
            places=lowered.places,
            spans=spans_of(lowered.spans),
            terms=(),
            window=(0, 0),
            masks=masks,
            sinks=tuple(
                sink_of(lowered.parameters[sink.parameter], sink.multiplier * LOG2E)
                for sink in lowered.sinks
            ),
            softcap=None if lowered.softcap is None else lowered.softcap * LOG2E,
            dropout=dropout_of(lowered, self.device),
            row_shift=None,
        )
        self.lines = Lines(self)
        tables, others = terms_of(self)
        terms = [*tables, *others, *self.lines.terms]
        self.functions["scores"] = tuple(score for _, score in terms)
        self.functions["tables"] = len(tables)
        self.problem = self.problem._replace(
            terms=tuple(term for term, _ in terms),
            window=window_of_call(self, [term for term, _ in tables]),
            row_shift=self.lines.row_shift,
        )
        self.kind = kind_of(self, len(tables) + len(others))

    def tile(self, kernel: Any, again: bool = False) -> Tile:
        return tile(self.chip, kernel.fn.__name__, *self.sizes(), again, self.kind)

    def near_tile(self) -> Tile:
        """Of the tiles between parts, which divides that of backward_keys."""
        return near_tile(self.chip, *self.sizes(), self.kind)

    def sizes(self) -> tuple[int, int]:
        """The bits of an element, and the larger head size."""
        return 8 * self.query.element_size(), max(self.head_dim, self.value_dim)

    def is_open(self) -> bool:
        """Whether consecutive tokens see what two numbers say."""
        problem = self.problem
        return problem.places is None and problem.spans is None and not problem.masks

    def config(self, tile: Tile, again: bool = False, share: int = ALL) -> Config:
        narrow = self.query.element_size() == 2
        return Config(
            precision="ieee" if narrow else "tf32x3",
            widen=narrow and INTERPRETS,
            head_dim=padded(self.head_dim),
            value_dim=padded(self.value_dim),
            queries=tile.queries,
            keys=tile.keys,
            **self.functions,
            tiles=index_in(self.functions["masks"]),
            sinks=len(self.problem.sinks),
            open=not again and self.by_parts(),
            stages=min(tile.stages, 2),
            bare=len(self.problem.terms) == self.functions["tables"]
            and not self.lowered.columns
            and self.problem.softcap is None
            and self.lowered.scale > 0.0,
            far=self.far(),
            slice=slice_of(self.chip, *self.sizes()),
            aligned=self.problem.dropout is not None,
            again=again,
            share=share,
            parted=self.tile(backward_keys)[:2] if share else (),
        ).constants()

    def rows(self, tensor: Tensor, count: int, columns: int = 0) -> Any:
        """Blocks of so many rows of a tensor [B, H, L, D], and of so many columns or else all."""
        columns = columns or padded(tensor.shape[3])
        return TensorDescriptor(
            tensor, list(tensor.shape), strides_of(tensor), [1, 1, count, columns]
        )

    def launch(self, kernel: Any, grid: tuple[int, ...], tile: Tile | None, **given: Any) -> None:
        name = kernel.fn.__name__
        COUNTS[name] += 1
        if tile is not None:
            given |= {"num_warps": tile.warps, "num_stages": tile.stages}
        kernel[grid](**given, enable_fp_fusion=True)

    def twice(self, kernel: Any, grid: tuple[int, ...], tile: Tile, **given: Any) -> None:
        """Launches a kernel, and once more for what is not finite."""
        for again in (False, True):
            self.launch(kernel, grid, tile, **given, AGAIN=again)

    def pairs(
        self,
        kernel: Any,
        programs: Any,
        chunks: int = 1,
        written: Tensor | None = None,
        **given: Any,
    ) -> None:
        """Launches a kernel that goes through tiles of pairs, for so many programs of its tile, of
        each of `chunks` of keys. written: its results [.., D]; where pairs may be hidden, what is
        not finite of them is computed anew by a second launch."""
        given |= {} if written is None else {"odd": None}
        tile = self.tile(kernel)
        if chunks > 1 and self.chip:
            tile = DECODE[8 * self.query.element_size()]
        self.tiles(kernel, programs, tile, chunks, **given)
        if written is not None:
            self.again(kernel, programs, chunks, (written, None), **given)

    def again(
        self,
        kernel: Any,
        programs: Any,
        chunks: int,
        written: tuple[Tensor, Tensor | None],
        **given: Any,
    ) -> None:
        """Of the results [.., D] and [.., Dv] what is not finite, where pairs may be hidden."""
        if self.lowered.hides:
            given["odd"] = odd_of(self, *written)
            self.tiles(kernel, programs, self.tile(kernel, True), chunks, again=True, **given)

    def tiles(
        self,
        kernel: Any,
        programs: Any,
        tile: Tile,
        chunks: int = 1,
        again: bool = False,
        share: int = ALL,
        **given: Any,
    ) -> None:
        """One launch of it. again, share: of Config."""
        if not programs(tile):
            return
        sliced = kernel.fn.__name__ in SLICED
        most = slice_of(self.chip, *self.sizes()) if sliced else 256
        problem = self.problem
        if kernel is backward_keys and problem.spans is not None:
            problem = problem._replace(spans=self.spans_of_keys(tile.keys))
        blocks = {"query": (self.query, tile.queries), "key": (self.key, tile.keys)}
        blocks |= {"value": (self.value, tile.keys)}
        if "dout" in given:
            blocks["dout"] = given["dout"], tile.queries
        read = {
            name: self.rows(x, count, min(most, padded(x.shape[3])))
            for name, (x, count) in blocks.items()
            if name in kernel.arg_names
        }
        self.launch(
            kernel,
            (programs(tile), chunks),
            tile,
            **given | read,
            group=self.heads // self.kv_heads,
            queries=self.queries,
            keys=self.keys,
            problem=problem,
            CONFIG=self.config(tile, again, share),
        )

    def of_queries(self, tile: Tile) -> int:
        return self.batch * self.heads * triton.cdiv(self.queries, tile.queries)

    def by_parts(self) -> bool:
        """Config.open."""
        return self.is_open() and splits(self.chip, *self.sizes(), self.kind)

    def far(self) -> bool:
        """Config.far."""
        return bool(self.functions["tables"] or self.lowered.values)

    def forward(self, out: Tensor, softmax: Tensor | None, lse: Tensor | None) -> None:
        if not self.lowered.values:
            mix(self, out, softmax, lse)
            return
        wide = self.workspace(*out.shape)
        softmax = self.workspace(*out.shape[:3], 2) if softmax is None else softmax
        mix(self, wide, softmax, lse)
        add_values(self, wide, softmax)
        out.copy_(wide)

    def emit(self, softmax: Tensor | None, to: Tensor) -> None:
        """The weights, or without softmax the scores."""
        self.pairs(write_pairs, self.of_queries, softmax=softmax, to=to, heads=self.heads)

    def backward(
        self,
        out: Tensor,
        softmax: Tensor,
        dout: Tensor,
        dlse: Tensor | None,
        gradients: Sequence[Tensor | None],
    ) -> None:
        dq, dk, dv, of_mask, *of_parameters = gradients
        dout = aligned(dout)
        given = {"dout": dout, "softmax": softmax, "sums": self.sums(out, dout, dlse)}
        if self.lowered.values:
            self.problem = self.problem._replace(value_rows=met_of(self, dout))
        targets = Targets(of_parameters, self.lowered.shared)
        rotations = self.rotations
        lowered = self.lowered
        turns = rotations.trains(targets)
        wanted = [term for term in lowered.terms if targets.wants(term.table.parameter)]
        tables = [term for term in wanted if term.delta is None]
        own = lowered.computed.terms if lowered.computed.trains(targets) else ()
        added = [numbers for numbers in lowered.added if targets.wants(numbers.parameter)]
        rows = [table for table in lowered.rows if table.trains(dq, targets)]
        apart = [table for table in lowered.rows_apart if table.trains(dq, targets)]
        columns = [table for table in lowered.columns if table.trains(dk, targets)]
        maps = [term.map for term in (*tables, *own, *rows)]
        sums = Sums.of(self, maps, [table.map for table in columns])
        wide_dk = self.workspace(*dk.shape) if dk is not None and columns else dk
        to_dk = rotations.room(self.key, wide_dk)
        key_sums = lines = None
        if self.lines.trains_keys(targets):
            key_sums = self.workspace(self.batch, self.heads, self.keys)
        if self.lines.trains_slopes(targets):
            lines = self.workspace(self.batch, self.heads, self.queries, 4)
        if any(x is not None for x in (dk, dv, key_sums)) or turns or columns:
            if dv is None:
                dv = torch.empty_like(self.value, memory_format=torch.contiguous_format)
            more = {"ends": sums.key_ends, "lo": sums.lo, "hi": sums.hi, "key_sums": key_sums}
            write_key_gradients(self, to_dk, dv, given | more)
        wide = dq
        if added or (dq is not None and (rows or apart)):
            wide = self.workspace(*self.query.shape)
        to_dq = rotations.room(self.query, wide)
        if dq is not None or maps or turns or added or lines is not None:
            self.pairs(
                backward_queries,
                self.of_queries,
                written=to_dq,
                dq=to_dq,
                ends=sums.ends,
                lines=lines,
                nearest=self.lines.nearest,
                lo=sums.lo,
                hi=sums.hi,
                heads=self.heads,
                head_dim=self.head_dim,
                slope=self.lowered.scale,
                **given,
            )
        rotations.finish((self.summed, to_dq, wide), (self.plain[1], to_dk, wide_dk), targets)
        if lines is not None:
            self.lines.write_slopes(lines, (given["sums"], dlse, softmax), targets)
        if key_sums is not None:
            self.lines.write_keys(key_sums, targets)
        to = [
            (term.map, term.table.view(targets.to(term.table.parameter)), term.table.multiplier)
            for term in tables
        ]
        of_computed = [self.workspace(self.heads, x.shape[1]) for x in lowered.tables if own]
        to += [(term.map, x, 1.0) for term, x in zip(own, of_computed, strict=True)]
        write_gradients(self, to, sums, given)
        if own:
            lowered.pull_back(of_computed, targets)
        for numbers in added:
            write_added_gradient(numbers, wide, targets)
        for term in wanted:
            if term.delta is not None:
                write_gradient_apart(self, term, targets, given)
        of_tables = ((*rows, *apart), None if dq is None else wide), (columns, wide_dk)
        write_row_gradients(self, sums, given, *of_tables, targets)
        for to, found in ((dq, wide), (dk, wide_dk)):
            if to is not None and found is not to:
                to.copy_(found)
        values = [table for table in lowered.values if table.trains(None, targets)]
        write_value_gradients(self, values, dout, softmax, targets)
        if of_mask is not None:
            write_mask_gradient(self, of_mask, given)
        write_sink_gradients(self, given, targets)
        targets.finish()

    def sums(self, out: Tensor, dout: Tensor, dlse: Tensor | None) -> Tensor:
        sums = self.workspace(self.batch, self.heads, self.queries)
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
            BV=padded(self.value_dim),
            BM=_ROWS,
        )
        return sums

    def spans_of_keys(self, size: int) -> Spans:
        """With the queries that see each block of so many keys."""
        spans, blocks = self.problem.spans, triton.cdiv(self.keys, size)
        rows = self.batch if spans.key_row else 1
        found = self.workspace(rows, blocks, 2, dtype=torch.int32)
        self.launch(
            find_queries,
            (rows * blocks,),
            None,
            spans=spans,
            found=found,
            queries=self.queries,
            blocks=blocks,
            BLOCK=256,
            KEYS=size,
        )
        return spans._replace(queries=found, query_row=2 * blocks if spans.key_row else 0)

    def parameter(self, numbers: Any) -> Tensor:
        return self.lowered.parameters[numbers.parameter]

    def table(self, table: Table) -> Tensor:
        """[M, r] or [H, M, r]."""
        return table.table.view(self.parameter(table.table))

    def workspace(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Workspace: each element is written before a later kernel reads it."""
        return torch.empty(shape, dtype=dtype, device=self.device)


class RunOfScores(Run):
    """The launches of relpos.scores and of its gradients."""

    of_scores = True

    def backward(self, dscores: Tensor, gradients: Sequence[Tensor | None]) -> None:
        """From dscores [B, H, Lq, Lk]; the gradient of a value is None. What the kernels read of
        weights and outputs is not used."""
        self.problem = self.problem._replace(given=pairs_of(dscores))
        softmax = self.workspace(self.batch, self.heads, self.queries, 2)
        super().backward(self.query, softmax, self.query, None, gradients)
