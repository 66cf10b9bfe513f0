"""The forward pass: a program for each block of queries of a head."""

import triton
import triton.language as tl

from relpos.gpu.product import operand, product, rows, write_rows
from relpos.gpu.softmax import add_scores, write_state
from relpos.gpu.terms import add_terms
from relpos.gpu.visibility import keys_of, seen

PLAIN = ["heads", "group", "queries", "keys", "value_dim", "left", "right", "scale"]


@triton.jit(do_not_specialize=PLAIN)
def forward(
    query,
    key,
    value,
    out,
    softmax,
    lse,
    shifts,
    terms,
    heads,
    group,
    queries,
    keys,
    value_dim,
    left,
    right,
    scale,
    SCORES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """out [B, H, Lq, Dv], softmax [B, H, Lq, 2] and lse [B, H, Lq], contiguous, of descriptors of
    query [B, H, Lq, D], key [B, H / group, Lk, D] and value. `scale` is in log2 units; shifts int64
    [B] are the positions of the first key less those of the first query."""
    blocks = tl.cdiv(queries, BM)
    head = tl.program_id(0) // blocks
    q0 = (blocks - 1 - tl.program_id(0) % blocks) * BM  # the longest rows of a causal call first
    b, h = head // heads, head % heads
    shift = tl.load(shifts + b)
    a, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    q = rows(query, b, h, q0, BM, BD)
    reference = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BV), tl.float32)
    first, last = keys_of(q0, BM, shift, left, right, keys)
    for k0 in range(first, last, BN):
        corner = tl.cast(k0, tl.int64) + shift - q0
        k = rows(key, b, h // group, k0, BN, BD)
        s = product(q, tl.trans(k), tl.zeros((BM, BN), tl.float32), PRECISION, WIDEN) * scale
        s = add_terms(s, terms, SCORES, h, (q0, k0, corner, a, c))
        visible = seen(corner, a, c, left, right) & (c < keys - k0)
        s = tl.where(visible, s, float("-inf"))
        p, factor, reference, total = add_scores(s, reference, total)
        v = rows(value, b, h // group, k0, BN, BV)
        acc = product(operand(p, value.dtype, WIDEN), v, acc * factor[:, None], PRECISION, WIDEN)
    row = tl.cast(head, tl.int64) * queries + q0
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    write_rows(out, acc * inverse[:, None], row, queries - q0, value_dim, BM, BV, WIDEN)
    write_state(softmax, lse, row, tl.arange(0, BM), queries - q0, reference, total)
