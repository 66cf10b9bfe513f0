"""Tables of distances that C++ computes from few numbers."""

import pytest
import relpos
import torch

from tests.gpu.cases import (
    PLAIN,
    assert_the_same_bits_twice,
    drawn_of,
    judged,
    number_of,
    on_the_cpu,
)

POSITIONS = [f"kerple_log#{n}" for n in (0, 1)] + ["kerple_power#1", "fire#0", "fire#1"]
POSITIONS += ["sandwich#1", "bam#0", "tisa#1", "dynamic_bias#1", "alibi_2d#0", "alibi_2d#2"]
POSITIONS += ["swin_v2#0", "swin_v2#2", "kerple_log#0+t5#1", "fire#0+kerple_power#0"]
POSITIONS += ["dynamic_bias#2+rope#0", "kerple_log#1+alibi#3+attention_sink#1"]


@pytest.mark.parametrize("case", drawn_of(POSITIONS), ids=number_of)
def test_a_call_keeps_the_promise(case, garbage):
    assert not judged(case), case


OFFSETS = [
    {"q_offset": torch.tensor([30, -5]), "k_offset": 3},
    {"q_positions": torch.arange(40) * 3, "k_positions": torch.arange(40) + 20},
    {"key_range": (torch.zeros(40).long(), torch.arange(40) + 1)},
    {"q_offset": 700, "k_offset": 600, "is_causal": True},
]


@pytest.mark.parametrize("options", OFFSETS, ids=["offsets", "positions", "range", "far"])
def test_distances_are_those_of_the_call(options):
    """Also where tensors say them, which the CPU then reads."""
    q, k, v, dout = torch.randn(4, 2, 2, 40, 8)
    for position in (relpos.KerpleLog(2), relpos.Sandwich(2, dims=16)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = relpos.attention(*leaves, position=position, **options)
        found = [out, *torch.autograd.grad(out, leaves, dout)]
        wanted = on_the_cpu(q, k, v, dout, position=position, **options)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_table_follows_its_numbers():
    """It is kept as long as these are the same."""
    q, k, v, dout = torch.randn(4, 1, 2, 20, 8)
    kerple = relpos.KerpleLog(2)
    for scale in (1.0, 1.0, 3.0):
        with torch.no_grad():
            for parameter in kerple.parameters():
                parameter.copy_(scale * torch.tensor([0.5, 1.5]).view(parameter.shape))
        out = relpos.attention(q, k, v, position=kerple)
        torch.testing.assert_close(out, on_the_cpu(q, k, v, dout, position=kerple)[0])


def test_two_runs_have_the_same_bits():
    case = PLAIN | {"position": "fire#0+kerple_log#0", "queries": 33, "keys": 65}
    assert_the_same_bits_twice(case)
