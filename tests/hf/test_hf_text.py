"""Models for text that transformers makes only with other packages, and calls that a fused model
leaves to its own code."""

import copy

import pytest
import relpos
import torch
import transformers
from transformers.models.layoutlmv2.modeling_layoutlmv2 import (
    LayoutLMv2Encoder,
    LayoutLMv2PreTrainedModel,
)

from tests.hf.hf_models import FLOAT32_MODEL, inputs, pair, same, states
from tests.hf.hf_text import FAMILIES
from tests.support.near import close_to_largest

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.peers]


class Page(LayoutLMv2PreTrainedModel):
    """LayoutLMv2Model without its images, which need another package."""

    def __init__(self, config):
        super().__init__(config)
        self.encoder = LayoutLMv2Encoder(config)

    def forward(self, states, hidden, bbox, position_ids):
        given = {"attention_mask": hidden, "bbox": bbox, "position_ids": position_ids}
        return self.encoder(states, **given).last_hidden_state


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("spatial", [True, False])
def test_layoutlm_v2_s_encoder_is_eager_s(fast, spatial):
    options = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    options |= {"intermediate_size": 40, "hidden_dropout_prob": 0, "fast_qkv": fast}
    options |= {"attention_probs_dropout_prob": 0, "has_spatial_attention_bias": spatial}
    config = transformers.LayoutLMv2Config(**options, max_rel_2d_pos=200)
    torch.manual_seed(0)
    own = Page(config).eval()
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    fused = relpos.hf.fuse(copy.deepcopy(own))
    assert states(fused) == {"fused"}
    hidden = torch.zeros(2, 1, 1, 40, dtype=torch.bool)
    hidden[1, ..., 30:] = True
    boxes, ids = torch.randint(0, 1000, (2, 40, 4)), torch.arange(40).expand(2, -1)
    states_of = torch.randn(2, 40, 32)
    weights = torch.randn(2, 40, 32)
    found = []
    for model in (fused, own):
        out = model(states_of, hidden, boxes, ids)
        (out * weights).sum().backward()
        found.append([out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        if theirs.abs().max() > 1e-4:  # of a bias that joins every key, it is 0 but for rounding
            close_to_largest(ours, theirs, FLOAT32_MODEL)


def test_xlnet_computes_two_streams_and_permutations_itself():
    own, fused = pair(FAMILIES["XLNet"])
    ids = torch.arange(3, 15).repeat(2, 1)
    given = {"input_ids": ids, "perm_mask": torch.rand(2, 12, 12).round()}
    given["target_mapping"] = torch.eye(12)[None, 5:7].expand(2, -1, -1)
    assert torch.equal(fused(**given)[0], own(**given)[0])
    assert torch.equal(
        fused(ids, perm_mask=given["perm_mask"])[0], own(ids, perm_mask=given["perm_mask"])[0]
    )


def test_xlnet_s_memories_are_its_own():
    own, fused = pair(FAMILIES["XLNet"], mem_len=8)
    ids, types = torch.arange(3, 23).repeat(2, 1), torch.arange(20).div(11, rounding_mode="floor")
    seen = torch.ones_like(ids)
    seen[0, :3] = 0
    found = []
    for model in (fused, own):
        mems, outs = None, []
        for now in (slice(0, 9), slice(9, 10), slice(10, 20)):
            given = {"attention_mask": seen[:, now], "token_type_ids": types[now].expand(2, -1)}
            out = model(ids[:, now], **given, mems=mems, use_mems=True)
            mems = out.mems
            outs.append(out.last_hidden_state)
        found.append(torch.cat(outs, 1))
    same(*found)


@pytest.mark.parametrize("name", ["XLNet, segments", "DeBERTa", "DeBERTa v3", "Funnel"])
def test_weights_are_returned_where_they_are_asked_for(name):
    own, fused = pair(FAMILIES[name])
    given = inputs(FAMILIES[name])
    ours, theirs = (m(**given, output_attentions=True) for m in (fused, own))
    same(ours[0], theirs[0])
    seen = given["attention_mask"].bool()[:, None, :, None]
    for mine, other in zip(ours.attentions, theirs.attentions, strict=True):
        rows = seen if mine.shape[2] == seen.shape[2] else torch.ones(1, dtype=torch.bool)
        same(mine.where(rows, 0.0), other.where(rows, 0.0))


def test_udop_counts_whole_hundredths_as_its_own_float32():
    family = FAMILIES["UDOP"]
    own, fused = pair(family)
    given = inputs(family, 60)
    given["bbox"] = given["bbox"].mul(100).round().div(100)  # every pair is whole hundredths apart
    image = torch.randn(2, 3, 16, 16)
    for more in ({}, {"pixel_values": image}):  # with an image, boxes are float64
        given |= more
        same(fused(**given)[0], own(**given)[0])


@pytest.mark.parametrize("name", ["DeBERTa v3", "XLNet, segments", "Funnel", "UDOP", "CPM-Ant"])
def test_a_fused_model_is_one_graph(name):
    family = FAMILIES[name]
    own, fused = pair(family)
    given = inputs(family, mask="ones")
    given |= {} if family.kind == "encoder" else {"use_cache": False}
    torch._dynamo.reset()
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    same(compiled(**given)[0], own(**given)[0])


def test_a_deberta_of_other_buckets_stays_as_it_is(monkeypatch):
    from transformers.models.deberta_v2 import modeling_deberta_v2 as module

    number = module.make_log_bucket_position
    monkeypatch.setattr(
        module,
        "make_log_bucket_position",
        lambda distance, *sizes: number(distance.clamp(-9, 9), *sizes),
    )
    fused = relpos.hf.fuse(FAMILIES["DeBERTa v3"].make())
    assert states(fused) == {"untouched"}
    assert "its rows are not those" in str(relpos.hf.report(fused))


@pytest.mark.parametrize("name", FAMILIES)
def test_models_of_meta_tensors_are_fused(name):
    """Also where buffers hold whole numbers, as LayoutLM v3's positions."""
    with torch.device("meta"):
        model = FAMILIES[name].configured()
    assert states(relpos.hf.fuse(model)) == {"fused"}
