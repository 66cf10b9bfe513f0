"""What one process promises of a case of relpos.distributed (docs/accuracy.md), and computes."""

import functools
from dataclasses import dataclass

import torch
from call import Call
from oracle import allowed_pairs, place_of, positions
from promise import promised, ratio
from ring_case import HEAD_DIM, SEED, Case


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
        self.given = [
            dict(zip(names, given, strict=True))
            for names, given in zip(case.input_names, case.inputs, strict=True)
        ]
        for given in case.inputs:
            for x in given:
                x.requires_grad_(x.is_floating_point())
        self.place(case)

    def place(self, case):
        """Positions of queries and keys, and which pairs see each other."""
        options, batch = case.options, case.q.shape[0]
        lengths = case.q.shape[2], case.k.shape[2]
        bounds = {n: options[n] for n in ("is_causal", "window") if n in options}
        at = {"q_offset": options.get("q_offset", 0), "k_offset": options.get("k_offset", 0)}
        key_range = case.key_range
        if "cu_seqlens" in options:
            at, key_range = restarted(options, *lengths)
        elif case.positions is not None:
            at = dict(zip(("q_positions", "k_positions"), case.positions, strict=True))
        self.pos_q, self.pos_k = positions(batch, *lengths, **at, place=place_of(self.chosen))
        self.allowed = allowed_pairs(
            self.pos_q,
            self.pos_k,
            heads=case.q.shape[1],
            key_padding_mask=case.padding,
            key_range=key_range,
            **bounds,
        )


def restarted(options, queries, keys):
    """(positions, key range) of packed sequences, each of which starts at 0, or its queries at the
    offset of its own."""
    starts_q = options["cu_seqlens"]
    starts_k = options.get("cu_seqlens_k", starts_q)
    own_q, own_k = (
        torch.bucketize(torch.arange(n), starts[1:], right=True)
        for n, starts in ((queries, starts_q), (keys, starts_k))
    )
    offset = options.get("q_offset", torch.zeros(len(starts_q) - 1, dtype=torch.int64))
    at = {
        "q_positions": torch.arange(queries) - starts_q[own_q] + offset[own_q],
        "k_positions": torch.arange(keys) - starts_k[own_k],
    }
    return at, (starts_k[own_q], starts_k[own_q + 1])


@dataclass
class Expected:
    """By the names of the results of a case: the promise, and the results of one process."""

    promise: dict
    alone: dict


def expected(dtype, **case):
    """Of one process: the same however many ranks share the case."""
    apart = ("layout", "mode", "function", "lengths", "reduce_position")
    return _expected(dtype, _Arguments({n: x for n, x in case.items() if n not in apart}))


class _Arguments:
    """Arguments of a case, equal where their texts are."""

    def __init__(self, case):
        self.case, self.text = case, repr(sorted(case.items()))

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return self.text == other.text


@functools.lru_cache(maxsize=1024)
def _expected(dtype, arguments):
    case = Case(**arguments.case)
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
        Case(**arguments.case).whole(dtype),
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
