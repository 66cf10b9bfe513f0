"""One job of the lab, in its own process. runner.py starts it with the job's folder.

FOLDER has job.json and the tokens; the job writes result.json and arrays.npz there. Progress goes
to stdout, one JSON object in each line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from relpos.lab import compare, look, sample
from relpos.lab import train as training
from relpos.lab.model import Model, Shape

_EVENTS = sys.stdout


def tell(**event) -> None:
    print(json.dumps(event), file=_EVENTS, flush=True)


def memory_mb(field: str) -> float:
    """VmRSS (resident now) or VmHWM (its peak) of this process; 0 where /proc has none.

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


def weights_of(model: Model) -> dict[str, np.ndarray]:
    return {f"weight/{name}": value.numpy() for name, value in model.state_dict().items()}


def load_weights(model: Model, arrays) -> None:
    model.load_state_dict(
        {name: torch.from_numpy(arrays[f"weight/{name}"]) for name in model.state_dict()}
    )


def run_train(job: dict, data: dict) -> tuple[dict, dict]:
    """Trains one scheme, tests it at every length, and computes what it has learned."""
    shape = Shape(**job["shape"])
    model = Model(shape, job["scheme"], seed=job["seed"])
    forget_memory_peak()
    losses, seconds = training.train(
        model,
        data["train"],
        data["starts"],
        rate=job["rate"],
        length=shape.length,
        report=lambda done, loss: tell(event="step", done=done, loss=loss),
    )
    peak = memory_mb("VmHWM")
    tests = {}
    for length in job["tests"]:
        begin = time.perf_counter()
        tests[length] = training.test(model, data["test"], data["ends"], length)
        tell(event="test", length=length, loss=tests[length], s=time.perf_counter() - begin)

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
        **weights_of(model),
    }
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "position_parameters": sum(p.numel() for p in model.positions.parameters()),
        "train_losses": losses,
        "ms_per_step": float(np.median(seconds)) * 1000,
        "peak_mb": peak,
        "tests": tests,
    }
    return result, arrays


def run_continue(job: dict, data: dict) -> tuple[dict, dict]:
    """Continues the prompt with the weights of a trained scheme."""
    model = Model(Shape(**job["shape"]), job["scheme"], seed=job["seed"])
    with np.load(job["weights"], allow_pickle=False) as arrays:
        load_weights(model, arrays)
    tokens = sample.continue_tokens(
        model,
        data["prompt"],
        job["new_tokens"],
        seed=job["seed"],
        temperature=job["temperature"],
        forbidden=job["forbidden"],
        report=lambda done: tell(event="step", done=done),
    )
    return {"tokens": len(tokens)}, {"tokens": tokens}


def run_compare(job: dict, data: dict) -> tuple[dict, dict]:
    """Runs training steps on one of the two implementations of attention."""
    model = Model(
        Shape(**job["shape"]),
        job["scheme"],
        seed=job["seed"],
        attend=compare.IMPLEMENTATIONS[job["attend"]],
    )
    forget_memory_peak()
    before = memory_mb("VmRSS")
    sizes = {"rate": job["rate"], "length": job["length"]}
    losses, seconds = training.train(model, data["train"], data["starts"], **sizes, scheduled=False)
    return {
        "losses": losses,
        "ms": float(np.median(seconds[1:])) * 1000,
        "extra_mb": memory_mb("VmHWM") - before,
    }, {}


JOBS = {"train": run_train, "continue": run_continue, "compare": run_compare}


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    with np.load(folder / "data.npz", allow_pickle=False) as stored:
        data = dict(stored)
    torch.set_num_threads(job["threads"])
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads such memory
    result, arrays = JOBS[job["kind"]](job, data)
    np.savez(folder / "arrays.npz", **arrays)
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    sys.stdout = sys.stderr  # what positions of one's own print
    main(Path(sys.argv[1]))
