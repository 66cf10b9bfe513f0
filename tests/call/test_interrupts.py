"""Ctrl-C in every scheme whose terms need no input of the call, with its largest options: as many
distances, cells and features as a call takes within a gigabyte."""

import json
import os
import sys

from tests import FULL
from tests.support.cli_tool import run
from tests.support.patience import heed_interrupts, slowness
from tests.support.sample import UNBOUND

HALF = {"head_dim": 64, "layout": "half"}
FAR = 60_000
GRID = [300, 200]
# Options by scheme: two heads of 64; tokens are 60,000 but for those of windows and grids.
LARGE = {
    "alibi": {"heads": 2, "learned": True, "sides": "own"},
    "alibi_2d": {"heads": 2, "grid": GRID, "learned": True},
    "axial_deeplab": {"span": FAR, "head_dim": 64},
    "bam": {"heads": 2},
    "beit": {"heads": 2, "window": [128, 128]},
    "bias_rpe": {"heads": 2, "max_distance": FAR},
    "botnet": {"head_dim": 64, "grid": [128, 128]},
    "conformer": {"heads": 2, "head_dim": 64, "width": 512},
    "deberta": {"heads": 2, "head_dim": 64, "buckets": 32_768, "max_distance": FAR},
    "decomposed": {"head_dim": 64, "grid": [128, 128]},
    "dynamic_bias": {"heads": 2, "width": 1024, "depth": 4},
    "enformer": {"heads": 2, "head_dim": 64, "features": 528},
    "fire": {"heads": 2, "width": 1024, "init_L": 1e6},
    "gemma_audio": {"heads": 2, "head_dim": 64, "width": 512},
    "kerple_log": {"heads": 2},
    "kerple_power": {"heads": 2},
    "levit": {"heads": 2, "grid": [128, 128]},
    "music_transformer": {"max_length": FAR, "head_dim": 64, "bidirectional": True},
    "relative_key": {"positions": FAR, "head_dim": 64, "kind": "relative_key_query"},
    "rope": HALF,
    "rope_axial": {**HALF, "grid": GRID},
    "rope_dinov3": {**HALF, "grid": GRID},
    "rope_dynamic": {**HALF, "factor": 8.0},
    "rope_linear": {**HALF, "factor": 8.0},
    "rope_llama3": HALF,
    "rope_longrope": {**HALF, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    "rope_mixed": {"heads": 2, "head_dim": 64, "grid": GRID},
    "rope_ntk": {**HALF, "factor": 8.0},
    "rope_proportional": {**HALF, "factor": 8.0},
    "rope_resonance": HALF,
    "rope_soft_clipped": {**HALF, "clipped": 4096},
    "rope_video": {**HALF, "grid": [60, 100]},
    "rope_yarn": {**HALF, "factor": 8.0},
    "sandwich": {"heads": 2, "dims": 4096},
    "shaw": {"max_distance": FAR, "head_dim": 64},
    "swin": {"heads": 2, "window": [128, 128]},
    "swin_v2": {"heads": 2, "window": [128, 128], "hidden": 2048},
    "t5": {"heads": 2, "buckets": 32_768, "max_distance": FAR},
    "tisa": {"heads": 2, "kernels": 512},
    "transformer_xl": {"heads": 2, "head_dim": 64, "width": 512},
    "vits": {"window_size": FAR, "head_dim": 64},
    "xpos": HALF,
}
TOKENS = {"beit": 128 * 128 + 1} | dict.fromkeys(
    ("botnet", "decomposed", "levit", "swin", "swin_v2"), 128 * 128
)

# Processor time that this process takes from the signal to the exception, by scheme and direction.
INTERRUPTED = """
import json, os, signal, sys, threading, time
import relpos, torch
from relpos import _core
from tests.support.oracle import registry
torch.set_num_threads(1)
real = _core.attend
def no_attention(*arguments):
    query = arguments[0]
    return torch.zeros_like(query), None, torch.ones(*query.shape[:3], 2)
def seconds_to_end(call):
    sent = []
    def send():
        time.sleep(0.25)
        sent.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)
    sender, done = threading.Thread(target=send), False
    sender.start()
    try:
        call()
        done = True  # before the signal
        sender.join()
        time.sleep(1)
    except KeyboardInterrupt:
        ended = time.process_time()
    return None if done else ended - sent[0]
small = torch.randn(1, 2, 5, 4, requires_grad=True)
out = relpos.attention(small, small, small)
out.backward(torch.ones_like(out))  # torch imports what it needs for that
found = {}
for name, options, tokens, direction in json.loads(sys.argv[1]):
    position = registry()[name](**options)
    leaves = [torch.randn(1, 2, tokens, 64, requires_grad=True) for _ in range(3)]
    def forward():
        return relpos.attention(*leaves, position=position)
    if direction == "forward":
        found[name + " forward"] = seconds_to_end(forward)
        continue
    _core.attend = no_attention
    out = forward()
    _core.attend = real
    found[name + " backward"] = seconds_to_end(lambda: out.backward(torch.ones_like(out)))
print(json.dumps(found))
"""


def test_every_scheme_has_its_largest_options():
    assert sorted(LARGE) == sorted(UNBOUND)


def test_ctrl_c_ends_every_scheme():
    """In both directions with RELPOS_FULL, else in one of them, its neighbours in the other."""
    cases = [
        (name, options, TOKENS.get(name, FAR), direction)
        for n, (name, options) in enumerate(LARGE.items())
        for m, direction in enumerate(("forward", "backward"))
        if FULL or n % 2 == m
    ]
    how = {"preexec_fn": heed_interrupts, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    done = run([sys.executable, "-c", INTERRUPTED, json.dumps(cases)], seconds=180, **how)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == len(cases)
    most = 0.1 * slowness()  # seconds of processor time; 0.02 were seen
    late = {call: spent for call, spent in found.items() if spent is None or spent >= most}
    assert not late
