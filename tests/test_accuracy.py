"""Scores that are hard on float32, on every SIMD target: the error stays near that of plain torch.

As in the conformance run, the error against float64 is at most twice (gradients: three times) that
of the same formula in plain float32 torch, plus 1e-6 of the largest value.
"""

import json
import os
import subprocess
import sys

import pytest
import relpos
import torch
from conformance_worker import BACKWARD, FORWARD, Call, Peers, judge, rounding_of_dscore
from oracle import allowed_pairs, gradients, positions, registry
from sample import trained

HEADS, LENGTH, DIM, TILE = 2, 200, 16, 64
SCALE = DIM**-0.5
TARGETS = tuple(sorted(relpos.show_config()["targets available"].split()))


def normal(q, k, v):
    return q, k, v


def large(q, k, v):
    """Scores of standard deviation 30."""
    return q * 30**0.5, k * 30**0.5, v


def rising(q, k, v):
    """By 100 from each tile of keys to the next: every tile moves the reference."""
    q[..., 0] = 4.0
    k[..., 0] = torch.arange(LENGTH) // TILE * 100 / (4.0 * SCALE)
    return q, k, v


def falling(q, k, v):
    q, k, v = rising(q, k, v)
    return q, k.flip(-2), v


def one_huge(q, k, v):
    k[..., 100, :] *= 1e4
    return q, k, v


def all_equal(q, k, v):
    return q, k[..., :1, :].expand_as(k).clone(), v


def denormal(q, k, v):
    return q * 1e-20, k * 1e-20, v * 1e-39


def hidden_by_bias(q, k, v):
    """With -inf in the float mask and in tables of biases: see Hard."""
    return q, k, v


KINDS = (normal, large, rising, falling, one_huge, all_equal, denormal, hidden_by_bias)


class Hard(Call):
    """The public call and the oracle on one kind of scores."""

    def __init__(self, name, kind, causal):
        draw = torch.Generator().manual_seed(5)
        shape = (1, HEADS, LENGTH, DIM)
        drawn = [torch.randn(shape, generator=draw) for _ in range(4)]
        self.inputs = [x.requires_grad_() for x in kind(*drawn[:3])]
        self.dout, self.dlse, self.dtype = drawn[3], None, torch.float32
        self.case = {"heads": (HEADS, HEADS), "dropout": 0.0, "scale": SCALE}
        self.scale, self.places, self.masks, self.added = SCALE, {}, {"is_causal": causal}, None
        self.pos_q, self.pos_k = positions(1, LENGTH, LENGTH)
        self.chosen, self.modules = [], []
        if name != "none":
            module, part = trained(name, 0, HEADS, DIM, DIM)
            self.chosen, self.modules = [(name, part.options)], [module]
        if kind is hidden_by_bias:
            hidden = torch.rand(LENGTH, LENGTH, generator=draw) < 0.3
            hidden.fill_diagonal_(False)
            self.added = torch.randn(LENGTH, LENGTH, generator=draw)
            self.added[hidden] = -torch.inf
            self.masks["attn_mask"] = self.added.requires_grad_()
            if name != "none" and part.terms(self.pos_q[0], self.pos_k[0]).keys() == {"bias"}:
                with torch.no_grad():
                    for table in module.parameters():
                        table.view(-1)[-1] = -torch.inf
        self.allowed = allowed_pairs(self.pos_q, self.pos_k, heads=HEADS, **self.masks)

    def problems(self):
        out, lse = relpos.attention(*self.inputs, **self.keywords(), return_lse=True)
        named = self.leaves()
        ours = gradients([out], [self.dout], [x for _, x in named])
        truth, true_grads = self.by_formula(torch.float64, None)
        plain, linear = Peers(self, self.dtype, None), Peers(self, self.dtype, None, from_lse=True)
        found = [
            judge("out", out.detach(), truth.out.detach(), plain.of("out"), FORWARD),
            judge("lse", lse.detach(), truth.lse.detach(), plain.of("lse"), FORWARD),
        ]
        slack = self.slack(truth)
        for index, (name, _) in enumerate(named):
            exact = true_grads[index]
            room = rounding_of_dscore(self.dtype, slack, exact)
            peers = linear.gradient(index)
            found.append(judge(f"gradient of {name}", ours[index], exact, peers, BACKWARD, room))
        return [problem for problem in found if problem]


def cases():
    return [(n, kind, c) for n in ("none", *registry()) for kind in KINDS for c in (False, True)]


def main():
    """Problems of every case on the target of RELPOS_TARGET, as JSON."""
    torch.set_num_threads(1)
    problems = []
    for name, kind, causal in cases():
        for problem in Hard(name, kind, causal).problems():
            problems.append(f"{name}, {kind.__name__}, {'causal' if causal else 'full'}: {problem}")
    print(json.dumps({"target": relpos.show_config()["target"], "problems": problems}))


@pytest.fixture(scope="module")
def runs():
    """One process per target, because RELPOS_TARGET is read at first use."""
    own = {"OMP_NUM_THREADS": "1"}
    started = {
        target: subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | own | {"RELPOS_TARGET": target},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in TARGETS
    }
    yield started
    for process in started.values():
        process.kill()


@pytest.mark.parametrize("target", TARGETS)
def test_error_stays_near_that_of_plain_torch(runs, target):
    printed, errors = runs[target].communicate()
    assert runs[target].returncode == 0, errors[-2000:]
    found = json.loads(printed)
    assert found["target"] == target
    assert not found["problems"], "\n".join(found["problems"])


if __name__ == "__main__":
    main()
