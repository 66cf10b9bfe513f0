"""Cases that visit every pair of values of different factors, greedily: a covering array."""

import itertools
import random

TRIES = 60  # random surroundings of a pair that does not fit among plain values


class Cover:
    """Cases of `factors` {name: values, the plain one first} such that every two values of
    different ones meet that `fits` together with something. `fits(case)` is asked of whole cases.
    Each case of `rows()` also has a value of every factor of `others`, at random."""

    def __init__(self, factors, fits, seed, others=None):
        self.factors, self.fits, self.others = factors, fits, others or {}
        self.draw = random.Random(seed)
        every = {**factors, **self.others}
        self.plain = {name: values[0] for name, values in every.items()}
        self.left = {
            frozenset(((a, x), (b, y)))
            for a, b in itertools.combinations(factors, 2)
            for x, y in itertools.product(factors[a], factors[b])
        }
        self.every, self.misfits = len(self.left), []

    def rows(self):
        """Each case of the cover in turn."""
        order = sorted(self.left, key=sorted)
        self.draw.shuffle(order)
        for pair in order:
            if pair in self.left:
                case = self.around(dict(pair))
                if case is None:
                    self.left.discard(pair)
                    self.misfits.append(dict(pair))
                    continue
                self.left -= {frozenset(two) for two in itertools.combinations(case.items(), 2)}
                yield case

    def around(self, fixed):
        """A case with these values that brings many pairs that are left; None where none fits."""
        case = self.start(fixed)
        if case is None:
            return None
        free = [name for name in self.factors if name not in fixed]
        self.draw.shuffle(free)
        done = dict(fixed)
        for name in free:
            values = list(self.factors[name])
            self.draw.shuffle(values)
            values.sort(key=lambda value, name=name: -self.gain(done, (name, value)))
            for value in values:
                changed = case | {name: value}
                if self.fits(changed):
                    case = changed
                    break
            done[name] = case[name]
        for name in self.draw.sample(list(self.others), len(self.others)):
            if name not in fixed:
                changed = case | {name: self.draw.choice(self.others[name])}
                case = changed if self.fits(changed) else case
        return case

    def start(self, fixed):
        """Plain values around, or random ones where they do not fit."""
        case = self.plain | fixed
        for _ in range(TRIES):
            if self.fits(case):
                return case
            names = self.draw.sample(list(self.plain), 4)
            every = {**self.factors, **self.others}
            case = self.plain | {n: self.draw.choice(every[n]) for n in names} | fixed
        return None

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
