"""What python -m relpos.hf coverage finds: nothing wrong, nothing that raises.

RELPOS_FULL=1 goes through every model type of transformers, which takes seven minutes on two idle
cores; otherwise every eightieth.
"""

import json
import sys

import pytest
import torch
from relpos.hf import coverage
from relpos.hf.coverage._table import classes, table
from relpos.hf.coverage._tiny import types

from tests import FULL, ROOT
from tests.support.cli_tool import ran

pytestmark = pytest.mark.peers

# Of the attention classes that rotate, that have another position and that have none, how many
# the kernel serves at least, with the position if there is one.
LEAST = {"rotates": 165, "other": 50, "plain": 110}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    chosen = types() if FULL else types()[3::80]
    return list(
        coverage.run(chosen, 2 if FULL else 1, tmp_path_factory.mktemp("coverage") / "kept")
    )


def test_nothing_is_wrong_and_nothing_raises(results):
    assert [each for each in results if each["wrong"]] == []
    passed = [each for each in results if "forward" in each["passed"]]
    assert len(passed) > len(results) // 2


def test_most_classes_are_served(results):
    found = list(classes(results).values())
    assert all(each["why"] for each in found)
    for position, least in LEAST.items():
        mine = [each for each in found if each["position"] == position]
        enough = ("fused", "attention") if position == "plain" else ("fused",)
        served = [each for each in mine if each["state"] in enough]
        assert len(served) > (0.4 if position == "plain" else 0.6) * len(mine)
        assert not FULL or len(served) >= least


def test_what_a_class_is_counted_as():
    from relpos.hf.coverage._measure import position
    from transformers.models.beit.modeling_beit import BeitAttention
    from transformers.models.glm_image.modeling_glm_image import GlmImageVisionAttention
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderAttention
    from transformers.models.t5.modeling_t5 import T5Attention

    assert position(LlamaAttention) == "rotates"
    assert position(ParakeetEncoderAttention) == "other"  # its decorator speaks of a rotation
    assert position(T5Attention) == "other"
    assert position(BeitAttention) == "other"  # its layer adds the bias to the mask
    assert position(GlmImageVisionAttention) == "plain"  # config.attention_bias is a projection's


def test_weights_are_drawn_beside_a_parameter_of_no_element():
    from relpos.hf.coverage._measure import _drawn

    model = torch.nn.ParameterList([torch.zeros(2, 3), torch.zeros(0, 3)])
    _drawn(model)
    assert model[0].all()


def test_the_command(tmp_path):
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "relpos.hf", "coverage", "--model", "llama", "--model", "bart"]
    line, *others = sorted(ran([*command, "--json", "--resume", kept]).splitlines())
    bart, llama = json.loads(line), json.loads(others[0])
    assert (bart["type"], llama["type"]) == ("bart", "llama")
    checks = ["forward", "padding", "generate", "beams", "static cache"]
    assert llama["passed"] == bart["passed"] == checks
    assert {each["state"] for each in llama["classes"]} == {"fused"}
    # The decoder alone, which calls no cross-attention.
    states = {(each["state"], each["why"]) for each in bart["classes"]}
    assert {state for state, why in states if "no call of it" not in why} == {"attention"}
    printed = ran([*command, "--resume", kept])  # from what was kept
    assert "| LlamaAttention | llama | rotates | fused |" in printed
    assert "| BartAttention | bart | plain | attention only |" in printed
    assert "0 wrong, 0 raising" in printed


def test_the_page_has_the_form_of_its_output(results):
    page = (ROOT / "docs/coverage.md").read_text()
    assert table(results) == table(results[::-1])
    heading, _, rest = table(results).partition(f"{len(results)} model types")
    assert rest
    assert page.startswith(heading)
    for line in rest.splitlines():
        if line.startswith(("| position", "| class")):
            assert line in page
    assert "**wrong**" not in page
    assert "**raises**" not in page
