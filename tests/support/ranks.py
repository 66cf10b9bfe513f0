"""Processes of torch.distributed that run the functions of tests, many one after another."""

import atexit
import contextlib
import datetime
import multiprocessing
import os
import shutil
import tempfile
import traceback
from multiprocessing.connection import wait

import torch
import torch.distributed as dist

from tests.support import patience

SECONDS = 60  # of an idle machine: far above any case


class Failed(Exception):
    """What a rank raised: its type's name and its text."""

    def __init__(self, rank, kind, text, trace=""):
        super().__init__(f"rank {rank}: {kind}: {text}\n{trace}")
        self.rank, self.kind, self.text = rank, kind, text


def serve(pipe, rank, size, store, seconds):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=seconds),
    )
    pipe.send(("result", "ready"))
    while True:
        task = pipe.recv()
        if task is None:
            break
        function, arguments = task
        try:
            pipe.send(("result", function(**arguments)))
        except Exception as error:
            pipe.send(("raised", type(error).__name__, str(error), traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    def __init__(self, size, folder, seconds=None):
        seconds = seconds or patience.timeout(SECONDS)
        self.size, self.seconds, self.closed = size, seconds, False
        store = os.path.join(folder, f"store{size}")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.tensor", "tests.support.preloaded"])
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=serve, args=(there, rank, size, store, seconds), daemon=True
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        for rank in range(size):
            self.answer(rank)

    def answer(self, rank):
        """Of the next task that was sent to this rank; a Failed is what it raised."""
        if not self.pipes[rank].poll(2 * self.seconds):
            self.close()
            raise TimeoutError(f"rank {rank} did not answer")
        kind, *answer = self.pipes[rank].recv()
        return Failed(rank, *answer) if kind == "raised" else answer[0]

    def results(self, function, /, **arguments):
        """What function(**arguments) returns on each rank; raises what the first one raised."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = {}
        while len(answers) < self.size:
            waiting = {self.pipes[r]: r for r in range(self.size) if r not in answers}
            failed = any(isinstance(answer, Failed) for answer in answers.values())
            ready = wait(waiting, patience.timeout(10) if failed else 2 * self.seconds)
            if not ready:  # they wait for a rank that has failed
                self.close()
                missing = f"no answer from all ranks; {[str(a) for a in answers.values()]}"
                raise TimeoutError(missing)
            answers |= {waiting[pipe]: self.answer(waiting[pipe]) for pipe in ready}
        for rank in range(self.size):
            if isinstance(answers[rank], Failed):
                raise answers[rank]
        return [answers[rank] for rank in range(self.size)]

    def close(self):
        self.closed = True
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(patience.timeout(2))
            if process.is_alive():
                process.kill()
                process.join()


STARTED = {}


def shared(size):
    """Processes that all test files use; started once, and anew where they were closed."""
    if size not in STARTED or STARTED[size].closed:
        directory = tempfile.mkdtemp(prefix="relpos-ranks")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)  # after they have ended
        STARTED[size] = Ranks(size, directory)
        atexit.register(STARTED[size].close)
    return STARTED[size]
