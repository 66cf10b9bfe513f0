"""The same bits on every run at any thread count: forward, backward, table gradients, dropout."""

import hashlib
import itertools
import os
import subprocess
import sys

import pytest
import relpos
import torch
from oracle import gradients
from sample import NAMES, position, tensors

FULL = os.environ.get("RELPOS_FULL") == "1"
SHAPES = {
    "square": {"batch": 2, "queries": 200, "keys": 200, "key_heads": 2},
    "memory": {"batch": 1, "queries": 67, "keys": 700},
    "decode": {"batch": 3, "queries": 1, "keys": 3000, "key_heads": 1},
}


def results(name, shape, dtype, dropout):
    """Everything that one training step gives, as tensors."""
    module, _ = position(name, dtype=dtype)
    *inputs, dout = tensors(**SHAPES[shape], dtype=dtype)
    leaves = [x.requires_grad_() for x in inputs]
    tables = list(module.parameters()) if module is not None else []
    torch.manual_seed(11)
    out, lse = relpos.attention(
        *leaves,
        position=module,
        is_causal=True,
        q_offset=inputs[1].shape[2] - inputs[0].shape[2],
        enable_gqa=True,
        dropout_p=dropout,
        return_lse=True,
    )
    seeds = [dout, torch.linspace(-1, 1, lse.numel(), dtype=lse.dtype).view_as(lse)]
    return [out.detach(), lse.detach(), *gradients([out, lse], seeds, leaves + tables)]


def digest(found):
    state = hashlib.sha256()
    for x in found:
        state.update(x.contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


KINDS = list(itertools.product((torch.float32, torch.bfloat16, torch.float64), (0.0, 0.2)))


def kinds_of_calls():
    """(name, shape, dtype, dropout): each name in every shape and every kind of call, two kinds a
    shape, other ones from name to name; all of them with RELPOS_FULL."""
    for n, name in enumerate(NAMES):
        for m, shape in enumerate(SHAPES):
            for k, kind in enumerate(KINDS):
                if FULL or (n + m + k) % len(SHAPES) == 0:
                    yield name, shape, *kind


@pytest.mark.parametrize(("name", "shape", "dtype", "dropout"), list(kinds_of_calls()))
def test_same_bits_at_any_thread_count(threads, name, shape, dtype, dropout):
    found = set()
    for count in (1, 2, 4, 2):
        threads(count)
        found.add(digest(results(name, shape, dtype, dropout)))
    assert len(found) == 1


def test_same_bits_in_other_processes():
    """OMP_NUM_THREADS of a fresh process, where no call ran before."""
    code = (
        "import test_determinism as t, torch;"
        "print(*[t.digest(t.results('sum', s, torch.float32, 0.2)) for s in t.SHAPES])"
    )
    found = set()
    for count in ("1", "4"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=os.path.dirname(__file__),
            env=os.environ | {"OMP_NUM_THREADS": count},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout)
    assert len(found) == 1


def test_dropout_follows_the_seed():
    torch.manual_seed(1)
    q, k, v, _ = tensors(queries=40, keys=40)

    def weights():
        return relpos.attention(q, k, v, dropout_p=0.25, return_weights=True)[1]

    torch.manual_seed(1)
    first, second = weights(), weights()
    torch.manual_seed(1)
    assert torch.equal(first, weights())
    assert not torch.equal(first, second)
    kept = (first != 0).double().mean()
    assert abs(kept - 0.75) < 5 * (0.75 * 0.25 / first.numel()) ** 0.5
    for axis in range(4):
        pair = (first != 0).unbind(axis)
        assert len(pair) == 1 or not torch.equal(pair[0], pair[-1])
