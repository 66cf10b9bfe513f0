"""examples/memorizing_transformer.py against dense formulas over everything that was seen."""

import importlib.util
import math

import pytest
import torch

from tests import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")

PATH = ROOT / "examples" / "memorizing_transformer.py"
SPEC = importlib.util.spec_from_file_location("memorizing_transformer", PATH)
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

WIDTH, HEADS, RETRIEVED, XL, LIMIT, SEGMENT = 12, 3, 4, 5, 11, 6
JOINS = pytest.mark.parametrize("join", ["gate", "softmax"])


def t5_bias(table, pos_q, pos_k):
    """[H, Lq, Lk] for distances within the exact half of T5's causal buckets."""
    back = pos_q[:, None] - pos_k
    assert back.max() < 16
    return table[back.clamp(min=0)].permute(2, 0, 1)


def dense(module, x):
    """The layer's outputs over the whole document, with scores of all pairs."""
    heads = [
        (x @ p.weight.T).unflatten(2, (HEADS, -1)).transpose(1, 2)
        for p in (module.query, module.key, module.value)
    ]
    outs = []
    for start in range(0, x.shape[1], SEGMENT):
        q = heads[0][:, :, start : start + SEGMENT]
        scale = q.shape[-1] ** -0.5
        pos_q = torch.arange(start, start + SEGMENT)
        pos_k = torch.arange(max(0, start - XL), start + SEGMENT)
        # Earlier segments are constants to the current one.
        past = [torch.cat([h[:, :, :start].detach(), h[:, :, start:]], 2) for h in heads[1:]]
        k, v = (p[:, :, pos_k] for p in past)
        near = q @ k.mT * scale
        near = near + t5_bias(module.position.relative_attention_bias.weight, pos_q, pos_k)
        near = near.masked_fill(pos_k > pos_q[:, None], -torch.inf)

        held = slice(max(0, start - SEGMENT - LIMIT) if start else 0, start)
        if start == 0:
            out = near.softmax(-1) @ v
        else:
            key, value = (p[:, :, held] for p in past)
            far = q @ key.mT
            best = far.topk(min(RETRIEVED, far.shape[-1]), -1).indices
            far = (far * scale).masked_fill(
                torch.ones_like(far, dtype=torch.bool).scatter(-1, best, False), -torch.inf
            )
            if module.join == "softmax":
                out = torch.cat([near, far], -1).softmax(-1) @ torch.cat([v, value], 2)
            else:
                gate = 1 / (1 + torch.exp(-module.gate))[:, None, None]
                out = gate * (far.softmax(-1) @ value) + (1 - gate) * (near.softmax(-1) @ v)
        outs.append(out.transpose(1, 2).flatten(2) @ module.out.weight.T)
    return torch.cat(outs, 1)


@JOINS
def test_equals_the_dense_formula(join):
    torch.manual_seed(0)
    module = example.MemorizingAttention(
        WIDTH, HEADS, retrieved=RETRIEVED, xl=XL, limit=LIMIT, join=join
    ).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    for seed in range(2):  # start() forgets the document before
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(2, 5 * SEGMENT, WIDTH, generator=generator).double().requires_grad_()
        module.start()
        got = torch.cat([module(part) for part in x.split(SEGMENT, 1)], 1)
        want = dense(module, x)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
        leaves = [x, *module.parameters()]
        weights = torch.randn(got.shape, generator=generator).double()
        found, expected = (
            torch.autograd.grad(out, leaves, weights, allow_unused=True) for out in (got, want)
        )
        for a, b in zip(found, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@JOINS
def test_it_learns_what_only_the_memories_hold(join):
    losses = example.train(30, join)
    assert losses[0] > 0.9 * math.log(example.VALUES)
    assert sum(losses[-5:]) / 5 < 0.85 * math.log(example.VALUES)
    assert losses == example.train(30, join)


def test_the_local_context_never_holds_the_answers():
    names, _, answers = example.document(64, torch.Generator().manual_seed(0))
    asked = names[:, -example.SEGMENT :]
    seen = names[:, -2 * example.SEGMENT : -example.SEGMENT]
    assert not (asked[:, :, None] == seen[:, None]).any()
    assert answers.shape == asked.shape


def test_refuses():
    with pytest.raises(ValueError, match="join: expected 'gate' or 'softmax'"):
        example.MemorizingAttention(8, 2, retrieved=1, xl=1, limit=1, join="sum")
