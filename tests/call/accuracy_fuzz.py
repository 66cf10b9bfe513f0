"""Random calls against the promise about errors, on every SIMD target, and plain torch beside them.

.venv/bin/python -m tests.call.accuracy_fuzz --calls 1000 --target all --seed 1

One process a target computes with relpos, this one with the oracle; both draw a call from its seed.
Prints the largest |error| / bound of each result, and each miss with its seed. What a unit for
bfloat16 computes is judged by its own promise (`unit_promise.py`), and shown as a share of that.
"""

import argparse
import json
import random
import sys
from collections import defaultdict

import relpos
import torch

from tests.support.call import Call, laid_out
from tests.support.oracle import configs_of, exclusive, oracle_of, registry
from tests.support.promise import SENTENCE, missed, promised, ratio
from tests.support.target_server import Server, serve
from tests.support.unit_promise import Kept, applies, decided, reference

TARGETS = tuple(sorted(relpos.show_config()["targets available"].split()))
PLAIN_EVERY = 8  # plain torch computes one call in so many
SIZES = {  # queries, keys
    "small": ((1, 40), (1, 40)),
    "middle": ((41, 200), (41, 200)),
    "long": ((200, 700), (200, 700)),
    "decode": ((1, 16), (1, 700)),
    "wide": ((1, 130), (200, 700)),
}
PAIRS, NUMBERS = 300_000, 2_000_000  # elements of the largest dense arrays of the oracle
MASKS = ["", "", "causal", "causal", "window", "padding", "causal+padding", "range", "bool"]
MASKS += ["float", "least", "causal+window", "causal+least", "range+float"]


def drawn_case(seed):
    """Sizes, types and kinds of one call, as plain values."""
    draw = random.Random(f"accuracy {seed}")
    case = {"seed": seed, "heads": draw.choice([(1, 1), (2, 2), (4, 2), (6, 2), (3, 1)])}
    case["head_dim"] = draw.choice([1, 2, 3, 8, 15, 16, 33, 64, 64, 65, 80, 128, 130])
    case["value_dim"] = draw.choice([case["head_dim"], draw.choice([1, 5, 16, 33, 64, 96, 128])])
    case["parts"] = parts = drawn_parts(draw, case)
    case["batch"] = draw.choice([1, 1, 2])
    case["kind"] = draw.choices(list(SIZES), [3, 3, 2, 2, 1])[0]
    case["queries"], case["keys"] = (draw.randint(*ends) for ends in SIZES[case["kind"]])
    if draw.random() < 0.4 and case["kind"] != "decode":
        case["keys"] = case["queries"]
    rows = any("head_dim" in options and not exclusive(name) for name, options in parts)
    width = (case["head_dim"] + case["value_dim"]) * len(parts) if rows else 1
    while True:
        pairs = case["queries"] * case["keys"] * case["heads"][0] * case["batch"]
        if pairs <= PAIRS and pairs * width <= NUMBERS:
            break
        case["batch"], case["queries"] = 1, max(1, case["queries"] * 2 // 3)
        case["keys"] = max(1, case["keys"] * 4 // 5)
    kinds = ["float32", "bfloat16", "float16", "float64"]
    case["dtype"] = draw.choices(kinds, [11, 4, 3, 2])[0]
    case["tables"] = draw.choice(["own", "float32"])
    case["mask"] = draw.choice(MASKS)
    offsets = ["aligned", "zero", "far", "far both", "scattered", "far keys"]
    spans = any(hasattr(oracle_of(name), "SPANS") for name, _ in parts)
    near = any(hasattr(oracle_of(name), "NEAR") for name, _ in parts)
    case["offsets"] = draw.choice(offsets[: 5 if spans else 6])
    if near and "far" in case["offsets"]:
        case["offsets"] = "scattered"
    case["numbers"] = draw.choice(["normal", "normal", "normal", "constant", "uniform", "one key"])
    case["deviation"] = draw.choice([1, 1, 1, 100, 1e3, 1e4])
    scales = [1.0, 1e-2, 100.0] if case["dtype"] == "float16" else [1.0, 1.0, 1e-6, 1e3, 1e30]
    case["values"] = draw.choice(scales)
    case["table size"] = draw.choice([0.7, 0.7, 20.0])
    if any(hasattr(oracle_of(name), "EXPONENTS") for name, _ in parts):
        case["table size"] = 0.7
    case["strides"] = draw.choice(["plain", "blhd", "sliced", "stepped", "expanded"])
    case["scale"] = draw.choice([None, None, 0.37, 1.0])
    unknown = any(hasattr(oracle_of(name), "UP_TO_QUERY") for name, _ in parts)
    case["softcap"] = None if unknown else draw.choice([None, None, None, 3.0, 50.0])
    case["lse"] = draw.random() < 0.3
    case["dropout"] = 0.1 if draw.random() < 0.1 else 0.0
    case["wants"] = "all"
    return case


def drawn_parts(draw, case):
    """[(scheme, options)] of a sum of up to 3."""
    heads, key_heads = case["heads"]
    sizes = heads, case["head_dim"], case["value_dim"], key_heads
    parts = []
    for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3])):
        name = draw.choice(sorted(registry()))
        taken = {kind for n, _ in parts for kind in exclusive(n)}
        options = draw.choice(configs_of(name, *sizes))
        if options is not None and not taken & exclusive(name):
            parts.append((name, options))
    return parts


class DrawnCall(Call):
    """A call of drawn_case."""

    def drawn(self, draw, which, shape):
        case = self.case
        # Scores of the wanted deviation, whatever the scale and the number of dimensions are.
        spread = (case["deviation"] / (self.scale * case["head_dim"] ** 0.5)) ** 0.5
        times = (spread, spread, case["values"], 1.0)[which]
        x = (times * numbered(draw.normal(*shape), case["numbers"], which, draw)).to(self.dtype)
        return x if which == 3 else laid_out(x, case["strides"])

    def parts(self):
        return self.case["parts"]

    def bound(self, draw):
        self.places = self.drawn_places(draw)
        self.masks = self.drawn_masks(draw)

    def trains_mask(self, draw):
        return draw.plain.random() < 0.5

    def drawn_places(self, draw):
        case = self.case
        queries, keys = case["queries"], case["keys"]
        far = int(10 ** draw.plain.uniform(3, 6))
        kind = case["offsets"]
        if kind == "aligned":
            return {"q_offset": keys - queries}
        if kind == "zero":
            return {"q_offset": 0}
        if kind == "far":
            ahead = any(hasattr(oracle_of(name), "GROWS") for name, _ in self.chosen)
            return {"q_offset": far if ahead else draw.plain.choice([-far, far])}
        if kind == "far both":
            return {"q_offset": far, "k_offset": far + draw.plain.randint(-keys, queries)}
        k_positions = draw.integers(0, 2 * keys, keys).sort().values
        if kind == "far keys":  # some near, the others far behind
            k_positions[: keys // 2] -= far
        return {"q_positions": draw.integers(0, 2 * keys, queries), "k_positions": k_positions}

    def drawn_masks(self, draw):
        """As boundaries(), and "least": the type's least number here and there in a float mask."""
        case, chosen = self.case, {}
        queries, keys = case["queries"], case["keys"]
        named = case["mask"].split("+")
        if "causal" in named and case["offsets"] != "far":
            chosen["is_causal"] = True
        if "window" in named and case["offsets"] != "far":
            chosen["window"] = draw.plain.choice([(10, 10), (100, -1), (3, 40), (-1, 5)])
        if "padding" in named:
            chosen["key_padding_mask"] = draw.chance(0.3, case["batch"], keys)
        if "range" in named:
            low = draw.integers(0, max(1, keys // 2), queries)
            chosen["key_range"] = (low, (low + keys // 2 + 1).clamp(max=keys))
        shape = draw.plain.choice([(queries, keys), (case["batch"], 1, queries, keys), (1, keys)])
        seen, mask = draw.chance(0.8, *shape), draw.normal(*shape)
        if "bool" in named:
            chosen["attn_mask"] = seen
        if "float" in named:
            chosen["attn_mask"] = torch.where(seen, mask, -torch.inf).to(self.dtype)
        if "least" in named:
            least = torch.where(seen, mask * draw.plain.choice([0.0, 1.0]), -torch.inf)
            chosen["attn_mask"] = least.to(self.dtype).clamp(min=torch.finfo(self.dtype).min)
        return chosen


def numbered(x, kind, which, draw):
    """Normal numbers as another kind: all equal, all positive, or with one row far above."""
    if kind == "constant":
        return torch.full_like(x, 0.1 + abs(float(draw.normal(1))))
    if kind == "uniform":
        return x.abs().clamp(max=2.0)
    if kind == "one key" and which == 1:
        x[..., x.shape[-2] // 2, :] *= 100.0
    return x


def answered(line):
    """(results, what dropout keeps) of the call of a number."""
    return DrawnCall(drawn_case(int(line))).computed()[::2]


class Tally:
    """The worst ratio of each (result, dtype, who), and the misses."""

    def __init__(self):
        self.worst, self.calls, self.misses = defaultdict(float), 0, []
        self.missing = defaultdict(set)
        self.units = defaultdict(Kept)  # by target
        self.by_unit = defaultdict(int)  # calls

    def add(self, who, seed, dtype, found, promises):
        for name, promise in promises.items():
            at = ratio(found[name], promise)
            self.note(who, seed, dtype, name, at)
            if at > 1.0 and who in TARGETS:
                self.misses.append(f"{who}, seed {seed}: {missed(name, found[name], promise)}")

    def add_unit(self, who, seed, found, promises, theirs, alone):
        """A call in bfloat16 that a unit computed; `theirs` are the results of other code. `alone`:
        it is judged by itself."""
        self.by_unit[who] += 1
        for name, promise in promises.items():
            kind = kind_of(name)
            share = self.units[who].share(kind, name, found[name], theirs[name], promise, alone)
            self.note(who, seed, "bfloat16", name, share)
            if share > 1.0:
                self.misses.append(
                    f"{who}, seed {seed}: {name}: {share:.3g} times the error that it may have "
                    "beside PyTorch's in bfloat16"
                )

    def note(self, who, seed, dtype, name, at):
        key = kind_of(name), dtype, who
        self.worst[key] = max(self.worst[key], at)
        if at > 1.0:
            self.missing[who].add(seed)

    def close(self):
        """Judges what is judged for all calls together."""
        for who, kept in self.units.items():
            for kind, share in kept.together().items():
                key = kind, "bfloat16", who
                self.worst[key] = max(self.worst[key], share)
                if share > 1.0:
                    self.misses.append(
                        f"{who}: {kind} of calls judged together: {share:.3g} times the "
                        "error that it may have beside PyTorch's in bfloat16"
                    )

    def verdict(self):
        """What was found, in a sentence."""
        units = "".join(
            f"; the unit of {who} computed {count:,} of them in bfloat16, where errors may be a "
            "multiple of those of PyTorch's attention"
            for who, count in sorted(self.by_unit.items())
        )
        told = f"the promise of docs/accuracy.md in {self.calls:,} random calls on each target"
        if self.misses:
            return f"relpos broke {told} {len(self.misses)} times, as listed above{units}."
        return f"relpos kept {told}: no error was larger than promised{units}."


def kind_of(name):
    """out, lse, dq, dk, dv, or the gradient of a table, a slope or a mask."""
    if not name.startswith("gradient of "):
        return name
    leaf = name.removeprefix("gradient of ")
    if leaf in ("q", "k", "v"):
        return f"d{leaf}"
    if leaf == "attn_mask":
        return "mask"
    return "slopes" if "slopes" in leaf else "tables"


def judge(seed, servers, tally):
    """One call on every target, and of plain torch at times."""
    for server in servers.values():
        server.ask(seed)
    call = DrawnCall(drawn_case(seed))
    dtype, promises, theirs = call.case["dtype"], None, None
    for target, server in servers.items():
        answer = server.answer()
        if isinstance(answer, str):
            tally.misses.append(f"{target}, seed {seed}: {answer}")
            continue
        found, keep = answer
        if promises is None:
            promises, at = promised(call, keep)
        if applies(target, call.dtype):
            theirs = theirs or reference(call, keep)
            tally.add_unit(target, seed, found, promises, theirs, decided(call, at))
        else:
            tally.add(target, seed, dtype, found, promises)
    if promises is not None and seed % PLAIN_EVERY == 0 and dtype != "float64":
        tally.add("torch", seed, dtype, call.plain(keep), promises)
    tally.calls += 1


def fuzz(calls, targets, seed):
    """A Tally of `calls` calls from `seed` on."""
    tally, servers = Tally(), {t: Server(t, f"{__package__}.accuracy_fuzz") for t in targets}
    torch.set_num_threads(1)
    try:
        for number in range(seed, seed + calls):
            judge(number, servers, tally)
            if (number - seed + 1) % 500 == 0:
                print(f"{number - seed + 1} calls", file=sys.stderr, flush=True)
    finally:
        for server in servers.values():
            server.close()
    tally.close()
    return tally


def table(tally, targets):
    """The worst ratios as the table of docs/accuracy.md."""
    kinds = ["out", "lse", "dq", "dk", "dv", "tables", "slopes", "mask"]
    lines = ["| result | dtype | " + " | ".join(targets) + " | plain torch |"]
    lines.append("|---|---|" + "---|" * (len(targets) + 1))
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for kind in kinds:
            row = [tally.worst.get((kind, dtype, who)) for who in (*targets, "torch")]
            if any(value is not None for value in row):
                cells = " | ".join("" if value is None else f"{value:.2g}" for value in row)
                lines.append(f"| {kind} | {dtype} | {cells} |")
    return "\n".join(lines)


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--calls", type=int, default=1000)
    parse.add_argument("--target", default="all", choices=["all", *TARGETS])
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--json", action="store_true", help="what the tests read")
    parse.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parse.parse_args()
    if given.serve:
        return serve(answered)
    targets = TARGETS if given.target == "all" else (given.target,)
    tally = fuzz(given.calls, targets, given.seed)
    if given.json:
        print(json.dumps({"calls": tally.calls, "misses": tally.misses}))
        return 0
    print(SENTENCE)
    print(
        f"{tally.calls} calls from seed {given.seed}; the largest |error| / bound of each result:"
    )
    print(table(tally, targets))
    for who, seeds in sorted(tally.missing.items()):
        print(f"{who}: {len(seeds)} calls beyond the bound")
    for line in tally.misses:
        print(line)
    print(tally.verdict())
    return 1 if tally.misses else 0


if __name__ == "__main__":
    sys.exit(main())
