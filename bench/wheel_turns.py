"""python -m bench.wheel_turns PYTHON_A PYTHON_B: two builds of relpos in turns.

Each PYTHON has one build and torch; `PYTHON=FOLDER` puts FOLDER before its packages. Of each case
and number of threads: the least milliseconds of each, and the median of the rounds' ratios B / A.
"""

import json
import os
import statistics
import subprocess
import sys
import time

WIDE = (1, 8, 2048, 64)
CASES = {
    "forward": {"shape": WIDE},
    "forward, T5": {"shape": WIDE, "t5": True},
    "forward, causal": {"shape": WIDE, "causal": True},
    "forward + backward": {"shape": WIDE, "backward": True},
    "forward, bfloat16": {"shape": WIDE, "dtype": "bfloat16"},
    "B 64, H 4, L 32, D 32": {"shape": (64, 4, 32, 32), "calls": 30},
    "tiny: L 8, H 1, D 16": {"shape": (1, 1, 8, 16), "calls": 1000},
}
ROUNDS = 9


def serve():
    """Answers each case that stands on a line with its seconds."""
    import relpos
    import torch

    for line in sys.stdin:
        case = json.loads(line)
        torch.set_num_threads(case["threads"])
        backward = case.get("backward", False)
        torch.manual_seed(0)
        dtype = getattr(torch, case.get("dtype", "float32"))
        x = [torch.randn(case["shape"]).to(dtype).requires_grad_(backward) for _ in range(3)]
        position = relpos.T5Bias(case["shape"][1]) if case.get("t5") else None
        causal = case.get("causal", False)

        def call(x=x, position=position, causal=causal, backward=backward):
            out = relpos.attention(*x, position=position, is_causal=causal)
            if backward:
                out.backward(out.detach())

        with torch.set_grad_enabled(backward):
            call()
            begin = time.perf_counter()
            for _ in range(case.get("calls", 1)):
                call()
            print(time.perf_counter() - begin, flush=True)


def start(text):
    python, _, folder = text.partition("=")
    env = dict(os.environ, PYTHONPATH=folder) if folder else dict(os.environ)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([python, __file__, "serve"], env=env, **pipes)


def measured(process, case):
    process.stdin.write(json.dumps(case) + "\n")
    process.stdin.flush()
    return 1e3 * float(process.stdout.readline())


def main():
    sides = [start(text) for text in sys.argv[1:3]]
    print("| case | threads | A ms | B ms | B / A, median (least) |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        for threads in (1, 2):
            asked = {**case, "threads": threads}
            rounds = [[measured(side, asked) for side in sides] for _ in range(ROUNDS)]
            a, b = (min(column) for column in zip(*rounds, strict=True))
            ratio = statistics.median(second / first for first, second in rounds)
            print(f"| {name} | {threads} | {a:.3g} | {b:.3g} | {ratio:.3f} ({b / a:.3f}) |")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
