"""Every family that relpos.hf fuses, against transformers' own code, forward and backward."""

import copy
from collections import defaultdict

import pytest
import relpos
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests import FULL
from tests.hf import hf_text
from tests.hf.hf_models import (
    FAMILIES,
    FLOAT32_MODEL,
    inputs,
    outputs,
    pair,
    same_generation,
    states,
    within_float32,
)
from tests.support.near import within
from tests.support.peer_modes import Float64

pytestmark = pytest.mark.usefixtures("one_thread")
# Ours and theirs in double; the bound is FLOAT32_MODEL's by the ratio of the roundings, and more.
FLOAT64_MODEL = 1e-10
MODELS = {**FAMILIES, **hf_text.FAMILIES}


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


def errors(found, exact, exact_gradients):
    """The largest of the result and that of the gradients, as parts of the largest numbers."""
    out, gradients = found
    assert gradients.keys() == exact_gradients.keys()
    scales = largest_of_modules(exact_gradients)
    backward = max(
        (gradient - exact_gradients[name]).abs().max().item() / scales[name]
        for name, gradient in gradients.items()
    )
    return ((out - exact).abs().max() / exact.abs().max()).item(), backward


def generates(family):
    """Whether a model of it can go on from tokens."""
    able = issubclass(getattr(transformers, family.model), transformers.GenerationMixin)
    return able and family.kind != "encoder" and family.prompt != "embeddings"


def rotates(fused):
    """Whether the model's frequencies are a buffer of float32 numbers; relpos' are not rounded."""
    return any("rope" in layer.why for layer in relpos.hf.report(fused).layers)


@pytest.mark.peers
@pytest.mark.parametrize("mask", ["padded", *(["ones"] if FULL else []), "none"])
@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_and_gradients_are_eager_s(name, mask, summary):
    family = MODELS[name]
    (model, fused), given = pair(family), inputs(family, mask=mask)
    assert states(fused) == {"fused"}
    assert list(fused.state_dict()) == list(model.state_dict())

    exact, exact_gradients = in_float64(family, model, given)

    def errors_of(each):
        return errors(outputs(family, each, given), exact, exact_gradients)

    forward, backward = errors_of(fused)
    within(forward, FLOAT32_MODEL)
    within_float32({"gradients": backward}, model, lambda each: {"gradients": errors_of(each)[1]})
    if not rotates(fused):
        with Float64():
            found = outputs(family, copy.deepcopy(fused).double(), given)
        within(max(errors(found, exact, exact_gradients)), FLOAT64_MODEL)
    line = f"hf | {name} | fused | {forward:.1e} | {backward:.1e} |"
    if mask == "padded":
        summary.append(line)


@pytest.mark.peers
@pytest.mark.parametrize("mask", ["padded", "none"])
@pytest.mark.parametrize("name", [name for name, family in MODELS.items() if generates(family)])
def test_generation_with_a_cache_is_the_same(name, mask):
    family = MODELS[name]
    given = inputs(family, mask=mask)
    given.pop("decoder_input_ids", None)
    if (
        family.kind == "decoder" and "attention_mask" in given
    ):  # generation goes on from the last token
        given["attention_mask"][1:] = 1
    model, fused = pair(family)
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


@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_lq_times_lk_is_built(name):
    family = MODELS[name]
    length = 768
    given = inputs(family, length)
    for linear in (True, False) if name in ("T5", "Llama", "BLOOM") else (True,):
        model = pair(family)[linear]
        with Largest() as largest:
            outputs(family, model, given)
        # On its page UDOP has a byte for each pair of a row, in place of a number for each head.
        most = length * length // 2 + (name == "UDOP")
        assert (largest.elements < most) == linear
