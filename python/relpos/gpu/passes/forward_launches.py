"""The launches of the forward pass."""

from typing import Any

import triton
from torch import Tensor

from relpos.gpu.layout import padded
from relpos.gpu.mode import INTERPRETS
from relpos.gpu.passes.forward import forward, merge_chunks

_MERGED = 16  # rows of a program of merge_chunks
# The keys of so many queries are computed in chunks of at least so many, for so many programs.
FEW_QUERIES, LEAST_CHUNK, PROGRAMS = 16, 256, 264


def mix(run: Any, out: Tensor, softmax: Tensor | None, lse: Tensor | None) -> None:
    """The forward pass, without what tables add to the values."""
    results = {"out": out, "softmax": softmax, "lse": lse}
    sizes = {"heads": run.heads, "value_dim": run.value_dim}
    chunks, chunk = chunks_of(run)
    if chunks == 1:
        run.pairs(forward, run.of_queries, 1, out, **results, **sizes, chunk=chunk)
        return
    parts = run.workspace(chunks, *out.shape)
    states = run.workspace(chunks, *out.shape[:3], 2)
    of_chunks = {"out": parts, "softmax": states, "lse": None, "chunk": chunk}
    run.pairs(forward, run.of_queries, chunks, parts, **of_chunks, **sizes)
    count = run.batch * run.heads * run.queries
    run.launch(
        merge_chunks,
        (triton.cdiv(count, _MERGED),),
        None,
        **results,
        shift=run.problem.row_shift,
        parts=parts,
        states=states,
        chunks=chunks,
        count=count,
        value_dim=run.value_dim,
        BV=padded(run.value_dim),
        BM=_MERGED,
        WIDEN=INTERPRETS,
    )


def chunks_of(run: Any) -> tuple[int, int]:
    """Of few queries, how many chunks their keys are computed in, and of how many keys: enough
    programs for a large GPU. Shapes alone decide it."""
    rows = run.batch * run.heads
    if run.queries > FEW_QUERIES or run.keys < 2 * LEAST_CHUNK or rows >= PROGRAMS:
        return 1, max(run.keys, 1)
    wanted = min(triton.cdiv(PROGRAMS, rows), run.keys // LEAST_CHUNK)
    chunk = 64 * triton.cdiv(triton.cdiv(run.keys, wanted), 64)
    return triton.cdiv(run.keys, chunk), chunk
