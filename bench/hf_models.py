"""Models of Hugging Face on eager, sdpa and relpos: time and peak memory.

    .venv/bin/python bench/hf_models.py [NAME ...] [--all] [--dtypes float32 bfloat16] [--rounds 5]

Without a name it measures the first entry of bench/hf_entries.py in float32, with --all every entry
in both dtypes. First all ways are proved equal on a small model, forward and backward. Then each
runs in a process of its own: a forward pass without gradients, a training step (forward, backward,
AdamW), and generation with a cache where the model generates. Times are medians of the rounds; CPU
time, of all threads together, says something on a busy machine, too. Memory is the peak of resident
bytes above what was resident before.
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


class Unequal(AssertionError):
    """relpos gives another result than the model's own code, beyond the roundings of the dtype."""


def model_of(entry: Entry, way: str, dtype: str, *, small: bool = False) -> nn.Module:
    model = entry.make(way, small=small)
    for parameter in model.parameters():  # frequencies of rotations stay float32, as when loaded
        parameter.data = parameter.data.to(DTYPES[dtype])
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):  # its statistics go with its weights
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
    """The first output, features last, 0 where a token is padding."""
    out = model(**given)[0]
    if out.ndim == 4:  # an image: its channels last, as a norm over them would hide a sum of them
        out = out.permute(0, 2, 3, 1)
    seen = given.get("attention_mask")
    if seen is not None and seen.shape == out.shape[:2]:
        out = out * seen[..., None]
    return out


def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    out = result(model, given)
    out = out if out.dtype == torch.float64 else out.float()
    return (out * torch.linspace(-1, 1, out.shape[-1])).mean()


def found(entry: Entry, way: str, dtype: str) -> dict[str, Tensor]:
    """The small model's result and gradients, by name."""
    given = converted(entry.inputs(small=True), dtype)
    model = model_of(entry, way, dtype, small=True).eval()
    loss(model, given).backward()
    named = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    return {"result": result(model, given).detach().double(), **named}


def errors(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> tuple[float, float]:
    """Of the result and of gradients, as parts of the largest of the module. A constant added to
    every key changes no weight, so that a key bias has the gradient 0 and what is computed is
    rounding: such a bias alone is held against the layer around its module."""
    assert ours.keys() == theirs.keys()

    def beside(name: str) -> str:
        return name.rsplit(".", 2)[0] + "." if name.endswith("k_proj.bias") else owner(name)

    def owner(name: str) -> str:
        return name.rpartition(".")[0]

    largest: dict[str, float] = defaultdict(float)
    for name, x in theirs.items():
        for holder in {owner(name), name.rsplit(".", 2)[0] + "."}:
            largest[holder] = max(largest[holder], x.abs().max().item())
    each = {
        name: (ours[name] - x).abs().max().item() / (largest[beside(name)] or 1.0)
        for name, x in theirs.items()
    }
    return each.pop("result"), max(each.values())


def prove(entry: Entry, dtype: str) -> str:
    """How far all are from eager in float64. In bfloat16 relpos may be twice as far as eager is."""
    exact = found(entry, "eager", "float64")
    lines, limits = [], (1e-5, 1e-5)
    for way in (*entry.ways, "relpos"):
        off = errors(found(entry, way, dtype), exact)
        if (way, dtype) == ("eager", "bfloat16"):
            limits = tuple(2 * error for error in off)
        if way == "relpos" and not all(e <= most for e, most in zip(off, limits, strict=True)):
            raise Unequal(
                f"not equal: off by {off[0]:.1e}, gradients {off[1]:.1e}; "
                f"allowed {limits[0]:.1e} and {limits[1]:.1e}"
            )
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
        size = entry.sizes[1] if "pixel_values" in given else entry.few[1]  # images have one size
        loss(model, converted(entry.given(1, size), dtype)).backward()
        optimizer.step()
    peak, times, busy = growth(run), [], []
    for _ in range(rounds):
        start, cpu = time.perf_counter(), time.process_time()
        run()
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    return statistics.median(times), statistics.median(busy), peak


def cell(name: str, way: str, what: str, dtype: str, rounds: int) -> tuple[float, str]:
    """CPU seconds, infinite where the run failed, and what the table says."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            wall, cpu, peak = pool.submit(measure, name, way, what, dtype, rounds).result()
        except Exception as error:
            return float("inf"), first_line(error)
    return cpu, f"{cpu:.2f} s ({wall:.2f}), {peak / 2**20:.0f} MiB"


def lines_of(name: str, dtype: str, rounds: int) -> None:
    """The lines of an entry. One is lost where relpos takes more CPU time than the faster other."""
    entry = ENTRIES[name]
    rows, length = entry.sizes
    title = f"{name}, {rows} x {length}"
    try:
        print(f"{title}, {dtype}: {prove(entry, dtype)}", file=sys.stderr)
    except Unequal as error:
        print(f"| {title} | not measured | | | {error} | |", flush=True)
        return
    for what in ("forward", "training step", *(["generate"] if entry.prompt else [])):
        found = {way: cell(name, way, what, dtype, rounds) for way in (*entry.ways, "relpos")}
        others = min(found[way][0] for way in entry.ways)
        gain = others / found["relpos"][0]
        verdict = f"{gain:.2f}x{'' if gain >= 1 else ', lost'}"
        cells = " | ".join(found[w][1] if w in found else "" for w in ("eager", "sdpa", "relpos"))
        print(f"| {title} | {what} | {cells} | {verdict} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENTRIES))
    parser.add_argument("--all", action="store_true", help="every entry, in every dtype")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES)[1:])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = list(ENTRIES) if arguments.all else arguments.names or list(ENTRIES)[:1]
    unknown = [name for name in names if name not in ENTRIES]
    if unknown:
        parser.error(f"NAME: expected one of {', '.join(ENTRIES)}, got {', '.join(unknown)}")
    for dtype in arguments.dtypes or list(DTYPES)[1 : None if arguments.all else 2]:
        print(f"\n{dtype}, {torch.get_num_threads()} threads; CPU time (wall), peak memory\n")
        print("| model | | eager | sdpa | relpos | relpos against the faster |")
        print("|---|---|---|---|---|---|", flush=True)
        for name in names:
            lines_of(name, dtype, arguments.rounds)


if __name__ == "__main__":
    main()
