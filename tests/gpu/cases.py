"""Calls for the tests of this folder, and what judges them."""

import random

import relpos
import torch
from relpos._call.call import Call as Fields
from relpos.gpu.mode import INTERPRETS
from torch.utils._pytree import tree_map_only

from tests import FULL
from tests.gpu.bounds import bounds
from tests.support.call import Call, laid_out
from tests.support.cases import configuration
from tests.support.oracle import oracle_of
from tests.support.promise import missed

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETS else "cpu"
SEED = 20261125
TIMES = 5 if FULL else 1  # as many cases
DRAWN = 40 * TIMES
POSITIONS = ["", *(f"t5#{n}" for n in range(9)), *(f"bias_rpe#{n}" for n in range(7))]
POSITIONS += ["t5#0+bias_rpe#2", "attention_sink#0", "attention_sink#1", "t5#1+attention_sink#1"]
GRIDS = ["swin#0", "swin#1", "swin#4", "beit#0", "levit#0", "swin#1+t5#3"]
FACTORS = {
    "position": POSITIONS + GRIDS,
    "queries": [1, 5, 16, 33, 64, 65, 97],
    "keys": [1, 5, 16, 33, 64, 65, 97],
    "heads": [(1, 1), (2, 2), (4, 2), (3, 1)],
    "head_dim": [1, 8, 16, 33, 64, 128, 200],
    "value_dim": [1, 8, 16, 33, 64, 128, 256],
    "batch": [1, 2],
    "mask": [
        *("", "causal", "window", "causal+window", "range", "padding", "bool", "float"),
        *("causal+range", "window+padding", "causal+bool", "padding+range+float", "window+float"),
    ],
    "offsets": [
        *("default", "aligned", "zero", "both", "ragged"),
        *("consecutive", "explicit", "scattered"),
    ],
    "dtype": ["float32", "bfloat16", "float16"],
    "tables": ["own", "float32"],
    "strides": ["plain", "blhd", "sliced", "stepped", "expanded"],
    "scale": [None, 1.0, 0.37],
    "lse": [False, True],
    "wants": ["all", "inputs", "tables", "key"],
    "dropout": [0.0, 0.0, 0.3],
    "softcap": [None, None, 1.5],
}
OF_GRIDS = {
    "mask": ["", "range", "padding", "bool", "float", "padding+range"],
    "offsets": ["zero", "both", "ragged"],
}
# Sizes for cases of one kind of term; test_kernels.py draws from all of FACTORS.
SMALL = {
    "queries": [1, 16, 33, 65],
    "keys": [5, 33, 64, 65],
    "heads": [(1, 1), (4, 2), (3, 1), (2, 2)],
    "head_dim": [4, 16, 34],
    "value_dim": [8, 16],
    "scale": [None, 0.37],
    "wants": ["all", "all", "tables", "key"],
}
PLAIN = {name: values[0] for name, values in FACTORS.items()}
PLAIN |= {"position": "t5#0", "queries": 65, "keys": 97, "heads": (4, 2), "head_dim": 16}
PLAIN |= {
    "value_dim": 33,
    "batch": 1,
    "mask": "causal",
    "offsets": "aligned",
    "lse": True,
    "seed": 1,
}


def drawn(count=DRAWN, **others):
    """Cases in which each value of each factor stands as often as others; `others`: values of a
    factor in place of those above."""
    draw, factors = random.Random(SEED), FACTORS | others
    decks = {name: [] for name in factors}
    for number in range(count):
        case = {"seed": SEED + number}
        for name, deck in decks.items():
            if not deck:
                deck += draw.sample(factors[name], len(factors[name]))
            case[name] = deck.pop()
        # Scores of a standard deviation above 4 differ by more than the bound of a row that one key
        # has when backward_keys computes them anew: docs/gpu.md.
        if case["scale"] is not None and case["scale"] * case["head_dim"] ** 0.5 > 4:
            case["scale"] = None
        names = [part.split("#")[0] for part in filter(None, case["position"].split("+"))]
        if any(hasattr(oracle_of(name), "place") for name in names):  # in no order of a line
            for name, values in OF_GRIDS.items():
                case[name] = random.Random(number).choice(values)
        while configuration(case) is None:
            case["head_dim"] += 1
        yield case


def drawn_of(positions, **others):
    """Small cases, TIMES of each position."""
    return list(drawn(len(positions) * TIMES, position=positions, **SMALL | others))


def moved(named):
    """{name: the same on DEVICE}."""
    return {name: tree_map_only(torch.Tensor, to_device, x) for name, x in named.items()}


def to_device(x):
    return x.to(DEVICE)


class Here(Call):
    """A call on DEVICE whose pattern of dropout is that of the CPU. Its tensors are the CPU's."""

    def computed(self):
        kind = self.case["strides"]
        inputs = [to_device(x) for x in self.inputs]
        if DEVICE != "cpu" and kind != "expanded":  # copies have plain strides
            inputs = [laid_out(x, kind) for x in inputs]
        keywords = moved(self.keywords())
        torch.manual_seed(self.case["seed"])
        found = relpos.attention(
            *inputs, **keywords, dropout_p=self.case["dropout"], return_lse=True
        )
        found = self.results(*(x.cpu() for x in found))
        for module in self.modules:
            module.cpu()
        return {name: x if x is None else x.cpu() for name, x in found.items()}

    def position(self):
        for module in self.modules:
            module.to(DEVICE)
        held, self.given = self.given, [moved(given) for given in self.given]
        try:
            return super().position()
        finally:
            self.given = held

    def kept(self):
        if self.case["dropout"] == 0:
            return None
        batch, heads, queries, keys = self.allowed.shape
        q, k, v = (torch.zeros(batch, heads, length, 1) for length in (queries, keys, keys))
        torch.manual_seed(self.case["seed"])
        call = Fields.of("attention", q, k, {"dropout_p": self.case["dropout"]})
        softmax, weights = torch.empty(*q.shape[:3], 2), torch.empty(*q.shape[:3], keys)
        relpos._core.attention(q, k, v, call, q.clone(), None, softmax)
        relpos._core.attention_weights(q, k, softmax, call, weights)
        return weights != 0


def judged(case):
    """What breaks the promise."""
    call = Here(case)
    results, expected = call.computed(), bounds(call, call.kept())
    assert results.keys() == expected.keys()
    return [line for name, each in expected.items() if (line := missed(name, results[name], each))]


def number_of(case):
    """What a drawn case is shown as."""
    return str(case["seed"] - SEED)


def assert_the_same_bits_twice(case):
    """The results, by name."""
    first, second = (Here(case).computed() for _ in range(2))
    for name, result in first.items():
        assert torch.equal(result, second[name]), name
    return first


def on_the_cpu(q, k, v, dout, **options):
    """out and the gradients of query, key and value by the kernels of the CPU."""
    call = Fields.of("attention", q, k, options)
    out, softmax = torch.empty_like(dout), torch.empty(*dout.shape[:3], 2)
    relpos._core.attention(q, k, v, call, out, None, softmax)
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    given = (q, k, v, out, softmax, dout, None)
    wanted = [*gradients, None, *(None for _ in call.parameters)]
    relpos._core.attention_backward(given, call, wanted)
    return [out, *gradients]
