"""What one process promises of a case of relpos.distributed (docs/accuracy.md), and computes."""

from dataclasses import dataclass

import torch

from tests.support.call import Call
from tests.support.oracle import allowed_pairs, place_of, positions
from tests.support.promise import promised, ratio
from tests.support.ring_case import HEAD_DIM, SEED, Case


class Whole(Call):
    """A case as `promised` takes a call."""

    def __init__(self, case, dtype):
        case.cast(dtype)
        options = case.options
        self.dtype, self.added = dtype, None
        self.inputs, self.dout, self.dlse = [case.q, case.k, case.v], case.dout, case.dlse
        self.case = {
            "heads": (case.q.shape[1], case.k.shape[1]),
            "dropout": options.get("dropout_p", 0.0),
            "softcap": options.get("softcap"),
            "seed": SEED,
        }
        self.scale = options.get("scale") or HEAD_DIM**-0.5
        self.chosen, self.modules = case.chosen, case.modules
        self.given = case.inputs
        for given in case.inputs:
            for x in given.values():
                x.requires_grad_(x.is_floating_point())
        self.place(case)

    def place(self, case):
        """Positions of queries and keys, and which pairs see each other."""
        at, bounds = (
            {name: case.options[name] for name in names if name in case.options}
            for names in (
                ("q_offset", "k_offset", "q_positions", "k_positions"),
                ("is_causal", "window", "key_range"),
            )
        )
        batch, heads, queries, _ = case.q.shape
        place = place_of(self.chosen)
        self.pos_q, self.pos_k = positions(batch, queries, case.k.shape[2], **at, place=place)
        bounds |= {"heads": heads, "key_padding_mask": case.padding}
        self.allowed = allowed_pairs(self.pos_q, self.pos_k, **bounds)


@dataclass
class Expected:
    """By the names of the results of a case: the promise, and the results of one process."""

    promise: dict
    alone: dict


KNOWN = {}


def expected(dtype, **case):
    """Of one process: the same however many ranks share the case."""
    apart = ("layout", "mode", "function", "lengths", "reduce_position")
    case = {name: x for name, x in case.items() if name not in apart}
    key = dtype, repr(sorted(case.items()))
    if key not in KNOWN:
        KNOWN[key] = _expected(dtype, case)
    return KNOWN[key]


def _expected(dtype, arguments):
    case = Case(**arguments)
    whole = Whole(case, dtype)
    found = promised(whole, whole.kept())[0]
    names = {"out": "out", "lse": "lse"}
    names |= {f"d{n}": f"gradient of {n}" for n in "qkv"}
    parameters, inputs = 0, 0
    for index, (module, given) in enumerate(zip(whole.modules, whole.given, strict=True)):
        for name, _ in module.named_parameters():
            names[f"dparameter{parameters}"] = f"gradient of part {index} {name}"
            parameters += 1
        for name, x in given.items():
            if x.is_floating_point():
                names[f"dinput{inputs}"] = f"gradient of part {index} {name}"
                inputs += 1
    return Expected(
        {name: found[theirs] for name, theirs in names.items()},
        Case(**arguments).whole(dtype),
    )


def shares_of_bounds(found, wanted):
    """{result: the largest |error| / bound of one process}."""
    return {name: ratio(found[name], promise) for name, promise in wanted.promise.items()}


FEWEST = 10  # numbers that make up an error: of fewer, chance decides how large it is


def times_alone(found, wanted):
    """{result: its error in errors of one process}, in root mean squares, where more than a few
    numbers make up the latter. They count as at least half a unit in the last place of the result:
    by chance they are less."""
    compared = {}
    for name, promise in wanted.promise.items():
        seen = promise.exact.isfinite()
        error, alone = (
            (x.double() - promise.exact)[seen] for x in (found[name], wanted.alone[name])
        )
        if 0 < contributing(alone) < FEWEST:
            continue
        units = promise.exact[seen] * torch.finfo(found[name].dtype).eps / 2
        compared[name] = rms(error) / (max(rms(alone), rms(units)) or 1e-30)
    return compared


def contributing(x):
    """How many numbers make up the mean square of x: all where they are alike, 1 where one is far
    larger than the others."""
    squares = x.double().square()
    return float(squares.sum().square() / squares.square().sum()) if squares.any() else 0.0


def rms(x):
    return float(x.double().square().mean().sqrt()) if x.numel() else 0.0
