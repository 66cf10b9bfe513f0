"""A step of training writes its results into blocks that the library keeps, so that it touches no
page that is new to the process."""

import subprocess
import sys

import pytest
import relpos
import torch

from tests import ROOT

STEPS = 20
# Prints the faults of so many steps once others have run, in a process of its own.
PROBE = """
import resource, sys, torch, relpos
shape, dtype = [int(n) for n in sys.argv[1].split(",")], getattr(torch, sys.argv[2])
torch.set_num_threads(2)
query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
position = relpos.T5Bias(shape[1])
def step():
    out = relpos.attention(query, key, value, position=position)
    return torch.autograd.grad(out.sum(), [query, key, value, *position.parameters()])
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
before = faults()
for _ in range(int(sys.argv[3])):
    step()
print(faults() - before)
"""


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((64, 4, 32, 32), "float32"), ((8, 4, 197, 64), "float32"), ((64, 4, 64, 32), "bfloat16")],
)
def test_a_step_touches_no_new_page(shape, dtype):
    words = [",".join(map(str, shape)), dtype, str(STEPS)]
    run = subprocess.run(
        [sys.executable, "-c", PROBE, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pages = 4 * torch.Size(shape).numel() * getattr(torch, dtype).itemsize // 4096
    assert pages >= 1000
    # Scratch that one thread gives back while another takes some comes from the allocator.
    assert int(run.stdout) <= STEPS * pages / 50, (run.stdout, pages)


def test_results_outlive_each_other_and_are_nobody_elses():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 16, 4, 64, 32).unbind()
    first = relpos.attention(query, key, value)
    kept = first.clone()
    again = [relpos.attention(query + n, key, value) for n in range(4)]
    assert torch.equal(first, kept)
    assert len({t.data_ptr() for t in (first, *again)}) == 5
    place = first.data_ptr()
    view = first[3]
    del first
    assert relpos.attention(query, key, value).data_ptr() != place, "a view holds it"
    assert torch.equal(view, kept[3])


@pytest.mark.parametrize("inference", [False, True])
def test_a_large_result_is_an_ordinary_tensor(inference):
    query = torch.randn(16, 4, 64, 32)
    with torch.inference_mode(inference):
        out = relpos.attention(query, query, query)
        assert out.is_contiguous()
        assert out._base is None
        assert out.is_inference() == inference
        out.add_(1)
        assert out.untyped_storage().nbytes() == out.nbytes
    copy = out.clone()
    if not inference:
        out.share_memory_()
    assert torch.equal(out, copy)
