"""Dropout with the numbers of the CPU (src/kernels/dropout.h): Threefry4x32 of 13 rounds, whose key
is the seed, the batch row and the head, and whose counter is a query and a number for each four
columns, 16 apart. Salmon et al.: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Dropout(NamedTuple):
    """drawn int64 [2]: the seed, and the word below which a pair is dropped. scale: what a kept
    weight is multiplied by. first: the number of the first query."""

    drawn: Any
    scale: Any
    first: Any


@triton.jit
def mix(x, y, TURN: tl.constexpr):
    x += y
    return x, ((y << TURN) | (y >> (32 - TURN))) ^ x


@triton.jit
def two_rounds(
    x, FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, LAST: tl.constexpr
):
    x0, x1, x2, x3 = x
    x0, x1 = mix(x0, x1, FIRST)
    x2, x3 = mix(x2, x3, SECOND)
    x0, x3 = mix(x0, x3, THIRD)
    x2, x1 = mix(x2, x1, LAST)
    return x0, x1, x2, x3


@triton.jit
def add_key(x, first, second, third, fourth, STEP: tl.constexpr):
    x0, x1, x2, x3 = x
    return x0 + first, x1 + second, x2 + third, x3 + fourth + tl.cast(STEP, tl.uint32)


@triton.jit
def words(x0, x1, x2, x3, key0, key1, key2, key3):
    """The four words of a counter and a key, all uint32."""
    last = key0 ^ key1 ^ key2 ^ key3 ^ tl.cast(0x1BD11BDA, tl.uint32)
    x = add_key((x0, x1, x2, x3), key0, key1, key2, key3, 0)
    x = two_rounds(two_rounds(x, 10, 26, 11, 21), 13, 27, 23, 5)
    x = add_key(x, key1, key2, key3, last, 1)
    x = two_rounds(two_rounds(x, 6, 20, 17, 11), 25, 10, 18, 20)
    x = add_key(x, key2, key3, last, key0, 2)
    x = two_rounds(two_rounds(x, 10, 26, 11, 21), 13, 27, 23, 5)
    x0, x1, x2, x3 = add_key(x, key3, last, key0, key1, 3)
    x0, x1 = mix(x0, x1, 6)
    x2, x3 = mix(x2, x3, 20)
    return x0, x1, x2, x3


@triton.jit
def factors(dropout, at, CONFIG: tl.constexpr):
    """What the weights of a tile are multiplied by; its first key is a multiple of as many as it
    has."""
    b, h, q0, k0, a, _, _, _, _ = at
    groups: tl.constexpr = (CONFIG.keys + 63) // 64  # of 64 keys, which share 16 counters
    across: tl.constexpr = a.shape[0] == 1  # the tile is [keys, queries]
    n = tl.arange(0, 16 * groups)
    n = n[:, None] if across else n[None, :]
    none = tl.zeros((16 * groups, CONFIG.queries), tl.uint32)
    if not across:
        none = tl.zeros((CONFIG.queries, 16 * groups), tl.uint32)
    seed = tl.load(dropout.drawn)
    w0, w1, w2, w3 = words(
        none + tl.cast(k0 // 64 * 16 + n, tl.uint32),
        none,
        none + tl.cast(dropout.first + q0 + a, tl.uint32),
        none,
        tl.cast(seed & 0xFFFFFFFF, tl.uint32),
        tl.cast((seed >> 32) & 0xFFFFFFFF, tl.uint32),
        tl.cast(b, tl.uint32),
        tl.cast(h, tl.uint32),
    )
    # Keys 16 w, ..., 16 w + 15 of a group have word w. Words are chosen and not joined: where a
    # product of 16 columns follows a join, Triton before 3.9 reads wrong numbers (triton #10645).
    if CONFIG.keys == 16:
        low = tl.where(k0 % 32 == 0, w0, w1)
        found = tl.where(k0 % 64 < 32, low, tl.where(k0 % 32 == 0, w2, w3))
    else:
        if CONFIG.keys == 32:
            n = of_words(2, across)
            first, second = tl.where(k0 % 64 == 0, w0, w2), tl.where(k0 % 64 == 0, w1, w3)
            found = tl.where(n == 0, by_groups(first, across), by_groups(second, across))
        else:
            n = of_words(4, across)
            low = tl.where(n == 0, by_groups(w0, across), by_groups(w1, across))
            high = tl.where(n == 2, by_groups(w2, across), by_groups(w3, across))
            found = tl.where(n < 2, low, high)
        if across:
            found = tl.reshape(found, (CONFIG.keys, CONFIG.queries))
        else:
            found = tl.reshape(found, (CONFIG.queries, CONFIG.keys))
    threshold = tl.cast(tl.load(dropout.drawn + 1), tl.uint32)
    return tl.where(found >= threshold, dropout.scale, 0.0)


@triton.jit
def by_groups(words, ACROSS: tl.constexpr):
    """Words [16 groups, queries], or the other way round, as [groups, 1, 16, queries]."""
    if ACROSS:
        found = tl.reshape(words, (words.shape[0] // 16, 1, 16, words.shape[1]))
    else:
        found = tl.reshape(words, (words.shape[0], words.shape[1] // 16, 1, 16))
    return found


@triton.jit
def of_words(MANY: tl.constexpr, ACROSS: tl.constexpr):
    """The numbers of so many words, to be broadcast with by_groups."""
    n = tl.arange(0, MANY)
    return n[None, :, None, None] if ACROSS else n[None, None, :, None]
