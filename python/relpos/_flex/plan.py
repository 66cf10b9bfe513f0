"""To which term of relpos each piece of a score_mod belongs."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos._flex.pieces import Pieces, Structure
from relpos._flex.score import Unfit
from relpos._flex.sources import B, D, H, Indexing, K, Q, Value, apart, trace

DISTANCE, KEY, CLASS, PAIR = "distance", "key", "class", "pair"
_CHECKED = 64  # random pairs, which check the tracer


class Piece(NamedTuple):
    """One tensor among those that Pieces returns."""

    place: int
    factor: float
    sources: frozenset[str]
    kind: str
    codes: tuple[int, ...] = ()  # of CLASS: the places of those of which it is a function


class Plan(NamedTuple):
    """What a score_mod becomes; holds none of its tensors."""

    structure: Structure
    noted: tuple[int, ...]
    scale: float
    softcap: float | None
    constant: float
    pieces: tuple[Piece, ...]
    masks: tuple[tuple[int, frozenset[str]], ...]  # place and sources of each condition

    def of(self, kind: str) -> list[Piece]:
        return [piece for piece in self.pieces if piece.kind == kind]

    @property
    def count(self) -> int:
        """Of the tensors that Pieces returns without notes."""
        _, _, bias, _, after, seen = self.structure
        return len(bias) + len(after) + seen

    def sources(self, pieces: Sequence[Piece], hides: Sequence[int] = ()) -> frozenset[str]:
        """Those of some pieces, and of some masks."""
        masks = dict(self.masks)
        found = [*(piece.sources for piece in pieces), *(masks[place] for place in hides)]
        return frozenset().union(*found)

    def groups(self) -> dict[tuple[int, ...], list[Piece]]:
        """The pieces of each tuple of codes."""
        found: dict[tuple[int, ...], list[Piece]] = {}
        for piece in self.of(CLASS):
            found.setdefault(piece.codes, []).append(piece)
        return found


def plan_of(score_mod: Callable[..., Any], heads: int, dtype: torch.dtype) -> Plan:
    """Raises ValueError with the reason where something fits no term."""
    with apart():
        return _plan(Pieces(score_mod, dtype, notes=True), heads)


def _plan(pieces: Pieces, heads: int) -> Plan:
    values = trace(pieces)
    record = pieces.record
    # o tanh(x) is c tanh(o x / c) for c = |o|.
    outer = 1 if record.cap is None else record.cap
    cap = None if record.cap is None else float(abs(record.cap))
    count, capped = len(record.bias), len(record.bias) + len(record.after)
    masks = tuple((n, values[n].sources) for n in range(capped, capped + len(record.seen)))
    first = capped + len(masks) + pieces.noted[0]  # the place of the first summand
    factors = [float(by * outer) for by, _ in record.bias]
    found: list[Piece] = []
    for n, kind in enumerate(_kinds(values[:count], factors)):
        summands = range(first, first + pieces.noted[1 + n])
        first = summands.stop
        parts = _parts(values, n, summands) if kind in (CLASS, PAIR) else []
        for place, of in parts or [(n, kind)]:
            if cap is not None and of == PAIR:
                got = "a tensor of pairs within a softcap"
                raise Unfit(got, "attn_mask is added after the softcap")
            value = values[place]
            found.append(Piece(place, factors[n], value.sources, of, tuple(sorted(value.codes))))
    for n, (by, _) in enumerate(record.after, count):
        if _kind(values[n]) not in (CLASS, PAIR):
            got = "a bias after a softcap"
            raise Unfit(got, "relpos caps scores with their position: add it before the softcap")
        found.append(Piece(n, float(by), values[n].sources, PAIR))
    plan = Plan(
        pieces.structure,
        pieces.noted,
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
        return CLASS if value.codes and value.free <= {H} else PAIR
    raise Unfit(*_reason(value))


def _parts(values: list[Value], whole: int, places: range) -> list[tuple[int, str]]:
    """The summands of a sum, with their kinds; none where they are no easier than the sum: where
    all need a number of each pair, or one as many codes as the sum."""
    try:
        kinds = [_kind(values[place]) for place in places]
    except Unfit:
        return []
    found = list(zip(places, kinds, strict=True))
    by_class = [len(values[place].codes) for place, kind in found if kind == CLASS]
    if _kind(values[whole]) == CLASS:
        easier = PAIR not in kinds and max(by_class) < len(values[whole].codes)
    else:
        easier = not set(kinds) <= {PAIR}
    return found if easier else []


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
        (
            [(piece.place, piece.factor) for piece in plan.of(kind)],
            plan.sources(plan.of(kind)),
            kind,
        )
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
                    _alike(a, b)
                for codes, chosen in plan.groups().items():
                    each = torch.stack([h, *(found[place].long() for place in codes)])
                    first = (each[:, :, None] == each[:, None]).all(0).int().argmax(1)
                    for piece in chosen:
                        _alike(found[piece.place], found[piece.place][first])
        except (IndexError, RuntimeError):
            continue
        return


def _alike(a: Tensor, b: Tensor) -> None:
    if not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True):
        then = "subtract the indices before anything else"
        raise Unfit("other numbers at pairs of one distance, key or class", then)


def _at(pieces: Pieces, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
    with Indexing():
        return torch.vmap(pieces)(torch.zeros_like(h), h, q_idx, kv_idx)
