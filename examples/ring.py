"""Trains a small causal model with T5's bias on one long sequence of Bach chorales, cut over ranks.

    torchrun --nproc-per-node 2 examples/ring.py --length 65536

Every rank holds its share of the tokens, of every layer's activations and of the keys and values.
Then one process trains the same model on the same sequence, with as many threads as there were
ranks, and both are printed side by side: losses, time, memory, bytes sent.
"""

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import time

import relpos
import torch
import torch.distributed as dist
import torch.nn.functional as F
from relpos.lab.data import load_chorales
from relpos.lab.model import Model, Shape
from torch.nn.parallel import DistributedDataParallel


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=8192, help="tokens of the sequence")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layout", default="zigzag", choices=["contiguous", "zigzag", "striped"])
    parser.add_argument("--mode", default="ring", choices=["ring", "all_gather", "ulysses"])
    parser.add_argument("--no-compare", action="store_true", help="leave out the one process")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def sequence(length):
    """Tokens and what follows each, [1, length], and the size of the vocabulary."""
    corpus = load_chorales(None, 1)
    stream = torch.from_numpy(corpus.train)
    stream = stream.repeat(-(-(length + 1) // len(stream)))[: length + 1]
    return stream[None, :-1].clone(), stream[None, 1:].clone(), corpus.vocabulary


def train(model, tokens, following, steps):
    """[(loss, seconds)] of each step; the loss is of this process's tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((float(loss.detach()), time.perf_counter() - begin))
    return found


def report(found):
    """What a process has to say about its run."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sent = relpos.distributed.traffic()
    return {
        "losses": [loss for loss, _ in found],
        "seconds": [seconds for _, seconds in found],
        "peak_mib": peak,
        "sent_mib": sent.sent_bytes / 2**20,
        "waited": sent.waited_seconds,
    }


def alone(args):
    tokens, following, vocabulary = sequence(args.length)
    shape = Shape(vocabulary, layers=args.layers, width=args.width, length=args.length)
    print(json.dumps(report(train(Model(shape, "t5", seed=0), tokens, following, args.steps))))


def on_ranks(args):
    tokens, following, vocabulary = sequence(args.length)
    shape = Shape(vocabulary, layers=args.layers, width=args.width, length=args.length)
    model = DistributedDataParallel(Model(shape, "t5", seed=0))
    with relpos.distributed.context_parallel(
        layout=args.layout,
        mode=args.mode,
        buffers=[tokens, following],
        buffer_seq_dims=[1, 1],
    ):
        return report(train(model, tokens, following, args.steps))


def one_process(args, threads):
    options = ["--length", args.length, "--steps", args.steps, "--layers", args.layers]
    options += ["--width", args.width, "--alone"]
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "RANK"))
    }
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, __file__, *map(str, options)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def show(name, runs, steps):
    losses = [sum(of) / len(runs) for of in zip(*(run["losses"] for run in runs), strict=True)]
    seconds = max(sum(run["seconds"]) for run in runs) / steps
    memory = max(run["peak_mib"] for run in runs)
    print(
        f"{name:12} losses {' '.join(f'{loss:.6f}' for loss in losses)}   "
        f"{seconds:.1f} s a step   {memory:.0f} MiB at most in a process",
        flush=True,
    )


def show_traffic(runs, steps):
    for rank, run in enumerate(runs):
        print(
            f"rank {rank}: sent {run['sent_mib'] / steps:.1f} MiB a step, waited "
            f"{100 * run['waited'] / sum(run['seconds']):.0f} % of the time for other ranks",
            flush=True,
        )


def main():
    args = arguments()
    if args.alone:
        return alone(args)
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=4))
    size = dist.get_world_size()
    if args.length % (2 * size):
        raise SystemExit(f"--length: expected a multiple of {2 * size}, so that shares are equal")
    found = [None] * size
    dist.all_gather_object(found, on_ranks(args))
    if dist.get_rank() == 0:
        print(f"{args.length} tokens, {args.layers} layers, T5 bias, {args.layout}, {args.mode}")
        show(f"{size} ranks", found, args.steps)
        show_traffic(found, args.steps)
        if not args.no_compare:
            show("one process", [one_process(args, size)], args.steps)
    dist.barrier()
    dist.destroy_process_group()
    return None


if __name__ == "__main__":
    main()
