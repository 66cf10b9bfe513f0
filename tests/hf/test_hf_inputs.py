"""Calls that relpos.hf finds for models of many kinds, and what their trials then reach."""

import pytest
import relpos
import torch
from relpos.hf import _passes
from relpos.hf._inputs import calls
from relpos.hf.coverage import _tiny

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]


def runs(model):
    return any(_passes.can_run(model.eval(), given) for given in calls(model, 7))


@pytest.mark.parametrize(
    "kind",
    [
        *("wav2vec2-bert", "granite_speech5_encoder"),  # features as wide as the first weights
        *("qwen3_asr_encoder", "gemma3n_audio"),  # masks of their steps
        *("vilt", "lxmert", "idefics"),  # images beside text, in as many rows
        *("video_llama_3_vision", "inkling2_vision", "minicpm_ocr_vision"),  # patches of a grid
        *("time_series_transformer", "patchtst", "timesfm"),  # series
        *("dia", "canary"),  # tokens of several books; as many sounds as texts
    ],
)
def test_a_call_is_found(kind):
    assert runs(_tiny.model(kind))


@pytest.mark.parametrize(
    "kind",
    [
        "bart",  # its decoder alone, beside states of an encoder
        "blip_2_qformer",
        "canary",
        "idefics2",  # by get_image_features
        "audioflamingo3",  # by get_audio_features
    ],
)
def test_what_the_first_call_does_not_reach_is_tried_with_others(kind):
    model = _tiny.model(kind)
    model = model.get_decoder() if kind == "bart" else model
    relpos.hf.fuse(model, strict=True)


def implementations(model):
    return [
        part.config._attn_implementation
        for part in model.modules()
        if hasattr(getattr(part, "config", None), "_attn_implementation")
    ]


def test_a_config_does_not_set_those_in_it():
    """SLANeXt's head keeps the attention of a recurrent cell; the config of its images is inside
    of the head's."""
    model = _tiny.model("slanext")
    before = implementations(model)
    with pytest.warns(UserWarning, match="GRUCell"):
        relpos.hf.fuse(model)
    assert model.config._attn_implementation != "relpos"
    assert model.config.vision_config._attn_implementation == "relpos"
    states = {layer.kind: layer.state for layer in relpos.hf.report(model).layers}
    assert states["RelposSLANeXtVisionAttention"] == "fused"
    assert implementations(relpos.hf.restore(model)) == before


@pytest.mark.parametrize("kind", ["idefics2", "colpali"])  # which holds copies of its configs
def test_restore_gives_back_the_implementation_of_each_part(kind):
    model = _tiny.model(kind)
    towers = [part for part in model.modules() if part is not model and hasattr(part, "config")]
    tower = next(part.config for part in towers if "Vision" in type(part.config).__name__)
    tower._attn_implementation = "eager"
    before = implementations(model)
    assert len({*before}) == 2
    relpos.hf.fuse(model)
    assert {layer.state for layer in relpos.hf.report(model).layers} > {"fused"}
    assert implementations(relpos.hf.restore(model)) == before


def test_whole_numbers_of_meta_tensors():
    from relpos.hf._trial import twin

    module = torch.nn.Module()
    with torch.device("meta"):
        module.register_buffer("position_ids", torch.arange(5)[None])
        module.register_buffer("index", torch.arange(4))
        module.register_buffer("seen", torch.ones(2, 2, dtype=torch.bool))
    made = twin(module)
    assert made.position_ids.tolist() == [[0, 1, 2, 3, 4]]
    assert made.index.tolist() == [0, 0, 0, 0]
    assert bool(made.seen.all())
