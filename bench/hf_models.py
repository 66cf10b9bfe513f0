"""Models of Hugging Face on eager, sdpa and relpos: time and peak memory.

    .venv/bin/python bench/hf_models.py [NAME ...] [--all] [--dtypes float32 bfloat16] [--rounds 5]

Without a name it measures the first entry of bench/hf_entries.py. First all ways are proved equal
on a small model, forward and backward. Then each runs in a process of its own: a forward pass
without gradients, a training step (forward, backward, AdamW), and generation with a cache where the
model generates. Times are medians of the rounds; CPU time, of all threads together, says something
on a busy machine, too. Memory is the peak of resident bytes above what was resident before.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

os.environ["HF_HUB_OFFLINE"] = "1"

import relpos
import torch
import transformers
from case import first_line, growth
from hf_entries import ENTRIES, Entry
from torch import Tensor, nn

NEW_TOKENS = 32
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def model_of(entry: Entry, way: str, dtype: str, *, small: bool = False) -> nn.Module:
    model = entry.make(way, small=small)
    for parameter in model.parameters():  # frequencies of rotations stay float32, as when loaded
        parameter.data = parameter.data.to(DTYPES[dtype])
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.to(DTYPES[dtype])
    parts = (part for part in model.modules() if isinstance(part, transformers.PreTrainedModel))
    runs = {part.config._attn_implementation for part in parts}
    assert runs == {"eager" if way == "relpos" else way}, runs
    if way == "relpos":
        relpos.hf.fuse(model)
        states = [layer.state for layer in relpos.hf.report(model).layers]
        assert "fused" in states, relpos.hf.report(model)
    return model


def converted(given: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    wanted = DTYPES[dtype]
    return {
        name: x.to(wanted) if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in given.items()
    }


def result(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """The first output, 0 where a token is padding."""
    out = model(**given)[0]
    seen = given.get("attention_mask")
    if seen is not None and seen.shape == out.shape[:2]:
        out = out * seen[..., None]
    return out


def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    out = result(model, given)
    out = out if out.dtype == torch.float64 else out.float()
    weights = torch.arange(out.numel(), dtype=out.dtype).sin().view(out.shape)
    return (out * weights).mean()


def found(entry: Entry, way: str, dtype: str) -> dict[str, Tensor]:
    """The small model's result and gradients, by name."""
    given = converted(entry.inputs(small=True), dtype)
    model = model_of(entry, way, dtype, small=True).eval()
    loss(model, given).backward()
    named = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    return {"result": result(model, given).detach().double(), **named}


def errors(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> tuple[float, float]:
    """Of the result and of gradients, as parts of the largest of those that stand together: the
    weights of one attention have gradients that others cancel."""
    assert ours.keys() == theirs.keys()
    largest: dict[str, float] = defaultdict(float)
    for name, x in theirs.items():
        largest[_group(name)] = max(largest[_group(name)], x.abs().max().item())
    each = {
        name: (ours[name] - x).abs().max().item() / (largest[_group(name)] or 1.0)
        for name, x in theirs.items()
    }
    return each.pop("result"), max(each.values())


def _group(name: str) -> str:
    return name if name == "result" else name.rsplit(".", 2)[0]


def prove(entry: Entry, dtype: str) -> str:
    """How far all ways are from eager in float64. In bfloat16 relpos may be twice as far as eager
    is."""
    exact = found(entry, "eager", "float64")
    lines, limits = [], (1e-5, 1e-5)
    for way in (*entry.ways, "relpos"):
        off = errors(found(entry, way, dtype), exact)
        if (way, dtype) == ("eager", "bfloat16"):
            limits = tuple(2 * error for error in off)
        if way == "relpos":
            assert all(e <= most for e, most in zip(off, limits, strict=True)), (lines, off, limits)
        lines.append(f"{way} {off[0]:.1e}, gradients {off[1]:.1e}")
    return "; ".join(lines)


def measure(name: str, way: str, what: str, dtype: str, rounds: int) -> tuple[float, float, float]:
    """Seconds, CPU seconds and bytes, measured in this process alone."""
    transformers.logging.set_verbosity_error()
    entry = ENTRIES[name]
    model, given = model_of(entry, way, dtype), converted(entry.inputs(), dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    prompt = entry.before() if entry.prompt else {}

    def forward() -> None:
        with torch.no_grad():
            model.eval()(**given)

    def train() -> None:
        optimizer.zero_grad()
        loss(model.train(), given).backward()
        optimizer.step()

    def generate() -> None:
        more = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
        model.eval().generate(**prompt, **more)

    run = {"forward": forward, "training step": train, "generate": generate}[what]
    if what == "training step":  # the optimizer's state and the gradients stand in all ways
        loss(model, converted(entry.given(1, entry.few[1]), dtype)).backward()
        optimizer.step()
    peak, times, busy = growth(run), [], []
    for _ in range(rounds):
        start, cpu = time.perf_counter(), time.process_time()
        run()
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    return statistics.median(times), statistics.median(busy), peak


def table(name: str, dtype: str, rounds: int) -> None:
    entry = ENTRIES[name]
    rows, length = entry.sizes
    print(f"\n{name}, B {rows}, L {length}, {dtype}, {torch.get_num_threads()} threads\n")
    print("| | way | time | CPU time | peak memory |\n|---|---|---|---|---|")
    for what in ("forward", "training step", *(["generate"] if entry.prompt else [])):
        for way in (*entry.ways, "relpos"):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                try:
                    wall, cpu, peak = pool.submit(measure, name, way, what, dtype, rounds).result()
                    line = f"{wall:.2f} s | {cpu:.2f} s | {peak / 2**20:.0f} MiB"
                except Exception as error:
                    line = f"{first_line(error)} | | "
            print(f"| {what} | {way} | {line} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENTRIES))
    parser.add_argument("--all", action="store_true", help="every entry")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES)[1:], default=["float32"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = list(ENTRIES) if arguments.all else arguments.names or list(ENTRIES)[:1]
    unknown = [name for name in names if name not in ENTRIES]
    if unknown:
        parser.error(f"NAME: expected one of {', '.join(ENTRIES)}, got {', '.join(unknown)}")
    for name in names:
        for dtype in arguments.dtypes:
            print(f"{name}, {dtype}: {prove(ENTRIES[name], dtype)}", file=sys.stderr)
            table(name, dtype, arguments.rounds)


if __name__ == "__main__":
    main()
