"""The jobs of the lab, each in its own process, which starter.py starts with the job's folder.

The folder has job.json and the tokens; the job writes arrays.npz and then result.json there, and on
the way what kept.py says. What it tells of its progress can be written as JSON.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from relpos.lab import compare, kept, look
from relpos.lab import train as training
from relpos.lab.model import Model, Shape, continue_tokens

Tell = Callable[..., None]


def run_train(job: dict, data: dict, folder: Path, tell: Tell) -> tuple[dict, dict]:
    """Trains one scheme, tests it at every length, and computes what it has learned."""
    shape = Shape(**job["shape"])
    model = Model(shape, job["scheme"], seed=job["seed"])
    training.forget_memory_peak()
    steps = training.train(
        model,
        data["train"],
        data["starts"],
        rate=job["rate"],
        length=shape.length,
        kept=kept.Steps(folder / "steps.npz"),
        report=lambda done, loss: tell(event="step", done=done, loss=loss),
    )
    tested = folder / "tests.json"
    tests = json.loads(tested.read_text()) if tested.exists() else {}
    for length in job["tests"]:
        if str(length) in tests:
            continue
        begin = time.perf_counter()
        loss = training.test(model, data["test"], data["ends"], length)
        kept.write_json(tested, tests := {**tests, str(length): loss})
        tell(event="test", length=length, loss=loss, s=time.perf_counter() - begin)

    model.eval()  # a resumed job may have had its tests
    picture = min(look.PICTURE_LENGTH, max(job["tests"]))
    window = torch.from_numpy(data["test"][:picture][None])
    seen = []
    with torch.no_grad():
        model(window, seen=seen)
    distances = np.unique(
        np.concatenate([[0], np.geomspace(1, max(job["tests"]) - 1, 160).round()])
    ).astype(np.int64)
    edges = look.distance_edges(picture)
    arrays = {
        "distances": distances,
        "score": look.score_over_distance(model, seen, distances),
        "edges": edges,
        "attention": look.attention_over_distance(seen, edges),
        "triangle": look.triangle(seen),
        **kept.weights_of(model),
    }
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "position_parameters": sum(p.numel() for p in model.positions.parameters()),
        "train_losses": steps.losses,
        "ms_per_step": float(np.median(steps.seconds)) * 1000,
        "peak_mb": steps.peak_mb,
        "tests": tests,
    }
    return result, arrays


def run_continue(job: dict, data: dict, _: Path, tell: Tell) -> tuple[dict, dict]:
    """Continues the prompt with the weights of a trained scheme."""
    model = Model(Shape(**job["shape"]), job["scheme"], seed=job["seed"])
    kept.load_weights(model, kept.read_arrays(Path(job["weights"])))
    tokens = continue_tokens(
        model,
        data["prompt"],
        job["new_tokens"],
        seed=job["seed"],
        temperature=job["temperature"],
        forbidden=job["forbidden"],
        report=lambda done: tell(event="step", done=done),
    )
    return {"tokens": len(tokens)}, {"tokens": tokens}


def run_compare(job: dict, data: dict, _: Path, __: Tell) -> tuple[dict, dict]:
    """Runs training steps on one of the two implementations of attention."""
    model = Model(
        Shape(**job["shape"]),
        job["scheme"],
        seed=job["seed"],
        attend=compare.IMPLEMENTATIONS[job["attend"]],
    )
    training.forget_memory_peak()
    before = training.memory_mb("VmRSS")
    sizes = {"rate": job["rate"], "length": job["length"]}
    steps = training.train(model, data["train"], data["starts"], **sizes, scheduled=False)
    return {
        "losses": steps.losses,
        "ms": float(np.median(steps.seconds[1:])) * 1000,
        "extra_mb": training.memory_mb("VmHWM") - before,
    }, {}


JOBS = {"train": run_train, "continue": run_continue, "compare": run_compare}


def run_job(folder: Path, tell: Tell) -> None:
    """Does the job of a folder, unless it is done."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads such memory
    with kept.locked(folder):
        for left in folder.glob("*.tmp*"):  # by one that was killed as it wrote
            left.unlink()
        if (folder / "result.json").exists():
            return
        job = json.loads((folder / "job.json").read_text())
        data = kept.read_arrays(folder / "data.npz")
        torch.set_num_threads(job["threads"])
        random.seed(job["seed"])  # from here on for positions of one's own, which may draw
        np.random.seed(job["seed"] % 2**32)  # noqa: NPY002
        result, arrays = JOBS[job["kind"]](job, data, folder, tell)
        kept.write_arrays(folder / "arrays.npz", arrays)
        kept.write_json(folder / "result.json", result)
