"""Which features cannot meet: what the library refuses, and what no call can be made of here."""

import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.fuzz.call import names_of, numbers_of, parts_of
from tests.support.oracle import exclusive, oracle_of, places, reads_length
from tests.support.oracle import placed as placed_by


class Refusal(NamedTuple):
    """A call that the library refuses."""

    name: str
    holds: Callable  # of a case
    says: str  # what the error says, which begins with the argument at fault
    reason: str
    example: str  # a case, as text


def has(case, attribute):
    return any(hasattr(oracle_of(name), attribute) for name in names_of(case))


def both(case, kind):
    """Whether two schemes of a sum do what only one of them may."""
    return len(names_of(case)) == 2 and all(kind in exclusive(name) for name in names_of(case))


def placing(case):
    return any(places(*part) for part in parts_of(case) or ())


def two_place(case):
    parts = parts_of(case) or ()
    return len(parts) == 2 and all(places(*part) for part in parts)


def of_pairs(case):
    """Whether an input is a number for each pair."""
    return has(case, "seen")


def reads(case):
    return any(reads_length(name, options) for name, options in parts_of(case) or ())


def share_dims(case):
    """Whether two rotations of a sum turn the same dims of a head."""
    spans = []
    for _, options in parts_of(case) or ():
        start = options.get("start", 0)
        end = start + (options.get("rotary_dim") or options["head_dim"] - start)
        spans.append(set(range(start, end)))
    return len(spans) == 2 and bool(spans[0] & spans[1])


def starts_of(case):
    """The numbers of the first query and key, where they are the same in all rows."""
    queries, keys = numbers_of(case["lengths"])
    kind = case["place"]
    if kind == "none" and case["route"] not in ("cache", "chunks"):
        return 0, 0
    return {"zero": (0, 0), "both": (23, 11), "far": (40_000 + keys, 40_000)}.get(
        kind, (keys - queries, 0)
    )


def placements_differ(case):
    """Whether two schemes of a sum put a token of the call at different positions."""
    found = []
    for name, options in parts_of(case) or ():
        ends = zip("qk", starts_of(case), numbers_of(case["lengths"]), strict=True)
        tokens = [(side, first + torch.arange(length)) for side, first, length in ends]
        found.append([placed_by(oracle_of(name), options, x, side) for side, x in tokens])
    return any(not torch.equal(*pair) for pair in zip(*found, strict=True))


def placed(case):
    return case["place"] in ("positions", "row-positions")


PLACELESS = {"attention_sink", "pair_bias", "pair_rows"}  # what they add depends on no position


def no_offset(case):
    """Whether nothing says where queries stand that have another number of keys."""
    queries, keys = numbers_of(case["lengths"])
    bounded = case["causal"] == "yes" or case["window"] != "none"
    placed_by_row = case["route"] == "rows"  # its bias is given positions
    read = bounded or placed_by_row or not PLACELESS.issuperset(names_of(case))
    return queries != keys and read


def route(*names):
    return lambda case: case["route"] in names


def all_of(*conditions):
    return lambda case: all(condition(case) for condition in conditions)


def value(factor, *values):
    return lambda case: case[factor] in values


def other(factor, *values):
    return lambda case: case[factor] not in values


REFUSED = [
    Refusal(
        "two rotations",
        lambda case: both(case, "rotates") and share_dims(case),
        "^position: two rotations turn the same dims",
        "a dim of a head has one angle",
        "position=rope beside=xpos",
    ),
    Refusal(
        "two placements",
        lambda case: two_place(case) and not placed(case) and placements_differ(case),
        "^position: .* and .* place token",
        "a token has one position",
        "position=levit beside=decomposed",
    ),
    Refusal(
        "softcap beside scores without a number for each query",
        lambda case: case["softcap"] != "none" and has(case, "UP_TO_QUERY"),
        "^softcap: expected none beside",
        "a softcap sees what a softmax does not",
        "position=forgetting softcap=2.5",
    ),
    Refusal(
        "sinks beside scores without a number for each query",
        lambda case: has(case, "UP_TO_QUERY") and (case["sinks"] != "none" or has(case, "SINKS")),
        "^(sinks|position): expected none beside",
        "a sink is compared with the scores themselves",
        "position=forgetting sinks=heads",
    ),
    Refusal(
        "far from the start",
        lambda case: has(case, "NEAR") and case["place"] == "far",
        "^cpm_ant: expected positions below max_length",
        "every distance has a bucket of its own",
        "position=cpm_ant place=far",
    ),
    Refusal(
        "no offset",
        lambda case: (
            case["route"] not in ("varlen", "cache", "chunks")
            and case["place"] == "none"
            and no_offset(case)
        ),
        "^q_offset: not given",
        "a position is never guessed",
        "lengths=5x17 place=none causal=yes",
    ),
    *(
        Refusal(
            f"packed, {factor}",
            all_of(route("varlen"), condition),
            f"^attention_varlen.. got an unexpected keyword argument '{argument}'",
            "queries see keys of their own sequence, whose positions start at 0",
            f"route=varlen {example}",
        )
        for factor, condition, argument, example in (
            ("mask", other("mask", "none"), "attn_mask", "mask=bool:qk"),
            ("padding", other("padding", "none"), "key_padding_mask", "padding=some"),
            ("range", other("range", "none"), "key_range", "range=shared"),
            ("k_offset", value("place", "both", "far"), "k_offset", "place=both"),
            ("positions", placed, "q_positions", "place=positions"),
            ("weights", value("also", "weights"), "return_weights", "also=weights"),
        )
    ),
    Refusal(
        "packed, length of the call",
        lambda case: case["route"] == "varlen" and reads(case) and case["batch"] != "1",
        "^position: .* depends on the length of the call",
        "several sequences have several lengths",
        "position=enformer options=1 route=varlen",
    ),
    *(
        Refusal(
            f"on ranks, {name}",
            all_of(route("ring", "ulysses"), condition),
            says,
            "no rank holds Lq x Lk numbers",
            f"route=ring {example}",
        )
        for name, condition, says, example in (
            ("mask", other("mask", "none"), "^attn_mask: expected None", "mask=bool:qk"),
            ("weights", value("also", "weights"), "^return_weights: expected", "also=weights"),
            ("pairs", of_pairs, "^position: pair_", "position=pair_bias"),
        )
    ),
    Refusal(
        "heads that ranks cannot share",
        all_of(route("ulysses"), value("heads", "3/1", "1/1")),
        "^group: 2 ranks share the heads",
        "each rank has as many heads as another",
        "route=ulysses heads=3/1",
    ),
    Refusal(
        "tables of key heads that ranks share",
        lambda case: (
            case["route"] == "ulysses"
            and "rotary_tables" in names_of(case)
            and any("kv_heads" in options for _, options in parts_of(case))
        ),
        "^position: input .* has tokens on axis 2",
        "heads are dealt over the ranks, an input is not",
        "position=rotary_tables options=3 route=ulysses",
    ),
    Refusal(
        "a cache told where its keys are",
        lambda case: (
            case["route"] in ("cache", "chunks") and case["place"] not in ("aligned", "none")
        ),
        "^(q_offset|k_offset|q_positions|k_positions): the cache says",
        "the cache knows it",
        "route=cache place=zero",
    ),
    *(
        Refusal(
            f"bias by rows, {name}",
            all_of(route("rows"), condition),
            says,
            "the bias takes the place of a mask, in blocks of queries that start at their numbers",
            f"route=rows {example}",
        )
        for name, condition, says, example in (
            ("softcap", other("softcap", "none"), "^softcap: not with", "softcap=2.5"),
            ("mask", other("mask", "none"), "^attn_mask: not with", "mask=bool:qk"),
            ("weights", value("also", "weights"), "^return_weights: not with", "also=weights"),
            ("placement", placing, "^position: .* places tokens", "position=swin"),
            ("length", reads, "^position: .* depends on the length", "position=enformer options=1"),
        )
    ),
]


def refusal(case):
    """The entries of the table that a case meets."""
    return [entry for entry in REFUSED if entry.holds(case)]


def said(entry, error):
    return re.search(entry.says, str(error)) is not None


# Surroundings that a value asks for, below.
NEEDS = {
    ("route", "chunks"): {"causal": "yes"},
    ("route", "autocast"): {"dtype": "bfloat16"},
    ("wants", "mask"): {"mask": "float:qk"},
    ("wants", "tables"): {"position": "t5"},
    ("tables", "float32"): {"position": "t5"},
    **{
        ("route", name): {"tables": "float32", "position": "t5"}
        for name in ("vmap", "ring", "ulysses")
    },
    ("hidden", "nan"): {"padding": "some"},
    **{("options", str(n)): {"position": "t5"} for n in range(1, 9)},
}


def makes_sense(case):
    """Whether a case stands for one call, of sizes that its schemes have, that is refused for one
    reason at most."""
    return coherent(case) and len(refusal(case)) <= 1


def shares_nothing(case):
    """Whether no gradient in 16 bits is that of several rows of a batch."""
    tables = case["tables"] == "float32" or not (names_of(case) or case["sinks"] != "none")
    return tables and not case["mask"].startswith(("float", "least"))


def coherent(case):
    parts = parts_of(case)
    queries, keys = numbers_of(case["lengths"])
    through = case["route"]
    low = ("bfloat16", "float16")
    rules = (
        parts is not None,
        through != "autocast" or case["dtype"] in low,
        # Gradients of what several calls share are summed in its own type, by torch.
        through != "chunks" or case["dtype"] not in low,
        through not in ("vmap", "ring", "ulysses")
        or case["dtype"] not in low
        or shares_nothing(case),
        # The bound of float64 overflows.
        case["dtype"] != "float64"
        or not case["mask"].startswith("least")
        or case["softcap"] == "none",
        # A chunk sees the keys up to its last query: only causal calls are the same as a whole.
        through != "chunks"
        or (
            case["causal"] == "yes"
            and queries <= keys
            and case["dropout"] == "0"
            and case["also"] == "none"
            and not case["mask"].startswith("tile")
            and not reads(case)
            and not placing(case)  # later tokens may stand before earlier ones
        ),
        through != "vmap" or case["mask"] != "tile:bhqk",
        # A weight is exp(score - lse), of numbers that leave no digit of it.
        case["also"] != "weights" or not case["mask"].startswith("least"),
        case["wants"] != "mask" or case["mask"].startswith(("float", "least")),
        case["wants"] != "tables" or names_of(case) or case["sinks"] != "none" or through == "rows",
        not two_place(case) or case["place"] != "rows",
        # The rows of a batch have one length, the calls of vmap each its own.
        through != "vmap"
        or not reads(case)
        or case["place"] not in ("rows", "row-positions")
        or case["batch"] == "1",
        case["also"] != "scores" or through in ("call", "checkpoint"),
        case["hidden"] == "numbers" or case["padding"] != "none",
        case["tables"] == "own" or names_of(case) or case["sinks"] != "none",
        case["options"] == "0" or names_of(case),
        case["lse"] not in ("gradient", "alone") or case["wants"] != "nothing",
    )
    return all(rules)
