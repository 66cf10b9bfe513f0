"""What shapes and plain options of a call decide, and the integers that say where its tokens stand,
kept for other calls of the same."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relpos import _core
from relpos.gpu.lowered.computed import OFFSETS, PLACING, Computed, ComputedTerm, placed_on_cpu
from relpos.gpu.lowered.line_terms import KeyTerm, SlopeTerm
from relpos.gpu.lowered.numbers import Numbers, numbers_of
from relpos.gpu.lowered.projections import Projected
from relpos.gpu.lowered.refusals import refuse
from relpos.gpu.lowered.table_bias import TableBias
from relpos.gpu.lowered.tables import Table
from relpos.gpu.lowered.turn_term import TurnTerm, turn_of

_KEPT = 256


class Plan(NamedTuple):
    """What is decided so."""

    scale: float
    terms: tuple[TableBias, ...]
    sinks: tuple[Numbers, ...]
    rows: tuple[Table, ...]
    columns: tuple[Table, ...]
    values: tuple[Table, ...]
    added: tuple[Numbers, ...]
    slopes: tuple[SlopeTerm, ...]
    key_biases: tuple[KeyTerm, ...]
    computed: Computed
    turns: tuple[TurnTerm, ...]
    projections: tuple[Projected, ...]  # tables, whose numbers follow a call's parameters
    reads: tuple[str, ...]  # fields of a call, without whose tensors the above holds alone
    reads_inputs: bool  # the same of inputs of integers
    tokens: tuple[Tensor, Tensor] | None  # where a scheme places queries and keys, on the CPU

    def numbers(self) -> int:
        """Those of features and coordinates."""
        held = [each.features for each in self.projections] + list(self.tokens or ())
        deltas = (term.delta for term in (*self.terms, *self.rows))
        held += [x for delta in deltas if delta is not None for x in delta.at or ()]
        return sum(x.numel() for x in held)


_plans: dict[Any, Plan] = {}
_READ_AS = {"pair bias": "distance bias", "pair rows": "row table"}  # whose distance is a class
_KEPT_NUMBERS = 2**24  # that plans hold, and the integers they are kept by; else they are forgotten


def plan_of(query: Tensor, key: Tensor, value: Tensor | None, call: Any) -> Plan:
    shapes = _shape([query, key, value, *call])
    plan = _held((shapes,), lambda: _made(query, key, value, call))
    if plan.reads_inputs or any(getattr(call, name) is not None for name in plan.reads):
        inputs = tuple(x.cpu() if x.dtype == torch.int64 else x for x in call.parameters)
        own = placed_on_cpu(call)._replace(parameters=inputs)
        read = [getattr(own, name) for name in PLACING]
        read += [x if x.dtype == torch.int64 else None for x in inputs]
        known = (None if x is None else x.contiguous().numpy().tobytes() for x in read)
        return _held((shapes, *known), lambda: _made(query, key, value, own, reads=True))
    if not plan.reads or call.key_lo is None:
        return plan
    return plan_of(query, key, value, call._replace(key_lo=None, key_hi=None))  # of all distances


def _held(known: tuple[Any, ...], make: Callable[[], Plan]) -> Plan:
    """The plan of what is known of a call; threads may make it twice."""
    plan = _plans.get(known)
    if plan is None:
        plan = make()
        held = sum(_numbers(*each) for each in [*_plans.items(), (known, plan)])
        if len(_plans) >= _KEPT or held > _KEPT_NUMBERS:
            _plans.clear()
        _plans[known] = plan
    return plan


def _numbers(known: tuple[Any, ...], plan: Plan) -> int:
    return plan.numbers() + sum(len(x) // 8 for x in known if isinstance(x, bytes))


def _shape(value: Any) -> Any:
    """What _core.lower reads of a value."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(_shape(each) for each in value)
    return value


def _made(query: Tensor, key: Tensor, value: Tensor | None, call: Any, reads: bool = False) -> Plan:
    if call.tile_ranges is not None:  # of whose blocks, without numbers, none has a tile
        call = call._replace(tile_entries=call.tile_entries[:0], tile_words=call.tile_words[:0])
    scale, consecutive, positions, inputs, terms = _core.lower(query, key, value, call, reads)
    heads, lengths = query.shape[1], (query.shape[2], key.shape[2])
    projections: list[Projected] = []

    def project(table: Projected) -> Numbers:
        projections.append(table)
        return Numbers(len(call.parameters) + len(projections) - 1, (0, 1, 2), (), 1.0)

    def table_of(what: Any) -> Table:
        return Table.of(what, heads, lengths, project)

    made = {
        "distance bias": lambda what: TableBias.of(what, lengths),
        "sink": numbers_of,
        "row table": table_of,
        "column table": table_of,
        "value table": table_of,
        "vector added to the query": numbers_of,
        "slopes": SlopeTerm.of,
        "key bias": KeyTerm.of,
        "computed table": ComputedTerm.of,
        "rotation": lambda what: turn_of(what, *lengths),
    }
    found: dict[str, list[Any]] = {kind: [] for kind in made}
    for scheme, kind, what in terms:
        kind = _READ_AS.get(kind, kind)
        if kind not in made:
            refuse(f"position: {scheme}", f"its {kind} has no kernel")
        found[kind].append(made[kind](what))
    given = consecutive or call.q_positions is not None
    read = PLACING if positions else () if given else OFFSETS
    tokens = None
    if not given and (reads or all(getattr(call, name) is None for name in OFFSETS)):
        tokens = _placed(query, key, call)
    *plain, computed, turns = map(tuple, found.values())
    made_of = Computed(computed), turns, tuple(projections)
    return Plan(scale, *plain, *made_of, read, inputs, tokens)


def _placed(query: Tensor, key: Tensor, call: Any) -> tuple[Tensor, Tensor]:
    """int64 [L], or [B, L] where offsets are a tensor's, of queries and keys."""
    tokens = []
    for tensor, of_keys in ((query, False), (key, True)):
        name = "k_offset" if of_keys else "q_offset"
        offsets = getattr(call, name + "s")
        offset = (getattr(call, name) or 0) if offsets is None else offsets[:, None]
        numbers = (torch.arange(tensor.shape[2], device="cpu") + offset).contiguous()
        _core.place_tokens(call.position, of_keys, numbers)
        tokens.append(numbers)
    return tokens[0], tokens[1]
