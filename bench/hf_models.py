"""A T5-base-shaped encoder of Hugging Face: eager, sdpa and relpos, time and peak memory.

    .venv/bin/python bench/hf_models.py [--length 2048] [--batch 2] [--layers 4] [--rounds 5]

Random weights (768 wide, 12 heads of 64, 3072 in between, 32 buckets), float32, row 0 padded by an
eighth. First the three are proved equal, forward and backward. Then each runs in a process of its
own: a forward pass without gradients, and a training step (forward, backward, AdamW). Times are
medians of the rounds; CPU time, of all threads together, says something on a busy machine, too.
Memory is the peak of resident bytes above what was resident before.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import relpos
import torch
from transformers import T5Config, T5EncoderModel

WAYS = ("eager", "sdpa", "relpos")


def encoder(layers: int, way: str, width: int = 768, heads: int = 12) -> T5EncoderModel:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=1000,
        d_model=width,
        d_kv=64,
        d_ff=4 * width,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,
        use_cache=False,
        attn_implementation="eager" if way == "relpos" else way,
    )
    model = T5EncoderModel(config)
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    torch.nn.init.normal_(table)
    if way == "relpos":
        relpos.hf.linearize(model)
    assert model.encoder.config._attn_implementation == way
    return model


def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 1000, (rows, length), generator=torch.Generator().manual_seed(1))
    seen = torch.ones_like(ids)
    seen[0, length - length // 8 :] = 0
    return {"input_ids": ids, "attention_mask": seen}


def loss(model: T5EncoderModel, given: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden = model(**given).last_hidden_state * given["attention_mask"][..., None]
    return (hidden * torch.linspace(-1, 1, hidden.shape[2])).mean()


def prove() -> str:
    """The largest difference to eager, hidden states and gradients, at a small length."""
    given, found = batch(2, 150), {}
    for way in WAYS:
        model = encoder(2, way, width=128, heads=2)
        loss(model, given).backward()
        hidden = model(**given).last_hidden_state.detach() * given["attention_mask"][..., None]
        found[way] = (hidden, [p.grad for p in model.parameters()])
    lines = []
    for way in WAYS[1:]:
        (out, gradients), (eager, theirs) = found[way], found["eager"]
        pairs = [(out, eager), *zip(gradients, theirs, strict=True)]
        errors = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
        assert max(errors) < 1e-5, (way, errors)
        lines.append(f"{way} is eager to {errors[0]:.1e}, gradients {max(errors[1:]):.1e}")
    return "; ".join(lines)


def resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{field}:")[2].split()[0])


def measure(way: str, step: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds and peak bytes, in this process alone."""
    model = encoder(arguments.layers, way)
    given = batch(arguments.batch, arguments.length)
    optimizer = torch.optim.AdamW(model.parameters())

    def forward() -> None:
        with torch.no_grad():
            model.eval()(**given)

    def train() -> None:
        optimizer.zero_grad()
        loss(model.train(), given).backward()
        optimizer.step()

    run = {"forward": forward, "training step": train}[step]
    if step == "training step":  # the optimizer's state and the gradients stand in all three ways
        loss(model, batch(1, 8)).backward()
        optimizer.step()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    peak = resident("VmHWM") - before
    times, busy = [], []
    for _ in range(arguments.rounds):
        start, cpu = time.perf_counter(), time.process_time()
        run()
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    return {
        "seconds": statistics.median(times),
        "cpu_seconds": statistics.median(busy),
        "bytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(*arguments.only, arguments)))
        return
    print(prove(), file=sys.stderr)
    print(
        f"T5-base encoder, {arguments.layers} layers, B {arguments.batch}, L {arguments.length}, "
        f"float32, {torch.get_num_threads()} threads\n"
    )
    print("| | way | time | CPU time | peak memory |\n|---|---|---|---|---|")
    for step in ("forward", "training step"):
        for way in WAYS:
            command = [sys.executable, __file__, *sys.argv[1:], "--only", way, step]
            found = json.loads(subprocess.check_output(command, text=True))
            size = found["bytes"] / 2**20
            times = f"{found['seconds']:.2f} s | {found['cpu_seconds']:.2f} s"
            print(f"| {step} | {way} | {times} | {size:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
