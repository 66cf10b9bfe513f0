"""What the kernels of pairs read of a call beside its tensors and sizes. A term, a mask or a
promise is a field or an entry here, and an argument of no kernel."""

import hashlib
from typing import Any, NamedTuple

import triton.language as tl
from torch import Tensor

from relpos.gpu.mode import INTERPRETS

ALL, NEAR, FAR_AWAY = 0, 1, 2  # Config.share


class Places(NamedTuple):
    """int64 [.., Lq] and [.., Lk]: positions of queries and keys, and the elements between two
    batch rows, 0 where they share theirs."""

    q: Any
    k: Any
    q_row: Any
    k_row: Any


def places_of(q: Tensor, k: Tensor) -> Places:
    """Of contiguous numbers [L], [1, L] or [B, L]."""
    rows = (x.shape[-1] if x.dim() == 2 and len(x) > 1 else 0 for x in (q, k))
    return Places(q, k, *rows)


class Spans(NamedTuple):
    """keys int32 [.., Lq, 2]: the first key that a query sees, and the one after the last. queries
    int32 [.., key blocks, 2]: the same of a block of keys, where a kernel goes through their
    queries. key_row, query_row: the elements between two batch rows, 0 where they share theirs."""

    keys: Any
    key_row: Any
    queries: Any
    query_row: Any


class Problem(NamedTuple):
    """scale: of the scores, in log2 units. shifts int64 [B]: the positions of the first key less
    those of the first query, of consecutive tokens; others have places. Of consecutive tokens a
    query sees the keys at distances from -left to right, unless there are spans. terms, masks: as
    terms/ and masks/ have them, in the order of Config.scores and Config.masks. window int64: the
    first and the last distance between which tables change that are read by the distances of
    tokens, under Config.far. softcap: in log2 units. row_shift float32 [B, H, Lq]: by how much the
    scores of a row are less than they are, in log2 units. value_rows: Rows of dout and of tables
    whose rows join values, in the backward pass. given: the gradients of the scores, of
    relpos.scores. What a call has not is None, or ()."""

    scale: Any
    shifts: Any
    left: Any
    right: Any
    places: Any
    spans: Any
    terms: Any
    window: Any
    masks: Any
    sinks: Any
    softcap: Any
    dropout: Any
    row_shift: Any
    value_rows: Any = None
    given: Any = None


class Config(NamedTuple):
    """Constants of a kernel of pairs. head_dim, value_dim: D and Dv, padded to powers of two.
    queries, keys: of a tile. scores, masks: the functions of the terms and the masks. tiles: which
    mask is a TileMask, -1 for none. sinks: how many there are. tables: how many of the first terms
    read tables by the distances of tokens. open: consecutive tokens see what `left` and `right`
    say, so that most tiles are seen as a whole (pairs/parts.py). far: with tables, of terms or of
    values. stages: of the loops in which tables are read pair by pair, which takes shared memory.
    bare: scores are products times a scale above 0, and numbers of biases and rows. aligned: tiles
    start at multiples of their keys. slice: so many columns of D and Dv are multiplied at a time,
    where a kernel does it. again: what is not finite is computed anew, with care for what pairs do
    not see (product_of_seen). share: of backward_keys, ALL tiles, those between parts (NEAR), or
    those of both parts (FAR_AWAY), of tiles of so many queries and keys as `parted` says."""

    precision: Any
    widen: Any
    head_dim: Any
    value_dim: Any
    queries: Any
    keys: Any
    scores: Any
    masks: Any
    tiles: Any
    sinks: Any
    tables: Any
    open: Any
    far: Any
    stages: Any
    bare: Any
    aligned: Any
    slice: Any
    again: Any = False
    share: Any = ALL
    parted: Any = ()
    sources: Any = ""

    def constants(self) -> "Config":
        """As a kernel takes it: before 3.8 Triton takes fields as constants where each is one.
        Triton's cache of compiled kernels knows functions within a tuple by name alone, and would
        give what an older relpos compiled: so their sources are a constant, too."""
        if INTERPRETS:
            return self
        own = self._replace(sources=sources_of((*self.scores, *self.masks)))
        return Config(*map(tl.constexpr, own))


_sources: dict[tuple[Any, ...], str] = {}


def sources_of(functions: tuple[Any, ...]) -> str:
    """A hash of the sources of functions of kernels, and of all that they call."""
    found = _sources.get(functions)
    if found is None:
        keys = "".join(each.cache_key for each in functions)
        found = _sources[functions] = hashlib.sha256(keys.encode()).hexdigest()[:16]
    return found
