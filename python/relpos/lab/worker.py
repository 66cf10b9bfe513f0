"""The jobs of the lab, each in its own process: a fork of this one, which runner.py starts with the
folder of a run and which imports PyTorch once for all of them.

Each line of stdin is the name of a folder below, which has job.json and the tokens; the job writes
arrays.npz and then result.json there, and on the way what kept.py says. Progress goes to stdout, a
JSON object in each line; the last of each job is {"event": "end", "status": of its process}.

On macOS, whose libraries do not survive a fork, this process does one job itself and ends.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # an optimizer of each job would otherwise

from relpos.lab import compare, kept, look, sample
from relpos.lab import train as training
from relpos.lab.model import Model, Shape

_EVENTS = os.fdopen(os.dup(1), "w")  # which programs that a job starts do not have


def tell(**event) -> None:
    print(json.dumps(event), file=_EVENTS, flush=True)


def run_train(job: dict, data: dict, folder: Path) -> tuple[dict, dict]:
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


def run_continue(job: dict, data: dict, _: Path) -> tuple[dict, dict]:
    """Continues the prompt with the weights of a trained scheme."""
    model = Model(Shape(**job["shape"]), job["scheme"], seed=job["seed"])
    kept.load_weights(model, kept.read_arrays(Path(job["weights"])))
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


def run_compare(job: dict, data: dict, _: Path) -> tuple[dict, dict]:
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


def run_job(folder: Path) -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads such memory
    with kept.locked(folder):
        if (folder / "result.json").exists():
            return
        job = json.loads((folder / "job.json").read_text())
        data = kept.read_arrays(folder / "data.npz")
        torch.set_num_threads(job["threads"])
        random.seed(job["seed"])
        np.random.seed(job["seed"] % 2**32)  # noqa: NPY002  of what a position of one's own draws
        result, arrays = JOBS[job["kind"]](job, data, folder)
        kept.write_arrays(folder / "arrays.npz", arrays)
        kept.write_json(folder / "result.json", result)


def own_process(folder: Path) -> None:
    """Runs a job and ends this process, without what the starter has registered for its exit."""
    status = 1
    try:
        stderr = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        run_job(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(run: Path) -> None:
    forks = sys.platform != "darwin"
    for line in sys.stdin:
        process = os.fork() if forks else 0
        if process == 0:
            own_process(run / line.rstrip("\n"))
        _, status = os.waitpid(process, 0)
        tell(event="end", status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # what positions of one's own print
    main(Path(sys.argv[1]))
