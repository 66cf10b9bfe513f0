"""Every family that relpos.hf fuses, against transformers' own code, forward and backward."""

import copy
from collections import defaultdict

import pytest
import relpos
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.hf.hf_models import (
    FAMILIES,
    FLOAT32_MODEL,
    inputs,
    outputs,
    pair,
    same_generation,
    states,
)
from tests.support.near import within
from tests.support.peer_modes import Float64

pytestmark = pytest.mark.usefixtures("one_thread")


def largest_of_modules(gradients):
    """{parameter: the largest gradient of its module}. A constant added to every key changes
    no weight, so that a key bias has the gradient 0, and that of a table of biases is a small
    difference; what is computed is rounding of the gradients beside it."""
    largest = defaultdict(float)
    for name, gradient in gradients.items():
        module = name.rsplit(".", 2)[0]
        largest[module] = max(largest[module], gradient.abs().max().item())
    return {name: largest[name.rsplit(".", 2)[0]] for name in gradients}


def in_float64(family, model, given):
    """Of the model's own code, with all of its arithmetic in double."""
    wide = copy.deepcopy(model).double()
    # The zeros of sdpa for rows of padding survive float64.
    if wide._supports_sdpa and wide._can_set_attn_implementation():
        wide.set_attn_implementation("sdpa")
    with Float64():
        return outputs(family, wide, given)


@pytest.mark.peers
@pytest.mark.parametrize("mask", ["padded", "ones", "none"])
@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_and_gradients_are_eager_s(name, mask, summary):
    family = FAMILIES[name]
    (model, fused), given = pair(name), inputs(family, mask=mask)
    assert states(fused) == {"fused"}
    assert list(fused.state_dict()) == list(model.state_dict())

    exact, exact_gradients = in_float64(family, model, given)
    out, gradients = outputs(family, fused, given)

    forward = ((out - exact).abs().max() / exact.abs().max()).item()
    within(forward, FLOAT32_MODEL, "result")
    assert gradients.keys() == exact_gradients.keys()
    backward, scales = 0.0, largest_of_modules(exact_gradients)
    for name_of, gradient in gradients.items():
        error = (gradient - exact_gradients[name_of]).abs().max().item() / scales[name_of]
        within(error, FLOAT32_MODEL, name_of)
        backward = max(backward, error)
    line = f"hf | {name} | fused | {forward:.1e} | {backward:.1e} |"
    if mask == "padded":
        summary.append(line)


@pytest.mark.peers
@pytest.mark.parametrize("mask", ["padded", "none"])
@pytest.mark.parametrize(
    "name", [n for n, f in FAMILIES.items() if f.kind != "encoder" and f.prompt == "ids"]
)
def test_generation_with_a_cache_is_the_same(name, mask):
    family = FAMILIES[name]
    given = inputs(family, mask=mask)
    given.pop("decoder_input_ids", None)
    if family.kind == "decoder" and mask == "padded":  # generation goes on from the last token
        given["attention_mask"][1:] = 1
    model, fused = pair(name)
    same_generation(fused, model, 12, **given)


class Largest(TorchDispatchMode):
    """The most elements that any operator's result has."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_of_lq_times_lk_is_built(name):
    family = FAMILIES[name]
    length = 768
    given = inputs(family, length)
    for linear in (True, False) if name in ("T5", "Llama", "BLOOM") else (True,):
        model = family.make()
        if linear:
            model = relpos.hf.fuse(model)
        with Largest() as largest:
            outputs(family, model, given)
        assert (largest.elements < length * length // 2) == linear
