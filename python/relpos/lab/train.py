"""Training of a model, with its times and its memory, and tests at lengths that it was not trained
for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from relpos.lab.data import SCORED
from relpos.lab.kept import Steps
from relpos.lab.model import Model

WARMUP = 20
TABLE_RATE = 5.0  # position tables learn this much faster: each row gets only a few gradients
_TEST_TOKENS = 1 << 13  # per forward


def make_optimizer(model: Model, rate: float) -> torch.optim.Optimizer:
    tables = {id(p) for p in model.positions.parameters()}
    rest = [p for p in model.parameters() if id(p) not in tables]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "scale": 1.0, "weight_decay": 0.05},
        {"params": [p for p in rest if p.dim() <= 1], "scale": 1.0, "weight_decay": 0.0},
        {
            "params": list(model.positions.parameters()),
            "scale": TABLE_RATE,
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=rate, betas=(0.9, 0.98)
    )


def rate_at(step: int, steps: int, rate: float) -> float:
    """The learning rate: a linear warm-up, then a cosine down to a twentieth."""
    warmup = min(WARMUP, max(1, steps // 5))
    if step < warmup:
        return rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def memory_mb(field: str) -> float:
    """VmRSS (resident now) or VmHWM (its peak) of this process; 0 where /proc has none. Pages of
    libraries count once the process has touched them.

    The peak of getrusage is not used, since a new process starts with that of its parent.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    line = next((x for x in status.splitlines() if x.startswith(field + ":")), None)
    return int(line.split()[1]) / 1024 if line else 0.0


def forget_memory_peak() -> None:
    """Lowers VmHWM to VmRSS."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def train_step(model: Model, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    optimizer.zero_grad(set_to_none=True)
    loss = model.loss(tokens)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def train(
    model: Model,
    stream: np.ndarray,
    starts: np.ndarray,
    *,
    rate: float,
    length: int,
    scheduled: bool = True,
    kept: Steps | None = None,
    report: Callable[[int, float], None] = lambda done, loss: None,
) -> Steps:
    """Steps on windows of `length` tokens, from those on that `kept` has in its file; calls
    `report(steps done, loss)` after each."""
    optimizer = make_optimizer(model, rate)
    offsets = np.arange(length + 1)
    steps = kept or Steps()
    steps.read(model, optimizer)
    model.train()
    for step, begins in list(enumerate(starts))[len(steps.losses) :]:
        if scheduled:
            for group in optimizer.param_groups:
                group["lr"] = group["scale"] * rate_at(step, len(starts), rate)
        tokens = torch.from_numpy(stream[begins[:, None] + offsets])
        begin = time.perf_counter()
        steps.losses.append(train_step(model, optimizer, tokens))
        steps.seconds.append(time.perf_counter() - begin)
        steps.peak_mb = max(steps.peak_mb, memory_mb("VmHWM"))
        steps.write(model, optimizer)
        report(step + 1, steps.losses[-1])
    return steps


@torch.no_grad()
def test(model: Model, stream: np.ndarray, ends: np.ndarray, length: int) -> float:
    """Mean loss of the last SCORED tokens of the windows of `length` tokens that end at `ends`."""
    model.eval()
    offsets = np.arange(-length, 1)
    total = 0.0
    for group in np.array_split(ends, math.ceil(len(ends) * length / _TEST_TOKENS)):
        if len(group) == 0:
            continue
        tokens = torch.from_numpy(stream[group[:, None] + offsets])
        logits = model(tokens[:, :-1])[:, -SCORED:]
        targets = tokens[:, -SCORED:]
        total += F.cross_entropy(
            logits.flatten(0, 1).double(), targets.flatten(), reduction="sum"
        ).item()
    return total / (len(ends) * SCORED)
