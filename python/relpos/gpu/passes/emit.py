"""Weights and scores pair by pair: return_weights and relpos.scores."""

import triton
import triton.language as tl

from relpos.gpu.pairs.dropout import factors
from relpos.gpu.pairs.product import stored
from relpos.gpu.pairs.scores import pair_scores, sliced
from relpos.gpu.pairs.softmax import LN2, read_state


@triton.jit(do_not_specialize=["heads", "group", "queries", "keys"])
def write_pairs(
    query,
    key,
    softmax,
    to,
    problem,
    heads,
    group,
    queries,
    keys,
    CONFIG: tl.constexpr,
):
    """to [B, H, Lq, Lk]: the weights after dropout, or without softmax the scores in natural units.
    A program for each block of queries of a head."""
    blocks = tl.cdiv(queries, CONFIG.queries)
    head, q0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * CONFIG.queries
    b, h = head // heads, head % heads
    shift = tl.load(problem.shifts + b)
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    row = tl.cast(head, tl.int64) * queries + q0
    for k0 in range(0, keys, CONFIG.keys):
        at = (b, h, q0, k0, a, c, queries, keys, shift)
        products = sliced(query, key, b, h, h // group, q0, k0, CONFIG.head_dim, CONFIG)
        s, visible, _, _ = pair_scores(products, problem, at, CONFIG)
        if softmax is not None:
            reference, inverse = read_state(softmax, row, a, queries - q0)
            found = tl.where(visible, tl.exp2(s - reference) * inverse, 0.0)
            if problem.dropout is not None:
                found *= factors(problem.dropout, at, CONFIG)
        else:
            found = s * LN2
        corner = to + row * keys + k0
        inside = (a < queries - q0) & (c < keys - k0)
        narrow = stored(found, to.dtype.element_ty, CONFIG.widen)
        tl.store(corner + tl.cast(a, tl.int64) * keys + c, narrow, inside)
