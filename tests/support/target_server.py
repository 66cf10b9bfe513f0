"""Processes that compute on one SIMD target each, since RELPOS_TARGET is read at first use."""

import os
import pickle
import subprocess
import sys
import traceback

import relpos
import torch

from tests import ROOT


def serve(answer):
    """A line in, a pickled answer(line) out, or the text of what it raised: the process of one
    target."""
    torch.set_num_threads(1)
    target = relpos.show_config()["target"]
    for line in sys.stdin:
        try:
            found = answer(line.strip())
        except Exception:
            found = traceback.format_exc()
        pickle.dump((target, found), sys.stdout.buffer)
        sys.stdout.buffer.flush()


class Server:
    """A process of `python -m module --serve`, which runs `serve`, on a target. Ctrl-C does not
    reach it."""

    def __init__(self, target, module):
        self.target = target
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--serve"],
            cwd=ROOT,
            env=os.environ | {"RELPOS_TARGET": target, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def ask(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def answer(self):
        """Of the line that was asked first; the text of an exception where it raised one."""
        target, answer = pickle.load(self.process.stdout)
        assert target == self.target
        return answer

    def close(self):
        self.process.kill()
        self.process.wait()
