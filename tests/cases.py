"""The cases of the conformance run: what varies, a pairwise cover of it, and random draws.

A case is a dict of plain values, one per factor, with a seed for its numbers: its repr is a repro.
"""

import itertools
import os
import random
from functools import cache

from oracle import oracle_of, registry

SEED = 20261121
DRAWN = 5_000  # cases in all: the cover, then random draws up to here
SWEEP = 30 * DRAWN  # with RELPOS_FULL=1
LENGTHS = [0, 1, 2, 3, 5, 7, 16, 17, 31, 40, 63, 64, 65, 127, 128, 129, 130]
HEAD_SIZES = [1, 2, 3, 4, 8, 15, 16, 33, 64, 65, 96, 128, 130]
ELEMENTS = 400_000  # of the largest dense array that the oracle makes


def positions_to_try():
    """Scheme configurations as "name#index" joined by "+"; "" is attention without positions."""
    draw = random.Random(SEED)
    counts = {name: len(oracle_of(name).configs(1, 2, 2)) for name in sorted(registry())}
    single = [f"{name}#{n}" for name, count in counts.items() for n in range(count)]

    def pick(name):
        return f"{name}#{draw.randrange(counts[name])}"

    turning = {name for name in counts if getattr(oracle_of(name), "ROTATES", False)}
    pairs = [
        f"{pick(a)}+{pick(b)}"
        for a, b in itertools.combinations_with_replacement(counts, 2)
        if not (a in turning and b in turning)
    ]
    everything = "+".join(pick(name) for name in counts if name not in turning)
    return ["", *single, *pairs, everything]


@cache
def factors(targets):
    return {
        "position": positions_to_try(),
        "dtype": ["float32", "float64", "bfloat16", "float16"],
        "tables": ["own", "float32"],
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
        "heads": [(1, 1), (4, 4), (4, 2), (6, 1), (3, 3)],
        "queries": LENGTHS,
        "keys": LENGTHS,
        "head_dim": HEAD_SIZES,
        "value_dim": HEAD_SIZES,
        "batch": [1, 2, 3],
        "strides": ["plain", "blhd", "sliced", "stepped", "expanded"],
        "scale": [None, 1.0, 0.37],
        "lse": [False, True],
        "dropout": [0.0, 0.0, 0.0, 0.3],
        "wants": ["all", "inputs", "tables", "key"],
        "target": list(targets),
    }


def configuration(case):
    """[(scheme, constructor options)] of a case; None where a scheme has none at these sizes."""
    chosen = []
    for text in filter(None, case["position"].split("+")):
        name, index = text.split("#")
        options = oracle_of(name).configs(case["heads"][0], case["head_dim"], case["value_dim"])
        if options[int(index)] is None:
            return None
        chosen.append((name, options[int(index)]))
    return chosen


def fitted(case):
    """The case with sizes that its schemes take and that the dense oracle can hold."""
    case = dict(case)
    while configuration(case) is None:
        case["head_dim"] += 1
    heads = case["heads"][0]

    def elements():
        grid = case["batch"] * heads * case["queries"] * case["keys"]
        return grid * (1 + case["position"].count("+")) * (1 + case["head_dim"] + case["value_dim"])

    for shrink in ("batch", "head_dim", "value_dim", "keys"):
        while elements() > ELEMENTS and case[shrink] > 2:
            case[shrink] = case[shrink] // 2 if shrink != "keys" else case[shrink] - 1
            while configuration(case) is None:
                case["head_dim"] += 1
    return case


def pairs_of(case, names):
    return {((a, case[a]), (b, case[b])) for a, b in itertools.combinations(names, 2)}


def cover(levels, draw):
    """Greedy pairwise cover: (cases, pairs covered, pairs that no fitted case can hold)."""
    names = list(levels)
    open_pairs = sorted(
        {
            ((a, x), (b, y))
            for a, b in itertools.combinations(names, 2)
            for x in levels[a]
            for y in levels[b]
        },
        key=repr,
    )
    draw.shuffle(open_pairs)
    waiting = dict.fromkeys(open_pairs)
    cases, covered, impossible = [], 0, 0
    while waiting:
        (a, x), (b, y) = next(iter(waiting))
        best, gain = None, 0
        for _ in range(12):
            trial = {name: draw.choice(values) for name, values in levels.items()}
            trial |= {a: x, b: y}
            trial = fitted(trial)
            gained = sum(pair in waiting for pair in pairs_of(trial, names))
            if ((a, x), (b, y)) in pairs_of(trial, names) and gained > gain:
                best, gain = trial, gained
        if best is None:
            del waiting[((a, x), (b, y))]
            impossible += 1
            continue
        for pair in pairs_of(best, names):
            if pair in waiting:
                del waiting[pair]
                covered += 1
        cases.append(best)
    return cases, covered, impossible


@cache
def all_cases(targets):
    """(cases, note): the cover first, then random draws; the same list in every process."""
    draw = random.Random(SEED)
    levels = factors(targets)
    cases, covered, impossible = cover(levels, draw)
    note = f"{len(cases)} cases cover {covered} pairs, {impossible} pairs do not fit together"
    total = SWEEP if os.environ.get("RELPOS_FULL") == "1" else DRAWN
    while len(cases) < total:
        cases.append(fitted({name: draw.choice(values) for name, values in levels.items()}))
    for number, case in enumerate(cases):
        case["seed"] = SEED + number
    return cases, note
