"""The cases of the conformance run: what varies, a pairwise cover of it, and random draws.

A case is a dict of plain values, one per factor, with a seed for its numbers: its repr is a repro.
"""

import itertools
import random
from functools import cache

from allpairspy import AllPairs

from tests import FULL
from tests.support.oracle import configs_of, exclusive, oracle_of, registry

SEED = 20261121
DRAWN = 2_000  # cases in all: the cover, then random draws up to here
SWEEP = 15_000  # with RELPOS_FULL=1
LENGTHS = [0, 1, 2, 3, 5, 7, 16, 17, 31, 40, 63, 64, 65, 127, 128, 129, 130]
HEAD_SIZES = [1, 2, 3, 4, 8, 15, 16, 33, 64, 65, 96, 128, 130]
ELEMENTS = 400_000  # of the largest dense array that the oracle makes
MOST_PARTS = 5


@cache
def positions_to_try():
    """{scheme, "none" or "sum": its positions}. A position is scheme configurations as
    "name#index" joined by "+"; "" is attention without positions. Each scheme stands in every
    configuration alone, beside each of two others, and in one sum of three to five."""
    draw = random.Random(SEED)
    counts = {name: len(configs_of(name, 1, 2, 2)) for name in sorted(registry())}
    found = {"none": [""]} | {n: [f"{n}#{i}" for i in range(counts[n])] for n in counts}

    def total(name, others):
        """A sum of the scheme and so many others that may stand beside it."""
        chosen = [name]
        for other in draw.sample(sorted(counts), len(counts)):
            taken = {kind for each in chosen for kind in exclusive(each)}
            if len(chosen) <= others and not taken & exclusive(other):
                chosen.append(other)
        return "+".join(f"{each}#{draw.randrange(counts[each])}" for each in chosen)

    sizes = itertools.cycle(range(2, MOST_PARTS))
    found["sum"] = [total(name, n) for name in counts for n in (1, 1, next(sizes))]
    return found


@cache
def factors(targets):
    return {
        "queries": LENGTHS,
        "keys": LENGTHS,
        "heads": [(1, 1), (4, 4), (4, 2), (6, 1), (3, 3)],
        "head_dim": HEAD_SIZES,
        "value_dim": HEAD_SIZES,
        "batch": [1, 2, 3],
        "mask": [
            "",
            "causal",
            "window",
            "causal+window",
            "padding",
            "range",
            "bool",
            "float",
            "causal+padding",
            "window+bool",
            "range+float",
            "causal+window+padding+range+bool",
        ],
        "offsets": [
            "default",
            "aligned",
            "zero",
            "both",
            "ragged",
            "consecutive",
            "scattered",
            "shuffled",
        ],
        "dtype": ["float32", "float64", "bfloat16", "float16"],
        "tables": ["own", "float32"],
        "strides": ["plain", "blhd", "sliced", "stepped", "expanded"],
        "scale": [None, 1.0, 0.37],
        "softcap": [None, 2.5],
        "lse": [False, True],
        "dropout": [0.0, 0.3],
        "wants": ["all", "inputs", "tables", "key"],
        "target": list(targets),
    }


def options_of(position, *sizes):
    """[(scheme, constructor options)] for calls of these sizes, which configs_of takes; None where
    a scheme has none."""
    chosen = []
    for text in filter(None, position.split("+")):
        name, index = text.split("#")
        options = configs_of(name, *sizes)[int(index)]
        if options is None:
            return None
        chosen.append((name, options))
    return chosen


def configuration(case):
    """options_of a case."""
    heads, key_heads = case["heads"]
    return options_of(case["position"], heads, case["head_dim"], case["value_dim"], key_heads)


def elements(case):
    """Of the largest array that the dense oracle makes."""
    grid = case["batch"] * case["heads"][0] * case["queries"] * case["keys"]
    parts = case["position"].count("+") + 1 if "position" in case else MOST_PARTS
    return grid * parts * (1 + case["head_dim"] + case["value_dim"])


def fitted(case):
    """The case with a softcap and sizes that its schemes take, and that the oracle can hold."""
    names = [part.split("#")[0] for part in filter(None, case["position"].split("+"))]
    if any(hasattr(oracle_of(name), "UP_TO_QUERY") for name in names):
        case["softcap"] = None
    while configuration(case) is None:
        case["head_dim"] += 1
    for shrink in ("batch", "head_dim", "value_dim", "keys"):
        while elements(case) > ELEMENTS and case[shrink] > 2:
            before = case[shrink]
            case[shrink] = before // 2 if shrink != "keys" else before - 1
            while configuration(case) is None:
                case["head_dim"] += 1
            if case[shrink] == before:  # no scheme takes less
                break
    return case


def pairs_of(case):
    return set(itertools.combinations(case.items(), 2))


def cover(levels, draw):
    """(cases without a position, note): every two values of different factors that fit together
    meet in a case."""
    least = {name: values[0] for name, values in levels.items()}

    def fits(case):
        return elements(case) <= ELEMENTS

    def row_fits(row):
        return fits(least | dict(zip(levels, row, strict=False)))

    cases = [
        dict(zip(levels, row, strict=True))
        for row in AllPairs(list(levels.values()), filter_func=row_fits)
    ]
    every = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(levels, 2)
        for x, y in itertools.product(levels[a], levels[b])
    }
    wanted = {pair for pair in every if fits(least | dict(pair))}
    for pair in sorted(wanted.difference(*map(pairs_of, cases)), key=repr):
        drawn = ({n: draw.choice(v) for n, v in levels.items()} | dict(pair) for _ in iter(int, 1))
        cases.append(next(filter(fits, drawn)))
    note = f"{len(cases)} cases cover all {len(wanted)} pairs that fit together"
    return cases, f"{note}, {len(every) - len(wanted)} do not"


def every_value(levels, draw):
    """Cases in which each scheme meets every value of every factor: as many a scheme as the longest
    list of values has, so that their number grows by the scheme and not by pairs of schemes."""
    rows = max(len(values) for values in levels.values())
    cases = []
    for found in positions_to_try().values():
        orders = {name: draw.sample(values, len(values)) for name, values in levels.items()}
        for n in range(rows):
            case = {name: order[n % len(order)] for name, order in orders.items()}
            cases.append(fitted(case | {"position": found[n % len(found)]}))
    return cases


@cache
def all_cases(targets):
    """(cases, note): a cover of all factors but the position, each scheme with every value, then
    random draws; the same list in every process."""
    draw = random.Random(SEED)
    levels = factors(targets)
    positions = [position for found in positions_to_try().values() for position in found]
    cases, note = cover(levels, draw)
    cases = [
        fitted(case | {"position": positions[number % len(positions)]})
        for number, case in enumerate(cases)
    ]
    total = SWEEP if FULL else DRAWN
    schemes = every_value(levels, draw)
    cases += schemes
    note = f"{note}; {len(schemes)} bring every value to every scheme"
    while len(cases) < total:
        case = {name: draw.choice(values) for name, values in levels.items()}
        cases.append(fitted(case | {"position": positions[len(cases) % len(positions)]}))
    for number, case in enumerate(cases):
        case["seed"] = SEED + number
    return cases, note
