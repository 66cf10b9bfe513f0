"""Which features cannot meet: what the library refuses, and what no call can be made of here."""

import re
from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz.call import names_of, numbers_of, parts_of
from tests.support.oracle import exclusive, oracle_of, reads_length


class Refusal(NamedTuple):
    """A call that the library refuses."""

    name: str
    holds: Callable  # of a case
    says: str  # what the error says, which begins with the argument at fault
    reason: str


def has(case, attribute):
    return any(hasattr(oracle_of(name), attribute) for name in names_of(case))


def both(case, kind):
    """Whether two schemes of a sum do what only one of them may."""
    return len(names_of(case)) == 2 and all(kind in exclusive(name) for name in names_of(case))


def reads(case):
    return any(reads_length(name, options) for name, options in parts_of(case) or ())


def placed(case):
    return case["place"] in ("positions", "row-positions")


def no_offset(case):
    """Whether nothing says where queries stand that have another number of keys."""
    queries, keys = numbers_of(case["lengths"])
    bounded = case["causal"] == "yes" or case["window"] != "none" or names_of(case)
    return queries != keys and bounded


def route(*names):
    return lambda case: case["route"] in names


def all_of(*conditions):
    return lambda case: all(condition(case) for condition in conditions)


def value(factor, *values):
    return lambda case: case[factor] in values


def other(factor, *values):
    return lambda case: case[factor] not in values


REFUSED = []


def refusal(case):
    """The entries of the table that a case meets."""
    return [entry for entry in REFUSED if entry.holds(case)]


def said(entry, error):
    return re.search(entry.says, str(error)) is not None


def fits(case):
    """Whether a case makes sense: it stands for one call, of sizes that its schemes have, which is
    refused for one reason at most."""
    return makes_sense(case) and len(refusal(case)) <= 1


def makes_sense(case):
    parts = parts_of(case)
    queries, keys = numbers_of(case["lengths"])
    through = case["route"]
    low = ("bfloat16", "float16")
    rules = (
        parts is not None,
        through != "autocast" or case["dtype"] in low,
        # A chunk sees the keys up to its last query: only causal calls are the same as a whole.
        through != "chunks"
        or (
            case["causal"] == "yes"
            and queries <= keys
            and case["dropout"] == "0"
            and case["also"] == "none"
            and not case["mask"].startswith("tile")
            and not reads(case)
        ),
        through != "vmap" or case["mask"] != "tile:bhqk",
        case["wants"] != "mask" or case["mask"].startswith(("float", "least")),
        case["wants"] != "tables" or names_of(case) or case["sinks"] != "none" or through == "rows",
        case["hidden"] == "numbers" or case["padding"] != "none",
        case["tables"] == "own" or names_of(case) or case["sinks"] != "none",
        case["options"] == "0" or names_of(case),
        case["lse"] not in ("gradient", "alone") or case["wants"] != "nothing",
    )
    return all(rules)
