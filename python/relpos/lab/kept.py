"""What a run keeps in its folder until all is done and reported, so that `--resume` can go on with
it after it was killed, or a job failed: the jobs that are done, and of a training all steps but the
current one.

Every file is replaced whole. A kill of the processes loses none; a loss of power may.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import torch

FOLDER = "unfinished"
_ASKED = "asked.json"
PATIENCE = 3.0


class CannotResume(ValueError):
    """There is no run to go on with, or another process is at it."""


class CannotWrite(OSError):
    """A file or a folder below --out cannot be made, written or removed."""

    then = "see that it can be, or choose another folder"


@contextlib.contextmanager
def writing(path: Path, doing: str = "write") -> Iterator[None]:
    """What writes `path`; a refusal of the system is raised as CannotWrite, with its reason."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"--out: cannot {doing} {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to, whose file then takes the place of `path`."""
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    with writing(path):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    with whole(path) as temporary:
        temporary.write_text(json.dumps(value))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


@contextlib.contextmanager
def run_folder(out: Path, asked: dict, *, resume: bool) -> Iterator[Path]:
    """The folder of the jobs of a run. `asked` is what its results depend on, by the name of the
    option; a run that goes on must have been asked the same."""
    folder, identity = out / FOLDER, out / FOLDER / _ASKED
    nothing = f"--resume: {out} has no unfinished run; start one without --resume"
    if resume and not folder.exists():
        raise CannotResume(nothing)
    with writing(folder):
        folder.mkdir(exist_ok=True)
    with _lock_file(folder) as lock:
        if not _taken(lock):
            raise CannotResume(
                f"--out {out}: another run writes there; wait for it, or choose another folder"
            )
        if resume and not identity.exists():
            raise CannotResume(nothing)
        if resume:
            before = json.loads(identity.read_text())
            for name, value in json.loads(json.dumps(asked)).items():
                if before.get(name) != value:
                    raise CannotResume(
                        f"--resume: expected {name} {before.get(name)}, as the unfinished run in "
                        f"{out} has, got {value}"
                    )
        else:
            _forget(folder)
            for job in filter(Path.is_dir, list(folder.iterdir())):
                forget_job(job)
            write_json(identity, asked)
        yield folder


def _forget(folder: Path) -> None:
    """From here on none goes on with the jobs of a run, so that half of them may be removed."""
    with writing(folder / _ASKED, "remove"):
        (folder / _ASKED).unlink(missing_ok=True)


def forget_job(job: Path) -> None:
    with locked(job), writing(job, "remove"):
        shutil.rmtree(job)


def _lock_file(folder: Path) -> IO[str]:
    with writing(folder / "lock"):
        return (folder / "lock").open("w")


def _taken(lock: IO[str]) -> bool:
    """Whether nobody holds the lock, or a process that ends within PATIENCE seconds: where a run is
    killed as it starts the starter, that one holds it until it is a program of its own."""
    until = time.monotonic() + PATIENCE
    while not _locks(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _locks(lock: IO[str], how: int) -> bool:
    """Whether no other process holds the lock. There are file systems without locks."""
    with writing(Path(lock.name), "lock"), contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, how)
        return True
    return False


def remove(folder: Path) -> None:
    """Once nothing is left to go on with."""
    with contextlib.suppress(CannotWrite):
        _forget(folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Waits for a process that has outlived its lab and is still at this job."""
    with _lock_file(folder) as lock:
        _locks(lock, fcntl.LOCK_EX)
        yield


def weights_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {f"weight/{name}": value.numpy() for name, value in model.state_dict().items()}


def load_weights(model: torch.nn.Module, arrays: dict[str, np.ndarray]) -> None:
    model.load_state_dict(
        {name: torch.from_numpy(arrays[f"weight/{name}"]) for name in model.state_dict()}
    )


@dataclass
class Steps:
    """The steps of a training that are done, in one file."""

    path: Path | None = None  # None: nothing is kept
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    def read(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Sets all to what the file has, if there is one."""
        if self.path is None or not self.path.exists():
            return
        arrays = read_arrays(self.path)
        load_weights(model, arrays)
        for place, parameter in enumerate(_parameters(optimizer)):
            state = optimizer.state[parameter]
            for name, array in arrays.items():
                owner, _, key = name.rpartition("/")
                if owner == f"optimizer/{place}":
                    # Copies lie as the optimizer's own tensors do: sums depend on where they begin.
                    state[key] = torch.from_numpy(array).clone()
        _set_random(arrays)
        self.losses, self.seconds = arrays["losses"].tolist(), arrays["seconds"].tolist()
        self.peak_mb = float(arrays["peak_mb"])

    def write(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.path is None:
            return
        arrays = weights_of(model)
        for place, parameter in enumerate(_parameters(optimizer)):
            for key, value in optimizer.state[parameter].items():
                arrays[f"optimizer/{place}/{key}"] = value.numpy()
        arrays |= _random()
        arrays["losses"], arrays["seconds"] = np.array(self.losses), np.array(self.seconds)
        arrays["peak_mb"] = np.array(self.peak_mb)
        write_arrays(self.path, arrays)


def _random() -> dict[str, np.ndarray]:
    """The states of the generators that positions of one's own may draw from."""
    version, words, gauss = random.getstate()
    _, keys, place, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "random/torch": torch.get_rng_state().numpy(),
        "random/python": np.array([version, *words]),
        "random/python_gauss": np.array([] if gauss is None else [gauss]),
        "random/numpy": keys,
        "random/numpy_gauss": np.array([place, has_gauss, cached]),
    }


def _set_random(arrays: dict[str, np.ndarray]) -> None:
    torch.set_rng_state(torch.from_numpy(arrays["random/torch"]))
    version, *words = arrays["random/python"].tolist()
    gauss = arrays["random/python_gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    place, has_gauss, cached = arrays["random/numpy_gauss"].tolist()
    state = ("MT19937", arrays["random/numpy"], int(place), int(has_gauss), cached)
    np.random.set_state(state)  # noqa: NPY002


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
