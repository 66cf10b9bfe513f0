"""What the backward pass needs of each row: <dout, out> - dlse."""

import triton
import triton.language as tl

from relpos.gpu.pairs.product import rows


@triton.jit(do_not_specialize=["heads", "queries", "value_dim"])
def row_sums(sums, out, dout, dlse, heads, queries, value_dim, BV: tl.constexpr, BM: tl.constexpr):
    """sums [B, H, Lq]; out is contiguous, dout a descriptor. A program for each block of queries of
    a head."""
    blocks = tl.cdiv(queries, BM)
    head = tl.program_id(0) // blocks
    q0 = (tl.program_id(0) % blocks) * BM
    row = tl.cast(head, tl.int64) * queries + q0
    a, c = tl.arange(0, BM), tl.arange(0, BV)
    inside = (a < queries - q0)[:, None] & (c < value_dim)[None, :]
    held = tl.load(out + row * value_dim + a[:, None] * value_dim + c[None, :], inside, 0.0)
    given = rows(dout, head // heads, head % heads, q0, BM, BV)
    found = tl.sum(held.to(tl.float32) * given.to(tl.float32), 1)
    if dlse is not None:
        found -= tl.load(dlse + row + a, a < queries - q0, 0.0)
    tl.store(sums + row + a, found, a < queries - q0)
