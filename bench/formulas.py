"""Attention with each position in plain torch, matched with relpos; every head at once.

A builder takes a shape (B, H, Lq, Lk, D) and a dtype and returns a Match. `formula` runs in any
floating dtype, so that float32 can be judged by float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import relpos
import torch
from torch import Tensor
from torch.nn import functional

CLIP = 64
Shape = tuple[int, int, int, int, int]
FULL = (1, 8, 2048, 2048, 64)
LONG = (1, 8, 4096, 4096, 64)


@dataclass
class Match:
    leaves: list[Tensor]  # q, k, v, then what is trained
    ours: Callable[[], Tensor]
    formula: Callable[[], Tensor]
    bias: Callable[[], Tensor] | None = None  # the ready mask [1, H, Lq, Lk] of a distance bias
    causal: bool = False


def inputs(shape: Shape, dtype: torch.dtype, kv_heads: int | None = None) -> list[Tensor]:
    """Query, key and value; kv_heads: of key and value, those of the query by default."""
    batch, heads, queries, keys, dim = shape
    of_keys = (heads if kv_heads is None else kv_heads, keys)
    return [
        torch.randn(batch, *sizes, dim, dtype=dtype, requires_grad=True)
        for sizes in ((heads, queries), of_keys, of_keys)
    ]


def plain(shape: Shape, dtype: torch.dtype, causal: bool = False) -> Match:
    qkv = inputs(shape, dtype)
    return Match(
        qkv,
        lambda: relpos.attention(*qkv, is_causal=causal),
        lambda: functional.scaled_dot_product_attention(*qkv, is_causal=causal),
        causal=causal,
    )


def causal(shape: Shape, dtype: torch.dtype) -> Match:
    return plain(shape, dtype, causal=True)


def masked(shape: Shape, dtype: torch.dtype) -> Match:
    """A floating mask of every pair, the heads' own, with a gradient."""
    qkv = inputs(shape, dtype)
    mask = torch.randn(1, *shape[1:4], dtype=dtype, requires_grad=True)
    return Match(
        [*qkv, mask],
        lambda: relpos.attention(*qkv, attn_mask=mask),
        lambda: functional.scaled_dot_product_attention(*qkv, attn_mask=mask),
        lambda: mask,
    )


def trained_bias(shape: Shape, dtype: torch.dtype) -> Match:
    """T5's table in float32: gathered to a mask in torch, so that it gets its gradient."""
    qkv = inputs(shape, dtype)
    position = relpos.T5Bias(shape[1])
    if dtype == torch.float64:
        position.double()
    weight = position.relative_attention_bias.weight
    classes = position.indices(shape[2], shape[3], q_offset=0)

    def bias():
        return weight.T[:, classes][None].to(dtype)

    return Match(
        [*qkv, weight],
        lambda: relpos.attention(*qkv, position=position, q_offset=0),
        lambda: functional.scaled_dot_product_attention(*qkv, attn_mask=bias()),
        bias,
    )


def window_bias(shape: Shape, dtype: torch.dtype) -> Match:
    """Swin's table of a square window, gathered to a mask in torch."""
    qkv = inputs(shape, dtype)
    side = math.isqrt(shape[2])
    position = relpos.SwinBias(shape[1], window=[side, side]).to(dtype)
    (table,) = position.parameters()
    torch.nn.init.normal_(table)
    classes = position.indices(shape[2], shape[3])

    def bias():
        return table[classes].permute(2, 0, 1)[None]

    return Match(
        [*qkv, table],
        lambda: relpos.attention(*qkv, position=position),
        lambda: functional.scaled_dot_product_attention(*qkv, attn_mask=bias()),
        bias,
    )


def pair_bias(shape: Shape, dtype: torch.dtype) -> Match:
    """A number for each class of pairs, gathered to a mask in torch."""
    qkv = inputs(shape, dtype)
    table = torch.randn(shape[1], 32, dtype=dtype, requires_grad=True)
    classes = torch.randint(0, 32, shape[2:4]).to(torch.uint8)
    position = relpos.terms.PairBias(table, relpos.PairClasses(classes))
    index = classes.long()

    def bias():
        return table[:, index][None]

    return Match(
        [*qkv, table],
        lambda: relpos.attention(*qkv, position=position),
        lambda: functional.scaled_dot_product_attention(*qkv, attn_mask=bias()),
        bias,
    )


def softmax_times(scores: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def bias_rpe(shape: Shape, dtype: torch.dtype) -> Match:
    """The fifth notebook: biases gathered by clipped distances, queries and keys from 0."""
    q, k, v = qkv = inputs(shape, dtype)
    position = relpos.BiasRPE(shape[1], 512).to(dtype)
    torch.nn.init.normal_(position.biases)

    def formula():
        far = position.biases.shape[1] // 2
        rel_pos = torch.arange(shape[2])[:, None] - torch.arange(shape[3])[None, :]
        biases = position.biases[:, rel_pos.clamp(-far, far) + far]
        return softmax_times(q @ k.mT / shape[4] ** 0.5 + biases, v)

    return Match(
        [*qkv, position.biases],
        lambda: relpos.attention(*qkv, position=position, q_offset=0),
        formula,
    )


def shaw_einsum(shape: Shape, dtype: torch.dtype) -> Match:
    """The fourth notebook's first formula: a row for each pair, [L, L, D], then products."""
    q, k, v = qkv = inputs(shape, dtype)
    position = relpos.Shaw(CLIP, shape[4], values=False).to(dtype)
    classes = position.indices(shape[2], shape[3])

    def formula():
        rows = position.key_table[classes]
        relative = torch.einsum("bhid,ijd->bhij", q, rows)
        return softmax_times((q @ k.mT + relative) / math.sqrt(shape[4]), v)

    return Match(
        [*qkv, position.key_table], lambda: relpos.attention(*qkv, position=position), formula
    )


def shaw_gather(shape: Shape, dtype: torch.dtype) -> Match:
    """The same, products with the table's rows first, then gathered to pairs."""
    match = shaw_einsum(shape, dtype)
    q, k, v, table = match.leaves
    classes = relpos.Shaw(CLIP, shape[4], values=False).indices(shape[2], shape[3])

    def formula():
        index = classes.expand(*shape[:2], -1, -1)
        relative = torch.gather(q @ table.T, -1, index)
        return softmax_times((q @ k.mT + relative) / math.sqrt(shape[4]), v)

    match.formula = formula
    return match


def music_skew(shape: Shape, dtype: torch.dtype) -> Match:
    """The fourth notebook's second formula, with the causal mask that it leaves out."""
    batch, heads, length, _, dim = shape
    q, k, v = qkv = inputs(shape, dtype)
    position = relpos.MusicTransformer(length, dim).to(dtype)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def formula():
        padded = functional.pad(torch.matmul(q, position.Er.T), (1, 0))
        relative = padded.view(batch, heads, length + 1, length)[:, :, 1:]
        scores = (q @ k.mT + relative) / math.sqrt(dim)
        return softmax_times(scores.masked_fill(future, -math.inf), v)

    return Match(
        [*qkv, position.Er],
        lambda: relpos.attention(*qkv, position=position, is_causal=True),
        formula,
        causal=True,
    )
