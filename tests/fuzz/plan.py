"""Which cases the two runs visit."""

import itertools
import random
from functools import cache

from tests.fuzz.cover import Cover, drawn
from tests.fuzz.factors import ALL, FACTORS, QUICK
from tests.fuzz.rules import NEEDS, makes_sense, refusal

SEED = 20261125


@cache
def quick_cases():
    """(cases, note): a cover of the twelve most used factors, the others at random, on the target
    of this process."""
    most_used = {name: FACTORS[name] for name in QUICK}
    others = {name: values for name, values in FACTORS.items() if name not in QUICK}
    cover = Cover(most_used, makes_sense, refusal, SEED, NEEDS, others)
    cases = [case | {"seed": str(number)} for number, case in enumerate(cover.rows())]
    return cases, note_of(cover)


def note_of(cover):
    visited = cover.every - len(cover.misfits) - len(cover.refusals)
    return (
        f"{visited} pairs of values meet in a call, {len(cover.refusals)} are refused, "
        f"{len(cover.misfits)} are no call"
    )


def full_cases(seed):
    """(case, note) in turn: a cover of all factors, then random ones without end. The note is that
    of the cover so far, None once it is done."""
    cover = Cover(ALL, makes_sense, refusal, seed, NEEDS)
    number = itertools.count()
    for case in cover.rows():
        at = next(number)
        left = f"{cover.every - len(cover.left)} of {cover.every} pairs of values so far"
        yield case | {"seed": str(at)}, left if cover.left else note_of(cover)
    for at in number:
        draw = random.Random(f"fuzz {seed} {at}")
        yield drawn(ALL, makes_sense, draw) | {"seed": str(at)}, None
