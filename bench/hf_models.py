"""A T5-base-shaped encoder of Hugging Face: eager, sdpa and relpos, time and peak memory.

    .venv/bin/python bench/hf_models.py [--length 2048] [--batch 2] [--layers 4] [--rounds 5]

Random weights (768 wide, 12 heads of 64, 3072 in between, 32 buckets), float32, row 0 padded by an
eighth. First the three are proved equal, forward and backward. Then each runs in a process of its
own: a forward pass without gradients, and a training step (forward, backward, AdamW). Times are
medians of the rounds; CPU time, of all threads together, says something on a busy machine, too.
Memory is the peak of resident bytes above what was resident before.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

os.environ["HF_HUB_OFFLINE"] = "1"

import relpos
import torch
from case import growth
from transformers import T5Config, T5EncoderModel

WAYS = ("eager", "sdpa", "relpos")


def encoder(layers: int, way: str, width: int = 768, heads: int = 12) -> T5EncoderModel:
    torch.manual_seed(0)
    sizes = {"d_model": width, "d_kv": 64, "d_ff": 4 * width, "num_heads": heads}
    config = T5Config(
        vocab_size=1000, num_layers=layers, dropout_rate=0.0, use_cache=False, **sizes,
        attn_implementation="eager" if way == "relpos" else way,
    )  # fmt: skip
    model = T5EncoderModel(config)
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    torch.nn.init.normal_(table)
    if way == "relpos":
        relpos.hf.fuse(model)
    assert model.encoder.config._attn_implementation == way
    return model


def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 1000, (rows, length), generator=torch.Generator().manual_seed(1))
    seen = torch.ones_like(ids)
    seen[0, length - length // 8 :] = 0
    return {"input_ids": ids, "attention_mask": seen}


def hidden_states(model: T5EncoderModel, given: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**given).last_hidden_state * given["attention_mask"][..., None]


def loss(model: T5EncoderModel, given: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden = hidden_states(model, given)
    return (hidden * torch.linspace(-1, 1, hidden.shape[2])).mean()


def prove() -> str:
    """The largest difference to eager, hidden states and gradients, at a small length."""
    given, found = batch(2, 150), {}
    for way in WAYS:
        model = encoder(2, way, width=128, heads=2)
        loss(model, given).backward()
        found[way] = [hidden_states(model, given).detach(), *(p.grad for p in model.parameters())]
    lines = []
    for way in WAYS[1:]:
        pairs = zip(found[way], found["eager"], strict=True)
        errors = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
        assert max(errors) < 1e-5, (way, errors)
        lines.append(f"{way} is eager to {errors[0]:.1e}, gradients {max(errors[1:]):.1e}")
    return "; ".join(lines)


def measure(way: str, step: str, arguments: argparse.Namespace) -> str:
    """A row of the table, measured in this process alone."""
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
    peak, times, busy = growth(run), [], []
    for _ in range(arguments.rounds):
        start, cpu = time.perf_counter(), time.process_time()
        run()
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    seconds, cpu_seconds = statistics.median(times), statistics.median(busy)
    return f"| {step} | {way} | {seconds:.2f} s | {cpu_seconds:.2f} s | {peak / 2**20:.0f} MiB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("length", 2048), ("batch", 2), ("layers", 4), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    print(prove(), file=sys.stderr)
    print(
        f"T5-base encoder, {arguments.layers} layers, B {arguments.batch}, L {arguments.length}, "
        f"float32, {torch.get_num_threads()} threads\n"
    )
    print("| | way | time | CPU time | peak memory |\n|---|---|---|---|---|")
    for step in ("forward", "training step"):
        for way in WAYS:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                print(pool.submit(measure, way, step, arguments).result(), flush=True)


if __name__ == "__main__":
    main()
