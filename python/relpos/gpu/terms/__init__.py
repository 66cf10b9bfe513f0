"""The terms of the equation, a file each. A term is a NamedTuple of what its kernels read, and jit
functions. The kernels take a tuple of terms and a tuple of their functions, and know no term."""

import triton
import triton.language as tl


@triton.jit
def add_terms(s, terms, SCORES: tl.constexpr, h, at):
    """The scores s of head h with what each term adds, in log2 units. `at` is where the tile
    stands: (q0, k0, corner, a, c), its first query and key, the int64 distance of these two, and
    numbers of queries and keys within the tile, broadcast to s."""
    for n in tl.static_range(len(SCORES)):
        s = SCORES[n](s, terms[n], h, at)
    return s
