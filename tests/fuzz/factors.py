"""The features of a call as factors with values, the plain value first, and cases of them.

A case is {factor: value}, with a seed for its numbers. As text it names what is not plain:
`position=t5 mask=float:b1qk seed=7`.
"""

import relpos

from tests.support.oracle import registry

TARGETS = tuple(sorted(relpos.show_config()["targets available"].split()))
SCHEMES = ("none", *sorted(registry()))
SHAPES = ("qk", "11qk", "b1qk", "bhqk", "1h1k", "b1q1")  # of masks, as they are broadcast
MASKS = (
    "none",
    *(f"{kind}:{shape}" for kind in ("bool", "float") for shape in SHAPES),
    "least:qk",  # finfo.min here and there
    "tile:11qk",
    "tile:bhqk",
)
FACTORS = {
    "position": SCHEMES,
    "route": ("call", "varlen", "cache", "chunks", "vmap", "autocast", "checkpoint", "rows"),
    "dtype": ("float32", "float64", "bfloat16", "float16"),
    "heads": ("2/2", "4/2", "3/1", "1/1"),
    "lengths": ("13x13", "5x17", "1x21", "20x7", "70x70", "33x140", "4x0"),
    "place": ("aligned", "none", "zero", "both", "rows", "positions", "row-positions", "far"),
    "causal": ("no", "yes"),
    "window": ("none", "3,-1", "-1,2", "4,4", "0,0"),
    "padding": ("none", "some", "tail", "row"),
    "mask": MASKS,
    "softcap": ("none", "2.5"),
    "lse": ("none", "returned", "gradient", "alone"),  # alone: out has no gradient
    "sinks": ("none", "heads", "rows"),
    "dropout": ("0", "0.3"),
    "range": ("none", "shared", "rows"),
    "beside": SCHEMES,
    "options": tuple(str(n) for n in range(9)),  # which configuration of the schemes
    "tables": ("own", "float32"),
    "strides": ("plain", "blhd", "sliced", "stepped", "expanded", "mixed"),
    "dims": ("16x16", "8x5", "64x64", "33x40", "2x1"),
    "batch": ("2", "1", "3"),
    "scale": ("none", "0.37", "-0.6"),
    "products": ("own", "float32"),
    "wants": ("all", "q", "k", "v", "tables", "mask", "nothing"),
    "also": ("none", "weights", "scores"),
    "hidden": ("numbers", "nan"),  # what padded keys and values hold
    "threads": ("1", "3"),
    "target": ("here",),  # that of the process
}
PLAIN = {name: values[0] for name, values in FACTORS.items()}
QUICK = tuple(FACTORS)[:12]  # the most used
RANKED = ("ring", "ulysses")  # routes on processes of their own
ALL = FACTORS | {"route": (*FACTORS["route"], *RANKED), "target": ("here", *TARGETS)}


def plain_case(**chosen):
    return PLAIN | chosen


def text_of(case):
    """What is not plain, and the seed."""
    named = [f"{n}={v}" for n, v in case.items() if v != PLAIN.get(n)]
    return " ".join(named)


def case_of(text):
    """The inverse of text_of."""
    case = dict(PLAIN)
    for item in text.split():
        name, _, value = item.partition("=")
        if name != "seed" and value not in ALL.get(name, ()):
            known = ALL.get(name, [*ALL, "seed"])
            raise ValueError(f"{item}: expected one of {', '.join(known)}")
        case[name] = value
    return case
