"""Peak memory of one forward and backward, in a process of its own.

python -m tests.support.memory_probe SCHEME,SEQUENCE,LENGTH ... prints a JSON list, in bytes:
`peak` is the growth of the resident set beyond inputs and outputs, `formula` what relpos says it
needs. Where SEQUENCE is not 0, LENGTH rows are packed sequences of that length. SCHEME may be a
function of relpos.compose, of which `formula` is 0, or a class of tests.support.own_positions, of
which there is one head.
"""

import gc
import json
import multiprocessing
import sys
from pathlib import Path

HEADS, SIZE = 2, 64


def status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def composed(name, inputs):
    """Output, log-sum-exp and parameters of a function of relpos.compose."""
    import relpos
    import torch

    rope = relpos.RoPE(SIZE, layout="half")
    table = torch.zeros(32, SIZE, requires_grad=True)
    options, leaves = {
        "self_extend": ({"position": rope, "group_size": 4, "window_size": 512}, []),
        "cope": ({"table": table, "rows": 32}, [table]),
    }[name]
    return *getattr(relpos.compose, name)(*inputs, **options, return_lse=True), leaves


def composed_step(name, inputs, dout):
    from tests.support.oracle import gradients

    out, lse, leaves = composed(name, inputs)
    return [out, lse, *gradients([out], [dout], [*inputs, *leaves])]


def step(inputs, dout, call, sequence):
    import relpos
    import torch

    from tests.support.oracle import gradients

    leaves = [*inputs, *call["position"].parameters()]
    if sequence:
        starts = torch.arange(0, inputs[0].shape[2] + 1, sequence)
        packed = [x[0].transpose(0, 1) for x in inputs]
        out, lse = relpos.attention_varlen(*packed, starts, **call, return_lse=True)
        dout = dout[0].transpose(0, 1)
    else:
        out, lse = relpos.attention(*inputs, **call, return_lse=True)
    return [out, lse, *gradients([out], [dout], leaves)]


def measure(name, sequence, length):
    from relpos._call.attention import workspace_bytes

    from tests.support import own_positions
    from tests.support.sample import position, tensors

    composes, own = name in ("self_extend", "cope"), name in ("Kerple", "Network")
    sizes = {"heads": 1 if own else HEADS, "head_dim": SIZE, "value_dim": SIZE}
    if own:
        call = {"position": getattr(own_positions, name)(1)}
    else:
        call = {} if composes else {"position": position(name, **sizes)[0], "is_causal": True}
    formula = 0
    for count in (256, length):
        *inputs, dout = tensors(**sizes, queries=count, keys=count)
        inputs = [x.requires_grad_() for x in inputs]
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        before = status("VmRSS")
        take = (name, inputs, dout) if composes else (inputs, dout, call, sequence)
        made = (composed_step if composes else step)(*take)
        kept = 2 * made[1].nbytes  # the softmax state, which autograd keeps as it keeps the output
        peak = status("VmHWM") - before - sum(x.nbytes for x in made) - kept
        if not composes:
            formula = max(workspace_bytes(*inputs, backward=b, **call) for b in (False, True))
    return {"peak": peak, "formula": formula}


if __name__ == "__main__":
    wanted = [word.split(",") for word in sys.argv[1:]]
    # Children share the import of torch, not that of relpos, which makes threads anew after a fork.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    with context.Pool(1, maxtasksperchild=1) as pool:
        tasks = [(name, int(sequence), int(length)) for name, sequence, length in wanted]
        print(json.dumps(pool.starmap(measure, tasks, chunksize=1)))
