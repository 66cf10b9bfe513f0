"""To which term of relpos each piece of a score_mod belongs."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos._flex.pieces import Pieces, Structure
from relpos._flex.score import Unfit
from relpos._flex.sources import B, D, H, Indexing, K, Q, Value, apart, trace

DISTANCE, KEY, PAIR = "distance", "key", "pair"
_CHECKED = 64  # random pairs, which check the tracer


class Piece(NamedTuple):
    """One tensor among those that Pieces returns."""

    place: int
    factor: float
    sources: frozenset[str]
    kind: str


class Plan(NamedTuple):
    """What a score_mod becomes; holds none of its tensors."""

    structure: Structure
    scale: float
    softcap: float | None
    constant: float
    pieces: tuple[Piece, ...]
    masks: tuple[tuple[int, frozenset[str]], ...]  # place and sources of each condition

    def of(self, kind: str) -> list[Piece]:
        return [piece for piece in self.pieces if piece.kind == kind]

    def sources(self, kind: str, hides: Sequence[int] = ()) -> frozenset[str]:
        """Those of the pieces of one kind, and of some masks."""
        masks = dict(self.masks)
        found = [*(piece.sources for piece in self.of(kind)), *(masks[place] for place in hides)]
        return frozenset().union(*found)


def plan_of(score_mod: Callable[..., Any], heads: int, dtype: torch.dtype) -> Plan:
    """Raises ValueError with the reason where something fits no term."""
    with apart():
        return _plan(Pieces(score_mod, dtype), heads)


def _plan(pieces: Pieces, heads: int) -> Plan:
    values = trace(pieces)
    record = pieces.record
    # o tanh(x) is c tanh(o x / c) for c = |o|.
    outer = 1 if record.cap is None else record.cap
    cap = None if record.cap is None else float(abs(record.cap))
    count = len(record.bias)
    added = (*record.bias, *record.after)
    factors = [float(by if n >= count else by * outer) for n, (by, _) in enumerate(added)]
    kinds = _kinds(values[:count], factors[:count]) + [_kind(x) for x in values[count : len(added)]]
    if any(kind != PAIR for kind in kinds[count:]):
        got = "a bias after a softcap"
        raise Unfit(got, "relpos caps scores with their position: add it before the softcap")
    if cap is not None and PAIR in kinds[:count]:
        raise Unfit("a tensor of pairs within a softcap", "attn_mask is added after the softcap")
    found = [
        Piece(n, factor, value.sources, kind)
        for n, (factor, value, kind) in enumerate(zip(factors, values, kinds, strict=False))
    ]
    masks = tuple((n, values[n].sources) for n in range(len(found), len(values)))
    plan = Plan(
        pieces.structure,
        float(record.factor * outer),
        cap,
        float(record.constant * outer),
        tuple(found),
        masks,
    )
    _check(pieces, plan, heads)
    return plan


def _kinds(values: list[Value], factors: list[float]) -> list[str]:
    """The kind of each; where indices are added one by one, score + kv_idx - q_idx, that of what
    they add up to."""
    moving = [(by, value) for by, value in zip(factors, values, strict=True) if value.q or value.k]
    joined = Value(
        q=sum(by * value.q for by, value in moving),
        k=sum(by * value.k for by, value in moving),
        rest=frozenset().union(*(value.rest for _, value in moving)),
        marks=frozenset().union(*(value.marks for _, value in moving)),
    )
    together = any(Q in value.sources for _, value in moving)
    return [_kind(joined if together and (value.q or value.k) else value) for value in values]


def _kind(value: Value) -> str:
    sources = value.sources
    if sources <= {H, D}:
        return DISTANCE
    if sources <= {B, H, K}:
        return KEY
    if value.of_pairs:
        return PAIR
    raise Unfit(*_reason(value))


def _reason(value: Value) -> tuple[str, str]:
    """Why it fits no term, and what would do."""
    sources, marks = value.sources, value.marks
    if not sources & {K, D}:
        then = "it adds one number to all scores of a row, which softmax does not see: leave it out"
        return "a function of the query alone", then
    if sources <= {B, H, D}:
        then = "make heads of the batch rows: query.flatten(0, 1)[None], keys and values likewise"
        return "a bias of the distance that differs by batch row", then
    if "rows" in marks:
        then = "append the rows to query and key, as relpos.compose.tupe does"
        return "a product of rows of queries and of keys", then
    if "quotient" in marks:
        then = "a relpos.Position with grid = (height, width) has bias(dy, dx)"
        return "quotients of q_idx and kv_idx, as of tokens of a grid", then
    if "sum" in marks:
        return "q_idx + kv_idx", "terms are functions of kv_idx - q_idx, or of kv_idx"
    if sources <= {B, H, K, D} or sources <= {B, H, Q, D}:
        side, gate = ("key", "columns and key_gate") if K in sources else ("query", "rows and gate")
        then = f"a relpos.Position with {gate} has products of both; add a sum part by part"
        return f"a function of the distance together with the {side}", then
    if "coordinates" in marks:
        then = (
            "relpos.terms.DistanceBias with along=(of queries, of keys) reads the difference of "
            "int64 numbers of tokens; a mask is torch.where(cond, score, -inf)"
        )
        return "numbers of the query's token beside numbers of the key's", then
    then = (
        "subtract the indices before anything else, add the parts of a sum one by one, or index a "
        "dense tensor by [q_idx, kv_idx]"
    )
    return "a function of q_idx and kv_idx that is none of kv_idx - q_idx", then


def _check(pieces: Pieces, plan: Plan, heads: int) -> None:
    """Raises where a piece says something else at a pair with the same sources: where it magnifies
    the rounding of indices, or by a mistake of the tracer. Looks as far as captured tensors reach.
    """
    groups = [
        ([(piece.place, piece.factor) for piece in plan.of(kind)], plan.sources(kind), kind)
        for kind in (DISTANCE, KEY, PAIR)
    ]
    for place, sources in plan.masks:
        groups.append(([(place, 1.0)], sources, DISTANCE if sources <= {H, D} else PAIR))
    for reach in (64, 16, 4, 1):
        draw = random.Random(reach)
        h, q, k = (
            torch.tensor([draw.randrange(most) for _ in range(_CHECKED)])
            for most in (heads, reach, reach)
        )
        others = {
            DISTANCE: ((q - k).clamp(min=0), (k - q).clamp(min=0)),
            KEY: (q * 0, k),
            PAIR: (q, k),
        }
        try:
            with torch.no_grad():
                found = _at(pieces, h, q, k)
                for parts, sources, kind in groups:
                    other = _at(pieces, h if H in sources else h * 0, *others[kind])
                    a, b = (
                        sum((by * x[n].double() for n, by in parts), torch.zeros(()))
                        for x in (found, other)
                    )
                    if not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True):
                        then = "subtract the indices before anything else"
                        raise Unfit("other numbers at pairs of one distance or key", then)
        except (IndexError, RuntimeError):
            continue
        return


def _at(pieces: Pieces, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
    with Indexing():
        return torch.vmap(pieces)(torch.zeros_like(h), h, q_idx, kv_idx)
