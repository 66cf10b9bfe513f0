"""The same bits on every run at any thread count: forward, backward, table gradients, dropout."""

import functools
import hashlib
import itertools
import os
import subprocess
import sys

import pytest
import relpos
import torch

from tests import FULL, ROOT
from tests.support.promise import work_type
from tests.support.sample import NAMES, position, tensors
from tests.support.steps import same_at_any_thread_count, step

SHAPES = {
    "square": {"batch": 2, "queries": 200, "keys": 200, "key_heads": 2},
    "memory": {"batch": 1, "queries": 67, "keys": 700},
    "decode": {"batch": 3, "queries": 1, "keys": 3000, "key_heads": 1},
}


def results(name, shape, dtype, dropout):
    """Everything that one training step gives, as tensors."""
    module, _ = position(name, dtype=dtype)
    *inputs, dout = tensors(**SHAPES[shape], dtype=dtype)
    rows = dout.shape[:3]
    dlse = torch.linspace(-1, 1, rows.numel(), dtype=work_type(dtype)).view(rows)
    offset = inputs[1].shape[2] - inputs[0].shape[2]
    call = {"is_causal": True, "q_offset": offset, "enable_gqa": True, "dropout_p": dropout}
    torch.manual_seed(11)
    return step(*inputs, dout, module, dlse, **call)


def digest(found):
    state = hashlib.sha256()
    for x in found:
        state.update(x.contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


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
def test_same_bits_at_any_thread_count(name, shape, dtype, dropout):
    same_at_any_thread_count(lambda: results(name, shape, dtype, dropout), (1, 2, 4, 2))


def test_same_bits_in_other_processes():
    """OMP_NUM_THREADS of a fresh process, where no call ran before."""
    code = (
        f"import {__name__} as t, torch;"
        "print(*[t.digest(t.results('sum', s, torch.float32, 0.2)) for s in t.SHAPES])"
    )
    found = set()
    for count in ("1", "4"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": count},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout)
    assert len(found) == 1


MODULE = relpos.nn.MultiheadAttention(32, 4, batch_first=True)
DROPPING = {
    "attention": lambda x, p: relpos.attention(x, x, x, dropout_p=p),
    "return_weights": lambda x, p: relpos.attention(x, x, x, dropout_p=p, return_weights=True)[1],
    "sdpa": lambda x, p: relpos.sdpa(x, x, x, dropout_p=p),
    "flash_attn_func": lambda x, p: relpos.flash_attn_func(*[x.transpose(1, 2)] * 3, p),
    "attention_varlen": lambda x, p: relpos.attention_varlen(
        *[x[0].transpose(0, 1)] * 3, torch.tensor([0, 7, 40]), dropout_p=p
    ),
    "MultiheadAttention": lambda x, p: dropping_module(p)(*[x.transpose(1, 2).flatten(2)] * 3)[0],
    "compiled": lambda x, p: compiled()(x, p),
}


@functools.cache
def compiled():  # by what takes seconds to import
    return torch.compile(
        lambda x, p: relpos.attention(x, x, x, dropout_p=p), fullgraph=True, backend="aot_eager"
    )


def dropping_module(p):
    MODULE.dropout = p
    return MODULE


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_follows_the_default_generator(name):
    x = tensors(queries=40, keys=40)[0]
    state = torch.random.get_rng_state()
    whole = DROPPING[name](x, 0.0)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(1)
    first, second = (DROPPING[name](x, 0.25) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(DROPPING[name](x, 0.25), first)
    assert not torch.equal(first, second)
    assert not torch.equal(first, whole)


def test_dropout_keeps_its_share_everywhere():
    q, k, v, _ = tensors(queries=40, keys=40)
    kept = relpos.attention(q, k, v, dropout_p=0.25, return_weights=True)[1] != 0
    expected = 5 * (0.75 * 0.25 / kept.numel()) ** 0.5
    assert abs(kept.double().mean() - 0.75) < expected
    for axis in range(4):
        pair = kept.unbind(axis)
        assert len(pair) == 1 or not torch.equal(pair[0], pair[-1])
