"""Masks of all pairs: relpos.attention's attn_mask, of bool or added to the scores, and pairs of a
class that is not seen."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from relpos.gpu.pairs.product import stored
from relpos.gpu.pairs.scores import gradients_at, read_pairs
from relpos.gpu.pairs.softmax import LOG2E


class Pairs(NamedTuple):
    """Numbers of pairs: data [B, H, Lq, Lk], with the elements between two of each axis, 0 where
    all share theirs; uint8 of a mask of bool, where 1 is seen."""

    data: Any
    batch: Any
    head: Any
    query: Any
    key: Any


def pairs_of(numbers: Tensor) -> Pairs:
    """Of [B, H, Lq, Lk]."""
    values = numbers.view(torch.uint8) if numbers.dtype == torch.bool else numbers
    strides = zip(numbers.shape, numbers.stride(), strict=True)
    return Pairs(values, *(stride if size > 1 else 0 for size, stride in strides))


class Hidden(NamedTuple):
    """The class of each pair, and the one whose pairs are not seen."""

    classes: Any
    hidden: Any


@triton.jit
def hide_class(s, visible, mask, at):
    return s, visible & (read_pairs(mask.classes, at, 0) != mask.hidden)


@triton.jit
def hide_unseen(s, visible, mask, at):
    return s, visible & (read_pairs(mask, at, 0) != 0)


@triton.jit
def add_mask(s, visible, mask, at):
    """-inf hides a pair."""
    added = read_pairs(mask, at, 0.0).to(tl.float32)
    return s + added * LOG2E, visible & (added != float("-inf"))


PLAIN = ["heads", "group", "queries", "keys", "over_batch", "over_heads", "over_queries"]
PLAIN += ["over_keys", "columns"]


@triton.jit(do_not_specialize=PLAIN)
def sum_mask(
    query,
    key,
    value,
    dout,
    softmax,
    sums,
    gradient,
    problem,
    heads,
    group,
    queries,
    keys,
    over_batch,
    over_heads,
    over_queries,
    over_keys,
    columns,
    CONFIG: tl.constexpr,
    SHARED_BY_QUERIES: tl.constexpr,
    SHARED_BY_KEYS: tl.constexpr,
):
    """gradient: a Pairs of the gradient of one that is added to the scores. A program for each
    tile of it, which goes through the batch rows, heads, blocks of queries and blocks of keys that
    share it, over_batch, ... of them. `columns`: the tiles of a row of tiles. The rest as in
    backward_queries."""
    tile = tl.program_id(0)
    own_rows = 1 if SHARED_BY_QUERIES else tl.cdiv(queries, CONFIG.queries)
    first_k = tile % columns * over_keys
    first_q = tile // columns % own_rows * over_queries
    own_heads = heads // over_heads
    first_h = tile // columns // own_rows % own_heads * over_heads
    first_b = tile // columns // own_rows // own_heads * over_batch
    a, c = tl.arange(0, CONFIG.queries)[:, None], tl.arange(0, CONFIG.keys)[None, :]
    acc = tl.zeros((CONFIG.queries, CONFIG.keys), tl.float32)
    for n in range(over_batch * over_heads):
        h, b = first_h + n % over_heads, first_b + n // over_heads
        shift = tl.load(problem.shifts + b)
        for q in range(first_q, first_q + over_queries):
            for k in range(first_k, first_k + over_keys):
                at = (b, h, q * CONFIG.queries, k * CONFIG.keys, a, c, queries, keys, shift)
                tensors = (query, key, value, dout, softmax, sums)
                _, _, ds, _, _ = gradients_at(tensors, heads, group, problem, at, CONFIG)
                acc += ds
    i, j = first_q * CONFIG.queries + a, first_k * CONFIG.keys + c
    inside = (i < queries) & (j < keys)
    if SHARED_BY_QUERIES:
        acc = tl.sum(acc, 0, keep_dims=True)
        inside = j < keys
        i = tl.zeros((1, 1), tl.int32)
    if SHARED_BY_KEYS:
        acc = tl.sum(acc, 1, keep_dims=True)
        inside = i < queries
        j = tl.zeros((1, 1), tl.int32)
    if SHARED_BY_QUERIES and SHARED_BY_KEYS:
        inside = i == 0
    to = gradient.data + tl.cast(first_b, tl.int64) * gradient.batch
    to += tl.cast(first_h, tl.int64) * gradient.head
    to += tl.cast(i, tl.int64) * gradient.query + tl.cast(j, tl.int64) * gradient.key
    tl.store(to, stored(acc, gradient.data.dtype.element_ty, CONFIG.widen), inside)
