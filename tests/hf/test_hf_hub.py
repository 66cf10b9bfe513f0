"""relpos as a kernel of Hugging Face's Kernel Hub, loaded from a folder by `kernels`."""

import ast
import copy
import importlib.metadata
import pickle
import sys

import kernels
import pytest
import relpos
import torch
from transformers.integrations import hub_kernels

from tests import ROOT
from tests.hf.hf_models import (
    FAMILIES,
    FLOAT32_MODEL,
    inputs,
    outputs,
    same,
    same_generation,
    same_outputs,
)
from tests.support.cli_tool import ran
from tests.support.near import close_to_largest

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

NAME = "owner/relpos"


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    ran([sys.executable, ROOT / "scripts/hub.py", folder])
    return folder


@pytest.fixture
def kernel(layout):
    yield kernels.get_local_kernel(layout)
    relpos.hf.register()  # the installed one has its name in transformers again


@pytest.fixture
def in_transformers(layout, monkeypatch):
    """NAME is the layout to transformers, as it is where LOCAL_KERNELS is set before the start.

    transformers 5.23.0 asks for a later version of kernels than there was when it was pinned.
    """
    if not hub_kernels.is_kernels_available():
        assert importlib.metadata.version("kernels") < hub_kernels.KERNELS_MIN_VERSION
        monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
        monkeypatch.setattr(hub_kernels, "get_kernel_hub", kernels.get_kernel, raising=False)
    monkeypatch.setenv("LOCAL_KERNELS", f"{NAME}={layout}")


def test_it_imports_itself_alone(layout):
    (build,) = (layout / "build").iterdir()
    assert (layout / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for path in build.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert not any(name.split(".")[0] == "relpos" for name in names), path


def test_it_stands_beside_the_installed_one(kernel):
    assert kernel.relpos is not relpos
    assert kernel.relpos._core is not relpos._core
    assert kernel.relpos.__version__ == relpos.__version__
    assert kernel.ALiBi is not relpos.ALiBi
    assert not hasattr(kernel, "flash_attn_varlen_func")  # transformers would call it
    assert kernel.relpos.compat.flash_attn_varlen_func
    results = []
    for each in (kernel, relpos):
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 4, 9, 8, requires_grad=True) for _ in range(3))
        bias = each.T5Bias(heads=4)
        (table,) = bias.parameters()
        with torch.no_grad():
            table.normal_()
        bias = pickle.loads(pickle.dumps(bias))
        out = each.attention(q, k, v, position=bias, is_causal=True)
        out.square().sum().backward()
        results.append([out, q.grad, k.grad, v.grad, next(bias.parameters()).grad])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    compiled = torch.compile(kernel.attention, backend="eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), relpos.attention(q, k, v))


@pytest.mark.parametrize("name", ["T5", "Llama", "Gemma 2", "GPT-OSS", "Mistral, window"])
def test_attn_implementation_names_it(name, in_transformers, tmp_path):
    family = FAMILIES[name]
    model = family.make()
    model.save_pretrained(tmp_path)
    ours = type(model).from_pretrained(tmp_path, attn_implementation=NAME).eval()
    assert ours.config._attn_implementation == NAME
    for mask in ("padded", "none"):
        given = inputs(family, mask=mask)
        (out, gradients), (expected, wanted) = (outputs(family, m, given) for m in (ours, model))
        same(out, expected)
        assert gradients.keys() == wanted.keys()
        for parameter, gradient in gradients.items():
            close_to_largest(gradient, wanted[parameter], FLOAT32_MODEL, parameter)
    same_generation(ours, model, 4, **given)


def test_its_fuse(kernel):
    family = FAMILIES["Llama"]
    model = family.make()
    fused = kernel.hf.fuse(copy.deepcopy(model))
    assert {layer.state for layer in kernel.hf.report(fused).layers} == {"fused"}
    same_outputs(family, fused, model)
    same_outputs(family, pickle.loads(pickle.dumps(fused)), model)
    kernel.hf.restore(fused)
    assert [type(part) for part in fused.modules()] == [type(part) for part in model.modules()]
