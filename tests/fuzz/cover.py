"""Cases that visit every pair of values of different factors, greedily: a covering array."""

import itertools
import random

TRIES = 100  # random surroundings of a pair that does not fit among plain values


class Cover:
    """Cases of `factors` {name: values, the plain one first} in which every two values of
    different factors meet that can.

    `holds(case)` says whether a whole case is a call, and `refused(case)` whether that is refused.
    A pair counts as visited by a case that is not refused, and where each is, by one of them, which
    is plain otherwise. `needs` {(factor, value): {factor: value}} are surroundings that a value
    asks for. A case also has a value of every factor of `others`, at random.
    """

    def __init__(self, factors, holds, refused, seed, needs=None, others=None):
        self.factors, self.others, self.needs = factors, others or {}, needs or {}
        self.holds, self.refused = holds, refused
        self.draw = random.Random(seed)
        self.all = {**factors, **self.others}
        self.plain = {name: values[0] for name, values in self.all.items()}
        self.left = {
            frozenset(((a, x), (b, y)))
            for a, b in itertools.combinations(factors, 2)
            for x, y in itertools.product(factors[a], factors[b])
        }
        self.every, self.refusals, self.misfits = len(self.left), [], []

    def passes(self, case):
        return self.holds(case) and not self.refused(case)

    def rows(self):
        """Each case of the cover in turn."""
        order = sorted(self.left, key=sorted)
        self.draw.shuffle(order)
        for pair in order:
            if pair not in self.left:
                continue
            start = self.start(dict(pair), self.passes)
            if start is not None:
                case = self.filled(start, dict(pair))
                self.left -= {frozenset(two) for two in itertools.combinations(case.items(), 2)}
                yield case
                continue
            self.left.discard(pair)
            start = self.start(dict(pair), self.holds)
            (self.misfits if start is None else self.refusals).append(dict(pair))
            if start is not None:
                yield start

    def start(self, fixed, fits):
        """Plain values around, or random ones where they do not fit; None where none was found."""
        asked = {}
        for item in fixed.items():
            asked |= self.needs.get(item, {})
        case = self.plain | asked | fixed
        for _ in range(TRIES):
            if fits(case):
                return case
            names = self.draw.sample(list(self.plain), min(4, len(self.plain)))
            case = self.plain | asked | {n: self.draw.choice(self.all[n]) for n in names} | fixed
        return None

    def filled(self, case, fixed):
        """The case with values that bring many pairs that are left."""
        done = dict(fixed)
        free = [name for name in self.factors if name not in fixed]
        for name in self.draw.sample(free, len(free)):
            values = self.draw.sample(self.factors[name], len(self.factors[name]))
            gains = {value: self.gain(done, (name, value)) for value in values}
            values.sort(key=lambda value, gains=gains: -gains[value])
            for value in values:
                changed = case | self.needs.get((name, value), {}) | done | {name: value}
                if self.passes(changed):
                    case = changed
                    break
            done[name] = case[name]
        for name in self.draw.sample(list(self.others), len(self.others)):
            changed = case | {name: self.draw.choice(self.others[name])}
            case = changed if self.passes(changed) else case
        return case

    def gain(self, done, item):
        return sum(frozenset((item, other)) in self.left for other in done.items())


def drawn(factors, fits, draw):
    """A random case: each factor is plain half of the time, so that two or three meet often."""
    case = {name: values[0] for name, values in factors.items()}
    for name in draw.sample(list(factors), len(factors)):
        if draw.random() < 0.5:
            changed = case | {name: draw.choice(factors[name])}
            case = changed if fits(changed) else case
    return case
