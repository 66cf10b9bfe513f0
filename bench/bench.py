"""relpos against PyTorch in one process, turn by turn: float32, B 1, H 8, D 64.

make bench, or: .venv/bin/python bench/bench.py [--lengths 1024 2048] [--rounds 7] [--case TEXT]

First every case is proved at a small length: the error of relpos against the same formula in
float64 is at most 2 times (gradients: 3 times) that of PyTorch's float32, plus 1e-6 of the largest
value. Then both sides take turns. Prints a Markdown table with every row, won or lost, and writes
build/bench.json.

A trained bias reaches PyTorch as attn_mask: built beforehand and not timed in the forward pass,
gathered from its table in forward + backward, where its gradient is wanted.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import relpos
import torch
from torch.nn import functional

HEADS, HEAD_DIM = 8, 64
PROOF_LENGTH = 389  # no multiple of a tile or of a vector
CLIP = 64
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Case:
    """One call on both sides. `theirs` takes what `prepare` made; None: it prepares by itself."""

    leaves: list[torch.Tensor]
    ours: Callable[[], torch.Tensor]
    theirs: Callable[[object], torch.Tensor]
    prepare: Callable[[], object] = field(default=lambda: None)


def inputs(length, dtype):
    return [
        torch.randn(1, HEADS, length, HEAD_DIM, dtype=dtype, requires_grad=True) for _ in range(3)
    ]


def plain(length, dtype, is_causal=False):
    qkv = inputs(length, dtype)
    return Case(
        qkv,
        lambda: relpos.attention(*qkv, is_causal=is_causal),
        lambda _: functional.scaled_dot_product_attention(*qkv, is_causal=is_causal),
    )


def causal(length, dtype):
    return plain(length, dtype, is_causal=True)


def trained_bias(length, dtype):
    qkv = inputs(length, dtype)
    position = relpos.T5Bias(HEADS).to(dtype)
    weight = position.relative_attention_bias.weight
    classes = position.indices(length, length)

    def bias():
        return weight.T[:, classes][None]

    return Case(
        [*qkv, weight],
        lambda: relpos.attention(*qkv, position=position),
        lambda mask: functional.scaled_dot_product_attention(
            *qkv, attn_mask=bias() if mask is None else mask
        ),
        bias,
    )


def shaw(length, dtype):
    """The fourth notebook's first formula, every head at once: a row for each pair."""
    q, k, v = qkv = inputs(length, dtype)
    position = relpos.Shaw(CLIP, HEAD_DIM, values=False).to(dtype)
    classes = position.indices(length, length)

    def theirs(_):
        rows = position.key_table[classes]  # [L, L, D]
        by_query = q[0].transpose(0, 1)  # [L, H, D]
        relative = torch.matmul(by_query, rows.transpose(1, 2)).transpose(0, 1)
        scores = (torch.matmul(q, k.mT) + relative[None]) / math.sqrt(HEAD_DIM)
        return torch.matmul(torch.softmax(scores, dim=-1), v)

    return Case(
        [*qkv, position.key_table], lambda: relpos.attention(*qkv, position=position), theirs
    )


def music_transformer(length, dtype):
    """The fourth notebook's second formula, with the causal mask that it leaves out."""
    q, k, v = qkv = inputs(length, dtype)
    position = relpos.MusicTransformer(length, HEAD_DIM).to(dtype)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def theirs(_):
        padded = functional.pad(torch.matmul(q, position.Er.T), (1, 0))
        relative = padded.view(1, HEADS, length + 1, length)[:, :, 1:]
        scores = (torch.matmul(q, k.mT) + relative) / math.sqrt(HEAD_DIM)
        return torch.matmul(torch.softmax(scores.masked_fill(future, -math.inf), dim=-1), v)

    return Case(
        [*qkv, position.Er],
        lambda: relpos.attention(*qkv, position=position, is_causal=True),
        theirs,
    )


# name, builder, longest length that the other side's memory allows
CASES = [
    ("plain, SDPA", plain, None),
    ("causal, SDPA", causal, None),
    ("T5 bias trained, SDPA + mask", trained_bias, None),
    ("Shaw keys, notebook", shaw, 2048),
    ("Music Transformer, notebook", music_transformer, 2048),
]


def step(case, call, dout):
    out = call()
    return [out, *torch.autograd.grad(out, case.leaves, dout)]


def prove(name, build):
    """Stops the run where relpos and the formula differ by more than float32 explains."""
    torch.manual_seed(0)
    single = build(PROOF_LENGTH, torch.float32)
    double = build(PROOF_LENGTH, torch.float64)
    with torch.no_grad():
        for wide, narrow in zip(double.leaves, single.leaves, strict=True):
            wide.copy_(narrow)
    dout = torch.randn(single.leaves[0].shape)
    exact = step(double, lambda: double.theirs(None), dout.double())
    peer = step(single, lambda: single.theirs(None), dout)
    mine = step(single, single.ours, dout)
    for n, (want, got, other) in enumerate(zip(exact, mine, peer, strict=True)):
        error, allowed = (got - want).abs().max(), (other - want).abs().max()
        bound = (2 if n == 0 else 3) * allowed + 1e-6 * want.abs().max()
        if not error <= bound:
            sys.exit(f"{name}: result {n} is off by {error:.3g}, allowed {bound:.3g}: not timed")


def timed(call):
    start = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - start), result


def measure(case, dout, backward, rounds):
    """Milliseconds of both sides, turn by turn, and their largest relative difference."""
    if backward:
        sides = [
            lambda: step(case, case.ours, dout),
            lambda: step(case, lambda: case.theirs(None), dout),
        ]
        grad = torch.enable_grad()
    else:
        with torch.no_grad():
            prepared = case.prepare()
        sides = [lambda: [case.ours()], lambda: [case.theirs(prepared)]]
        grad = torch.no_grad()
    times = ([], [])
    with grad:
        results = [[t.detach() for t in side()] for side in sides]  # warm up
        difference = max(
            float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True)
        )
        del results
        for turn in range(rounds):
            for n in (0, 1) if turn % 2 == 0 else (1, 0):
                times[n].append(timed(sides[n])[0])
    return times, difference


def summary(times):
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"median": middle, "quartiles": [low, high], "rounds": len(times)}


def shown(part):
    low, high = part["quartiles"]
    digits = 1 if part["median"] < 100 else 0
    return f"{part['median']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{f"relpos {key}": value for key, value in relpos.show_config().items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side [7]")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args()
    cases = [c for c in CASES if options.case.lower() in c[0].lower()]
    if not cases or options.rounds < 2:
        parser.error("no such case" if not cases else "--rounds: expected at least 2")
    for name, build, _ in cases:
        prove(name, build)
        print(f"proved: {name}", file=sys.stderr)

    info = machine()
    about = f"{info['cpu']}, {info['threads']} threads, torch {info['torch']}"
    print(f"{about}, relpos {info['relpos version']} on {info['relpos target']}\n")
    print("| case | L | pass | relpos ms (quartiles) | torch ms (quartiles) | torch / relpos |")
    print("|---|---|---|---|---|---|")
    rows = []
    for name, build, longest in cases:
        for length in options.lengths:
            if longest is not None and length > longest:
                continue
            torch.manual_seed(0)
            case = build(length, torch.float32)
            dout = torch.randn(case.leaves[0].shape)
            for backward in (False, True):
                (ours, theirs), difference = measure(case, dout, backward, options.rounds)
                row = {
                    "case": name,
                    "length": length,
                    "pass": "forward + backward" if backward else "forward",
                    "relpos": summary(ours),
                    "torch": summary(theirs),
                    "difference": difference,
                }
                row["ratio"] = row["torch"]["median"] / row["relpos"]["median"]
                rows.append(row)
                cells = [name, length, row["pass"], shown(row["relpos"]), shown(row["torch"])]
                print("| " + " | ".join(map(str, cells)) + f" | {row['ratio']:.2f} |", flush=True)
            del case
    worst = max(row["difference"] for row in rows)
    lost = sum(row["ratio"] < 1 for row in rows)
    print(f"\nLargest difference of the two sides: {worst:.1e} of the largest value. Lost: {lost}.")
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"machine": info, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
